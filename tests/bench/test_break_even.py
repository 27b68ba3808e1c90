"""The cost model against sums worked out by hand, and against plain simulation."""

from __future__ import annotations

import random

import pytest

from draftproof.bench.break_even import (
    best_k,
    break_even,
    break_even_table,
    exact_speedup,
    expected_tokens,
    replay_speedup,
)


def flat(rows: int) -> float:
    """Verifying is free."""
    return 1.0


def linear(rows: int) -> float:
    """Verifying is worth nothing: a row costs a step."""
    return float(rows)


def halfway(rows: int) -> float:
    return 1.0 + 0.5 * (rows - 1)


@pytest.mark.parametrize(
    ("acceptance", "k", "tokens"),
    [
        (0.0, 4, 1.0),
        (1.0, 4, 5.0),
        (0.5, 1, 1.5),
        (0.5, 2, 1.75),
        (0.5, 3, 1.875),
        (0.9, 2, 1 + 0.9 + 0.81),
        (0.3, 0, 1.0),
    ],
)
def test_expected_tokens(acceptance: float, k: int, tokens: float) -> None:
    assert expected_tokens(acceptance, k) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("cost", "k", "acceptance"),
    [
        (flat, 1, 0.0),  # any acceptance gains
        (halfway, 1, 0.5),  # 1 + a = 1.5
        (halfway, 2, 0.618034),  # 1 + a + a² = 2: the golden ratio
        (linear, 1, 1.0),  # 1 + a = 2
        (lambda m: 1.2 * m, 1, None),  # even five right drafts are dearer than five steps
        (lambda m: 1.2 * m, 4, None),
    ],
)
def test_break_even_truth_table(cost: object, k: int, acceptance: float | None) -> None:
    found = break_even(cost, k)  # type: ignore[arg-type]
    assert found == (None if acceptance is None else pytest.approx(acceptance, abs=1e-6))


@pytest.mark.parametrize("k", [1, 3, 8, 15])
def test_at_break_even_speed_is_that_of_plain_decoding(k: int) -> None:
    found = break_even(halfway, k)
    assert found is not None
    assert exact_speedup(halfway, found, k) == pytest.approx(1.0)
    assert exact_speedup(halfway, found + 0.01, k) > 1 > exact_speedup(halfway, found - 0.01, k)


@pytest.mark.parametrize("cost", [flat, halfway, linear])
def test_replay_never_pays(cost: object) -> None:
    table = break_even_table(cost)  # type: ignore[arg-type]
    assert all(speedup < 1 for row in table.rows for speedup in row.replay)
    # Free verifying, everything accepted: still k + 1 steps and the probe for k + 1 tokens.
    assert replay_speedup(flat, 1.0, 3) == pytest.approx(4 / 5)
    replay = table.to_dict()["replay"]
    assert replay["recommended_k"] == 0
    assert set(replay["break_even"].values()) == {None}


def test_model_agrees_with_rolling_dice() -> None:
    draws, k, acceptance = random.Random(1), 5, 0.7
    steps = 20_000
    tokens = 0
    for _ in range(steps):
        accepted = 0
        while accepted < k and draws.random() < acceptance:
            accepted += 1
        tokens += accepted + 1
    assert tokens / steps == pytest.approx(expected_tokens(acceptance, k), rel=0.01)


def test_best_k() -> None:
    assert best_k(linear, 0.99) == 0
    assert best_k(flat, 1.0) == 63
    assert best_k(flat, 0.0) == 0
    # A kernel that takes 8 rows for the price of one, and 9 for twice it.
    assert best_k(lambda m: float(-(-m // 8)), 0.8) == 7


def test_table_leaves_out_drafts_whose_cost_is_unknown() -> None:
    table = break_even_table(flat, max_k=7)
    assert [row.k for row in table.rows] == [1, 2, 3, 4, 5, 7]
    assert table.recommended_k == 7
    shown = table.to_dict()
    assert shown["break_even"]["7"] == 0.0
    assert shown["best_k"]["1"] == 7
    assert shown["expected_speedup"]["3"]["1"] == pytest.approx(4.0)
