"""V(m): the seed grid and its budget, its file, and how real steps move the estimate."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.drafting.verify_cost import (
    GRID,
    MAX_PLAIN_STEPS,
    MAX_SECONDS,
    TYPICAL_COSTS,
    Measurement,
    VerifyCost,
    cache_path,
    load,
    measure,
    measured_or_cached,
    save,
)

COSTS = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.8, 16: 3.0, 32: 5.5, 64: 10.0}
MEASURED = Measurement(0.02, COSTS, 1.1)


class Clockwork:
    """A player whose m-row step takes plain * V(m) of its own clock."""

    page_positions = 16

    def __init__(self, plain: float, costs: dict[int, float] | None = None) -> None:
        self.now = 0.0
        self.rows: list[int] = []
        self.pages: list[list[int]] = []
        self._plain = plain
        self._costs = VerifyCost(Measurement(plain, costs or COSTS))

    def clock(self) -> float:
        return self.now

    def forward(self, tokens: Any, positions: Any, segments: Any, tables: Any, marked: Any) -> Any:
        m = len(tokens)
        assert positions.shape == (m, 3)
        assert segments.tolist() == [[m, 0, 0]]
        assert marked.tolist() == list(range(m))
        assert {a.dtype for a in (tokens, positions, segments, tables, marked)} == {np.dtype("i4")}
        assert tokens.max() < 50
        self.rows.append(m)
        self.pages.append(tables.tolist())
        self.now += self._plain * self._costs.cost(m)
        return np.zeros(m, np.uint8)

    def sample(self, *arrays: Any) -> Any:
        assert arrays[-1] == 50
        return np.zeros(self.rows[-1], np.int32)


def measured(player: Clockwork, **options: Any) -> Measurement:
    return measure(
        player,  # type: ignore[arg-type]
        player,  # type: ignore[arg-type]
        vocab_size=50,
        clock=player.clock,
        **options,
    )


def test_the_grid_is_measured_three_times_in_turns() -> None:
    player = Clockwork(0.005)
    result = measured(player, pages=[9, 3, 5, 7])
    assert result.plain_seconds == pytest.approx(0.005)
    assert result.costs == pytest.approx(COSTS)
    assert result.spread == pytest.approx(1.0)
    assert player.rows == [1, *GRID, *GRID, *GRID]
    assert set(map(tuple, player.pages)) == {(9, 3, 5, 7)}


@pytest.mark.parametrize("plain", [0.001, 0.03, 0.048, 0.1, 0.5, 3.0])
@pytest.mark.parametrize("steep", [False, True])
def test_the_budget_is_kept(plain: float, steep: bool) -> None:
    """Points that would take too long are left out, never repetitions."""
    player = Clockwork(plain, {m: float(m) for m in GRID} if steep else None)
    result = measured(player)
    assert player.now <= max(MAX_SECONDS, MAX_PLAIN_STEPS * plain)
    assert len(result.costs) >= 2
    for m in result.costs:
        assert player.rows.count(m) >= 3


def test_too_few_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="4 scratch pages"):
        measured(Clockwork(0.01), pages=[1, 2])


def test_a_noisy_measurement_says_so() -> None:
    assert Measurement(1.0, COSTS, 1.5).noisy
    assert not Measurement(1.0, COSTS, 1.1).noisy


# --- the file ------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = cache_path(tmp_path, "dp-1", "avx2", 2)
    assert load(path) is None
    save(path, MEASURED)
    assert load(path) == MEASURED
    assert list(path.parent.iterdir()) == [path]
    others = [("dp-2", "avx2", 2), ("dp-1", "scalar", 2), ("dp-1", "avx2", 1)]
    assert path not in {cache_path(tmp_path, *other) for other in others}


GOOD = MEASURED.to_dict()
BAD_FILES = [
    b"",
    b"{",
    b"\xff\xfe",
    b"null",
    b"[1]",
    b'"text"',
    *[
        json.dumps({**GOOD, **change}).encode()
        for change in (
            {"plain_step_ms": 0},
            {"plain_step_ms": -1},
            {"plain_step_ms": math.nan},
            {"plain_step_ms": "fast"},
            {"spread": 0.5},
            {"spread": None},
            {"verify_cost": {}},
            {"verify_cost": []},
            {"verify_cost": {"1": 1.0}},
            {"verify_cost": {"1": 2.0, "2": 3.0}},
            {"verify_cost": {"1": 1.0, "2": 0.5}},
            {"verify_cost": {"2": 1.1, "1": 1.0}},
            {"verify_cost": {"1": 1.0, "2": math.inf}},
            {"verify_cost": {"1": 1.0, "65": 9.0}},
            {"verify_cost": {"1": 1.0, "x": 9.0}},
        )
    ],
]


@pytest.mark.parametrize("data", BAD_FILES)
def test_an_unreadable_file_is_measured_anew(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cost.json"
    path.write_bytes(data)
    said: list[str] = []
    assert measured_or_cached(path, lambda known: known or MEASURED, said.append) == MEASURED
    assert load(path) == MEASURED
    assert said == []

    def holds(known: Measurement | None) -> Measurement:
        assert known == MEASURED, "it is in the cache"
        return known

    assert measured_or_cached(path, holds, said.append) == MEASURED
    other = Measurement(0.03, COSTS, 1.0)
    assert measured_or_cached(path, lambda _: other, said.append) == other
    assert load(path) == other


@pytest.mark.parametrize(
    ("plain", "holds"),
    [(0.02, True), (0.0245, True), (0.0167, True), (0.0255, False), (0.0155, False)],
)
def test_an_earlier_measurement_holds_while_a_plain_step_takes_as_long(
    plain: float, holds: bool
) -> None:
    player = Clockwork(plain, {1: 1.0, 64: 3.0})
    found = measured(player, known=MEASURED)
    assert (found is MEASURED) == holds
    assert (set(player.rows) == {1}) == holds
    assert found.plain_seconds == pytest.approx(0.02 if holds else plain)


def test_an_unwritable_folder_is_said_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "verify_cost").write_text("a file where the folder should be")
    path = cache_path(tmp_path, "dp-1", "avx2", 2)
    said: list[str] = []
    assert measured_or_cached(path, lambda known: known or MEASURED, said.append) == MEASURED
    assert len(said) == 1
    assert str(path.parent) in said[0]
    assert "\n" not in said[0]


# --- the estimate --------------------------------------------------------------------------------


def test_before_anything_is_known() -> None:
    cost = VerifyCost()
    assert {m: cost.cost(m) for m in GRID} == pytest.approx(TYPICAL_COSTS)
    assert cost.plain_seconds() == 0.0
    cost.observe(8, 100, 0.5)  # says nothing without a plain step
    assert cost.cost(8, 100) == pytest.approx(TYPICAL_COSTS[8])


def test_between_and_beyond_the_points() -> None:
    cost = VerifyCost(MEASURED)
    assert cost.cost(3) == pytest.approx(1.2)
    assert cost.cost(12) == pytest.approx(2.4)
    assert cost.cost(128) == pytest.approx(10.0 + 64 * 4.5 / 32)
    short = VerifyCost(Measurement(0.02, {1: 1.0, 2: 1.1, 4: 1.5}))
    assert short.cost(8) == pytest.approx(2.3)
    table = cost.table()
    assert table[1] == 1.0
    assert all(a <= b for a, b in itertools.pairwise(table))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 300),
            st.integers(0, 40_000),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=60,
    )
)
def test_no_observation_breaks_it(steps: list[tuple[int, int, float]]) -> None:
    cost = VerifyCost(MEASURED)
    for m, context, seconds in steps:
        cost.observe(m, context, seconds)
        table = cost.table(context)
        assert table[1] == 1.0
        assert all(1.0 <= v < math.inf for v in table[1:])
        assert 0.0 < cost.plain_seconds(context) < math.inf


def play(cost: VerifyCost, true: dict[int, float], plain: float, steps: int, seed: int = 0) -> None:
    """Steps of random widths with 5 % noise, a third of them plain, one in 50 ten times as slow."""
    draws = random.Random(seed)
    exact = VerifyCost(Measurement(plain, true))
    for _ in range(steps):
        m = 1 if draws.random() < 0.33 else draws.randint(2, 64)
        slow = 10.0 if draws.random() < 0.02 else 1.0
        cost.observe(m, 100, plain * exact.cost(m) * math.exp(draws.gauss(0, 0.05)) * slow)


@pytest.mark.parametrize("speed", [1.0, 0.3, 3.0])
def test_real_steps_correct_a_wrong_prior(speed: float) -> None:
    """A prior from a busy machine: plain steps of another speed, V(m) half as large as it is."""
    wrong = Measurement(0.02 * speed, {m: 1 + (v - 1) / 2 for m, v in COSTS.items()})
    cost = VerifyCost(wrong)
    play(cost, COSTS, 0.02, 600)
    assert cost.plain_seconds(100) == pytest.approx(0.02, rel=0.15)
    for m in (2, 8, 16, 32, 64):
        assert cost.cost(m, 100) == pytest.approx(VerifyCost(MEASURED).cost(m), rel=0.15)


def test_noise_moves_little() -> None:
    cost = VerifyCost(MEASURED)
    play(cost, COSTS, 0.02, 300, seed=4)
    for m in GRID:
        assert cost.cost(m, 100) == pytest.approx(COSTS[m], rel=0.15)


def test_a_single_outlier_moves_little_and_a_change_is_believed() -> None:
    cost = VerifyCost(MEASURED)
    for _ in range(30):
        cost.observe(1, 10, 0.02)
    cost.observe(1, 10, 0.2)
    assert cost.plain_seconds(10) < 0.026
    for _ in range(6):
        cost.observe(1, 10, 0.06)
    assert cost.plain_seconds(10) == pytest.approx(0.06, rel=0.1)
    assert cost.cost(8, 10) == pytest.approx(COSTS[8], rel=0.05)


def test_it_asks_for_a_plain_step_when_it_can_not_tell() -> None:
    """Everything slow, or wide steps dear? Only a plain step tells."""
    cost = VerifyCost(MEASURED)
    cost.observe(1, 10, 0.02)
    assert not cost.is_unsure
    for _ in range(2):
        cost.observe(8, 10, 0.02 * COSTS[8] * 3)
    assert cost.is_unsure
    cost.observe(1, 10, 0.06)
    assert not cost.is_unsure
    assert cost.plain_seconds(10) == pytest.approx(0.06, rel=0.2)
    for _ in range(12):  # as the controller does
        m = 1 if cost.is_unsure else 8
        cost.observe(m, 10, 0.06 * COSTS[m])
    assert cost.plain_seconds(10) == pytest.approx(0.06, rel=0.15)
    assert cost.cost(8, 10) == pytest.approx(COSTS[8], rel=0.15)


def test_contexts_learn_apart_and_start_from_the_nearest() -> None:
    cost = VerifyCost(MEASURED)
    for _ in range(60):
        cost.observe(1, 100, 0.02)
        cost.observe(8, 100, 0.02 * 1.5 * COSTS[8])
    assert cost.cost(8, 100) == pytest.approx(1.5 * COSTS[8], rel=0.1)
    cost.observe(1, 3000, 0.03)
    assert cost.cost(8, 3000) > 1.2 * COSTS[8]
    for _ in range(60):
        cost.observe(1, 3000, 0.03)
        cost.observe(8, 3000, 0.03 * COSTS[8])
    assert cost.plain_seconds(3000) == pytest.approx(0.03, rel=0.05)
    assert cost.cost(8, 3000) == pytest.approx(COSTS[8], rel=0.1)
    assert cost.cost(8, 100) > 1.3 * COSTS[8]


def test_as_a_dictionary() -> None:
    value = VerifyCost(MEASURED).to_dict()
    assert value["plain_step_ms"] == pytest.approx(20)
    assert list(value["verify_cost"]) == [str(m) for m in GRID]
    assert (value["measured"], value["noisy"]) == (True, False)
    assert VerifyCost().to_dict()["measured"] is False
