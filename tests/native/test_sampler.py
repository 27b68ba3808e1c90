"""Player.sample against the definition once more in numpy (sampler_twin): always the same token."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import sampler_twin
from numpy.typing import NDArray
from programs import Bench, Rows, bits, play_flagged

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


def sample(
    player: Any,
    settings: list[dict[str, Any]],
    vocab_size: int = VOCAB,
    edits: Sequence[tuple[Any, ...]] = (),
) -> list[int]:
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
        edits,
    ).tolist()
    return ids


def edits_of(rng: np.random.Generator, rows: int) -> tuple[tuple[Any, ...], list[dict[str, Any]]]:
    """Random edits of `rows` rows of one request: as arrays of a call, and by the twin's names."""
    few = rng.integers(0, VOCAB, 40)
    prompt = rng.choice(few, rng.integers(0, 30)).tolist()
    output = rng.choice(few, rng.integers(rows - 1, 30)).tolist()
    penalties = rng.choice([0.5, 1.0, 1.2]), rng.choice([0, 0.7, -1]), rng.choice([0, 0.4, 2])
    bias = {int(t): float(b) for t, b in zip(few[:5], rng.uniform(-100, 100, 5), strict=True)}
    banned = few[5 : 5 + rng.integers(5)].tolist()
    banned_rows = int(rng.integers(rows + 1))
    allowed = None
    masks = None
    if rng.integers(2):
        allowed = rng.random((rows, 32 * (-(-VOCAB // 32)))) < rng.choice([0.01, 0.5])
        masks = np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)
    arrays = (
        np.array([*prompt, *output], np.int32),
        len(prompt),
        np.array(penalties, np.float32),
        np.array([*bias], np.int32),
        np.array([*bias.values()], np.float32),
        np.array(banned, np.int32),
        banned_rows,
        masks,
    )
    named = [
        {
            "prompt": prompt,
            "output": output[: len(output) + 1 - rows + i],
            **dict(zip(("repetition", "frequency", "presence"), penalties, strict=True)),
            "bias": tuple(bias.items()),
            "allowed": None if allowed is None else allowed[i, :VOCAB],
            "banned": banned if i < banned_rows else (),
        }
        for i in range(rows)
    ]
    return arrays, named


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


@pytest.mark.parametrize("threads", [1, 3])
def test_edits(bench: Bench, isa: str, threads: int) -> None:
    """Requests of several rows side by side, some edited and some not."""
    rng = np.random.default_rng(23)
    player = bench.player(isa, threads)
    changed = 0
    for start in range(0, 40 * ROWS, ROWS):
        maker = MAKERS[start // ROWS % len(MAKERS)]
        rows = np.stack([row_of(maker, start + i) for i in range(ROWS)])
        play_flagged(player, rows)
        settings, named, edits = [], [], []
        while len(settings) < ROWS:
            count = min(int(rng.integers(1, 6)), ROWS - len(settings))
            combo = tuple(rng.choice(choices) for choices in (TEMPERATURES, TOP_KS, TOP_PS, MIN_PS))
            combo = (combo[0], int(combo[1]), combo[2], combo[3])
            if rng.integers(4):
                arrays, names = edits_of(rng, count)
                edits.append((len(settings), count, *arrays))
                named += names
            else:
                named += [None] * count
            settings += [settings_of(rng, combo) for _ in range(count)]
        got = sample(player, settings, edits=edits)
        twin = [
            sampler_twin.sample_row(row, VOCAB, edits=edit, **setting)
            for row, setting, edit in zip(rows, settings, named, strict=True)
        ]
        assert got == twin
        changed += sum(a != b for a, b in zip(got, sample(player, settings), strict=True))
    assert changed > 100


def test_logprobs(bench: Bench, isa: str) -> None:
    player = bench.player(isa, 2)
    rng = np.random.default_rng(29)
    for maker in MAKERS:
        if maker is extreme:
            continue  # l - m overflows: no logprob
        rows = np.stack([row_of(maker, i) for i in range(ROWS)])
        play_flagged(player, rows)
        which = rng.integers(0, ROWS, 30).astype(np.int32)
        tokens = rng.integers(0, VOCAB, 30).astype(np.int32)
        chosen, ids, values = player.logprobs(which, tokens, 20, VOCAB)
        for i, (row, token) in enumerate(zip(which, tokens, strict=True)):
            logprob, top, logprobs = sampler_twin.logprobs_row(rows[row], VOCAB, token, 20)
            assert bits(chosen[i : i + 1]) == bits(np.array([logprob]))
            assert ids[20 * i : 20 * i + 20].tolist() == top
            assert np.array_equal(bits(values[20 * i : 20 * i + 20]), bits(logprobs))


def test_bad_edits_and_logprobs(bench: Bench) -> None:
    player = bench.player("scalar")
    rows = np.stack([row_of(peaked, i) for i in range(4)])
    play_flagged(player, rows)
    greedy = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    settings = [greedy | {"seed": 1, "output_index": 0, "choice_index": 0}] * 4
    empty = np.zeros(0, np.int32)
    good: list[Any] = [1, 2, np.array([3, 4], np.int32), 1, np.ones(3, np.float32)]
    good += [empty, np.zeros(0, np.float32), empty, 0, np.full((2, 47), 2**32 - 1, np.uint32)]
    assert sample(player, settings, edits=[tuple(good)]) == sample(player, settings)
    for place, value in (
        (0, 3),  # rows 3 and 4
        (0, -1),
        (1, 0),
        (1, 4),
        (2, np.zeros(1, np.int32)),  # fewer than the prompt and the draft
        (2, np.zeros(2, np.int64)),
        (3, 2),
        (4, np.ones(2, np.float32)),
        (5, np.zeros(1, np.int32)),  # an id without a bias
        (8, -1),
        (9, np.zeros((1, 47), np.uint32)),
        (9, np.zeros((2, 46), np.uint32)),
        (9, np.zeros((2, 47), np.int64)),
    ):
        bad = [*good]
        bad[place] = value
        with pytest.raises(ValueError, match=r"edits|masks|penalties|bias"):
            sample(player, settings, edits=[tuple(bad)])
    with pytest.raises(ValueError, match="ten fields"):
        sample(player, settings, edits=[tuple(good[:9])])
    one = np.zeros(1, np.int32)
    for args in ((one, empty, 1, 9), (one + 4, one, 1, 9), (one - 1, one, 1, 9)):
        with pytest.raises(ValueError, match="row"):
            player.logprobs(*args)
    for args in ((one, one, -1, 9), (one, one, 10, 9), (one, one, 1, 0), (one, one, 1, PADDED + 1)):
        with pytest.raises(ValueError, match="out of range"):
            player.logprobs(*args)
