"""Player.sample against the definition once more in numpy (sampler_twin): always the same token."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sampler_twin
from numpy.typing import NDArray
from programs import Bench, Rows, play_flagged

VOCAB = 1500  # more than one block of 1024, not a multiple of 16
PADDED = 1536
ROWS = 24
TEMPERATURES = (0.0, 0.05, 0.8, 1.0, 3.0)
TOP_KS = (0, 1, 5, 40, 1200, VOCAB, VOCAB + 7)
TOP_PS = (1.0, 0.95, 0.5, 1e-6)
MIN_PS = (0.0, 0.02, 0.3, 1.0)

Maker = Callable[[np.random.Generator, int], NDArray[Any]]


def peaked(rng: np.random.Generator, n: int) -> NDArray[Any]:
    return rng.standard_normal(n) * 4


def flat(rng: np.random.Generator, n: int) -> NDArray[Any]:
    return rng.standard_normal(n) * 0.01


def tied(rng: np.random.Generator, n: int) -> NDArray[Any]:
    """Few values, so that every cut goes through equal logits; zeros of both signs."""
    return rng.choice([0.0, -0.0, 1.0, 1.5], n, p=[0.45, 0.45, 0.07, 0.03])


def all_equal(rng: np.random.Generator, n: int) -> NDArray[Any]:
    return rng.choice([0.0, -0.0], n)


def extreme(rng: np.random.Generator, n: int) -> NDArray[Any]:
    """Some weights underflow to 0, some logits overflow when divided by a small temperature."""
    return rng.standard_normal(n) * 10.0 ** rng.integers(-40, 38, n)


def one_winner(rng: np.random.Generator, n: int) -> NDArray[Any]:
    x = np.full(n, -1e30)
    x[rng.integers(n)] = 1e30
    return x


MAKERS: tuple[Maker, ...] = (peaked, flat, tied, all_equal, extreme, one_winner)


@pytest.fixture(scope="module")
def bench() -> Bench:
    bench = Bench(PADDED)
    bench.show((bench.x, PADDED))
    return bench


def row_of(maker: Maker, seed: int) -> Rows:
    """Logits [PADDED]; those of the padding are the greatest: they must never be chosen."""
    row = maker(np.random.default_rng(seed), PADDED).astype(np.float32)
    row[VOCAB:] = 3e38
    return row


def sample(player: Any, settings: list[dict[str, Any]], vocab_size: int = VOCAB) -> list[int]:
    def column(name: str, dtype: Any) -> NDArray[Any]:
        return np.array([s[name] for s in settings], dtype)

    ids: list[int] = player.sample(
        column("temperature", np.float32),
        column("top_k", np.int32),
        column("top_p", np.float32),
        column("min_p", np.float32),
        column("seed", np.uint64),
        column("output_index", np.uint32),
        column("choice_index", np.uint32),
        vocab_size,
    ).tolist()
    return ids


def settings_of(rng: np.random.Generator, combo: tuple[float, int, float, float]) -> dict[str, Any]:
    temperature, top_k, top_p, min_p = combo
    return {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": int(rng.integers(0, 2**64, dtype=np.uint64)),
        "output_index": int(rng.integers(0, 2**32)),
        "choice_index": int(rng.integers(0, 3)),
    }


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_combination(bench: Bench, maker: Maker, threads: int) -> None:
    """560 combinations on rows of their own, 24 at a time with different settings side by side."""
    rng = np.random.default_rng(17)
    combos = list(itertools.product(TEMPERATURES, TOP_KS, TOP_PS, MIN_PS))
    rng.shuffle(combos)
    player = bench.player("scalar", threads)
    chosen: set[int] = set()
    compared = 0
    for start in range(0, len(combos), ROWS):
        part = [(t, int(k), p, m) for t, k, p, m in combos[start : start + ROWS]]
        settings = [settings_of(rng, combo) for combo in part]
        rows = np.stack([row_of(maker, start + i) for i in range(len(settings))])
        play_flagged(player, rows)
        got = sample(player, settings)
        for row, setting, token in zip(rows, settings, got, strict=True):
            assert token == sampler_twin.sample_row(row, VOCAB, **setting), setting
            chosen.add(token)
            compared += 1
    assert compared == len(combos) == 560
    assert 0 <= min(chosen) <= max(chosen) < VOCAB
    assert len(chosen) > 20 or maker in (tied, all_equal)


def test_ties_go_to_the_lowest_id(bench: Bench) -> None:
    """At temperature 0; -0 equals +0."""
    player = bench.player("scalar")
    rows = np.full((4, PADDED), -1, np.float32)
    rows[0, [700, 64, 65]] = 2
    rows[1, 3], rows[1, 1400] = -0.0, 0.0
    rows[2, 3], rows[2, 1400] = 0.0, -0.0
    rows[3, 1499] = 5
    rows[:, VOCAB:] = 9
    play_flagged(player, rows)
    greedy = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    greedy |= {"seed": 1, "output_index": 0, "choice_index": 0}
    assert sample(player, [greedy] * 4) == [64, 3, 3, 1499]


def test_the_vocabulary_mask(bench: Bench) -> None:
    """A smaller vocabulary: ids behind it are never chosen, not even where they are not finite."""
    player = bench.player("scalar", 2)
    rng = np.random.default_rng(5)
    rows = np.stack([row_of(peaked, i) for i in range(ROWS)])
    rows[:, 333:] = np.nan
    play_flagged(player, rows)
    for vocab in (1, 2, 15, 16, 17, 333):
        combos = [(1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (2.0, 7, 0.9, 0.01)] * (ROWS // 3)
        settings = [settings_of(rng, combo) for combo in combos]
        got = sample(player, settings, vocab)
        twin = [sampler_twin.sample_row(r, vocab, **s) for r, s in zip(rows, settings, strict=True)]
        assert got == twin
        assert max(got) < vocab
    assert set(sample(player, settings, 334)) == {-1}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 63, 64, 1024, 1495, VOCAB - 1])
def test_a_row_that_is_not_finite_gives_no_token(bench: Bench, bad: float, at: int) -> None:
    player = bench.player("scalar", 2)
    rng = np.random.default_rng(6)
    rows = np.stack([row_of(peaked, i) for i in range(6)])
    combos = [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (1.0, 5, 0.9, 0.1)] * 2
    settings = [settings_of(rng, combo) for combo in combos]
    play_flagged(player, rows)
    before = sample(player, settings)
    rows[3:, at] = bad
    play_flagged(player, rows)
    assert sample(player, settings) == before[:3] + [-1] * 3


def test_the_random_number_depends_on_seed_and_both_indices(bench: Bench) -> None:
    """A flat row: nearly every other number is another token, and the same one comes back."""
    player = bench.player("scalar")
    base: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    base |= {"seed": 12345678901234567890, "output_index": 7, "choice_index": 1}
    others = [base | {"seed": base["seed"] + 1}, base | {"seed": base["seed"] % 2**32}]
    others += [base | {"output_index": 8}, base | {"choice_index": 0}]
    rows = np.stack([row_of(flat, 1)] * 6)
    play_flagged(player, rows)
    got = sample(player, [base, *others, base])
    assert got[0] == got[5]
    assert len(set(got)) == 5
    twin = [sampler_twin.sample_row(rows[0], VOCAB, **s) for s in (base, *others)]
    assert got[:5] == twin


def test_frequencies(bench: Bench) -> None:
    """Four tokens of known probability: 4,000 draws are where they should be."""
    player = bench.player("scalar", 2)
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])
    row = np.full(PADDED, -200, np.float32)
    row[[3, 500, 1100, 1400]] = np.log(probabilities)
    play_flagged(player, np.stack([row] * 100))
    counts = dict.fromkeys((3, 500, 1100, 1400), 0)
    for truncated in (0, 4):
        for start in range(0, 2000, 100):
            settings = [
                {"temperature": 1.0, "top_k": truncated, "top_p": 1.0, "min_p": 0.0, "seed": 99}
                | {"output_index": i, "choice_index": truncated}
                for i in range(start, start + 100)
            ]
            for token in sample(player, settings):
                counts[token] += 1
    share = np.array(list(counts.values())) / 4000
    assert np.abs(share - probabilities).max() < 0.03
