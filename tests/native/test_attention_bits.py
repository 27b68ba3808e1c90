"""Attention: any batch, any split over threads, spans and pages, and any row of the dispatch table
give the bits of one row at a time on the scalar row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import plans
import pytest
from blocks import activations
from numpy.typing import NDArray
from programs import Bench, Rows, arrays, bits, counted, one_by_one, play

from pairwise import Cell

SEED = 31
PAGE = 64
SPAN = 512
TILE_PAIRS = 48
LONGEST = max(plans.ATTENTION["length"])
PAGES = -(-LONGEST // PAGE)
FASTEST = plans.ISAS[-1]


class AttentionCase:
    """A sequence whose keys and values are in the cache, in shuffled pages."""

    def __init__(self, head_dim: int, kv_type: str, kv_heads: int, group: int, length: int) -> None:
        self.kv_heads, self.group, self.length = kv_heads, group, length
        q_width, kv_width = kv_heads * group * head_dim, kv_heads * head_dim
        self.bench = bench = Bench(
            q_width,
            kv_heads=kv_heads,
            head_dim=head_dim,
            kv_type=kv_type,
            pages=2 * PAGES,
        )
        # The vectors are the queries; keys are their last columns, values the first ones backwards.
        k = bench.cut(q_width - kv_width, kv_width)
        v = bench.picked(range(kv_width)[::-1])
        y = bench.buffer(q_width)
        bench.program.attention(y, bench.x, k, v, 0)
        bench.show((y, q_width))
        rng = np.random.default_rng([SEED, head_dim, length])
        self.pages = rng.permutation(2 * PAGES)[:PAGES].astype(np.int32)
        self.x = activations("normal", length, bench.width, SEED)
        self.x[length // 2] *= 4  # somewhere a score that stands out
        fast = bench.player(FASTEST, 2)
        for first in range(0, length, 128):
            play(fast, self.x[first : first + 128], first=first, pages=self.pages)
        self.digest = bench.kv.digest(self.pages, length)
        self._alone: dict[int, Rows] = {}

    def alone(self, rows: int) -> Rows:
        """The last rows, each in a call of its own on the scalar row; the newest is nearest."""
        out = []
        for at in range(self.length - rows, self.length):
            if at not in self._alone:
                # Rows far from the end are many: the fastest row stands in, every fifth is scalar.
                isa = "scalar" if self.length - at <= 4 or at % 5 == 0 else FASTEST
                self._alone[at] = self.last(self.bench.player(isa), at, 1)
            out.append(self._alone[at])
        return np.concatenate(out)

    def last(self, player: Any, first: int, rows: int) -> Rows:
        return play(player, self.x[first : first + rows], first=first, pages=self.pages)

    def shares_spans(self, rows: int, threads: int) -> bool:
        """Whether threads take spans (few tiles, more than one span) rather than whole tiles."""
        tile_rows = max(1, TILE_PAIRS // self.group)
        tiles = -(-rows // tile_rows)
        return self.length > SPAN and tiles * self.kv_heads < 4 * threads


def case_of(cell: Cell, cache: dict[Any, AttentionCase]) -> AttentionCase:
    key = (cell["head_dim"], cell["kv_type"], *cell["heads"], cell["length"])
    if key not in cache:
        cache.clear()  # one at a time: cells come sorted
        cache[key] = AttentionCase(*key)
    return cache[key]


def test_every_batch_gives_the_bits_of_one_row(exhaustive: bool) -> None:
    cells = plans.attention_cells(exhaustive)
    names = ("head_dim", "kv_type", "heads", "length")
    cache: dict[Any, AttentionCase] = {}
    paths: Counter[tuple[str, str]] = Counter()
    for cell in sorted(cells, key=lambda c: [str(c[name]) for name in names]):
        case = case_of(cell, cache)
        rows = cell["rows"]
        player = case.bench.player(cell["isa"], cell["threads"])
        before = player.counters()
        out = case.last(player, case.length - rows, rows)
        ran = counted(player, before)
        assert np.array_equal(bits(out), bits(case.alone(rows))), cell
        assert ran["attention"] == 1
        # The batch stored its keys and values again: the same bits.
        assert case.bench.kv.digest(case.pages, case.length) == case.digest, cell
        if case.length > SPAN:
            paths[
                "shared" if case.shares_spans(rows, cell["threads"]) else "walked", cell["isa"]
            ] += 1
    assert len(cells) >= plans.ATTENTION_CELLS + plans.WALKED_CELLS
    for isa in plans.ISAS:
        assert paths["shared", isa] >= 5, paths
        assert paths["walked", isa] >= 5, paths


@pytest.mark.parametrize("heads", [(2, 6), (1, 7), (3, 4)], ids=str)
def test_few_kv_heads_feed_many_threads(heads: tuple[int, int], isa: str) -> None:
    """The query heads of a KV head go to several threads where spans and tiles are too few."""
    kv_heads, group = heads
    apart: Counter[int] = Counter()
    for length in (40, 300, 700):
        case = AttentionCase(72, "f16", kv_heads, group, length)
        expected = case.alone(9)
        for threads in range(1, 9):
            player = case.bench.player(isa, threads)
            for rows in (1, 2, 8, 9):
                before = player.counters()
                out = case.last(player, length - rows, rows)
                ran = counted(player, before)
                assert np.array_equal(bits(out), bits(expected[-rows:])), (length, threads, rows)
                pieces = -(-rows // (TILE_PAIRS // group)) * kv_heads * (2 if length > SPAN else 1)
                split = ran.get("attention.heads_apart", 0)
                assert split == (1 if threads > pieces else 0)
                apart[threads] += split
    assert apart[1] == 0
    assert apart[8] >= 8


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
def test_prefill_chunks(kv_type: str, isa: str) -> None:
    """Chunks of 1, 7, 64 or all: the same results and the same bits in the cache."""
    length = 150
    case = AttentionCase(24, kv_type, 2, 3, length)
    expected = case.alone(length)
    for chunk in (1, 7, 64, length):
        if chunk == 1 and isa == "scalar":
            continue  # the reference itself
        pages = case.pages[::-1].copy()
        got = []
        for first in range(0, length, chunk):
            part = case.x[first : first + chunk]
            got.append(play(case.bench.player(isa, 2), part, first=first, pages=pages))
        assert np.array_equal(bits(np.concatenate(got)), bits(expected)), chunk
        assert case.bench.kv.digest(pages, length) == case.digest


def test_rows_behind_the_end_are_never_read(isa: str) -> None:
    """What a rejected draft left in the pages, NaN and infinity included, changes nothing."""
    case = AttentionCase(16, "f32", 1, 3, 70)
    expected = case.alone(3)
    poison = np.full((20, case.bench.width), np.nan, np.float32)
    poison[::2] = np.inf
    poison[::3] = -3e38
    player = case.bench.player(isa, 2)
    flags = player.forward(**arrays(20, first=70, pages=case.pages), vectors=poison)
    assert flags.all()
    assert np.array_equal(bits(case.last(player, 67, 3)), bits(expected))
    assert case.bench.kv.digest(case.pages, 70) == case.digest


def test_a_rejected_draft_leaves_no_trace(isa: str) -> None:
    """Wrong rows are overwritten: afterwards the cache is as if they had never been."""
    case = AttentionCase(24, "f16", 2, 3, 131)
    expected = case.alone(20)
    wrong = activations("normal", 131, case.bench.width, SEED + 1)
    player = case.bench.player(isa, 2)
    for place in range(1, 20):
        first = 131 - 20
        drafted = np.concatenate([case.x[first : first + place], wrong[first + place :]])
        play(player, drafted, first=first, pages=case.pages)
        if place < 19:
            assert case.bench.kv.digest(case.pages, 131) != case.digest
        out = case.last(player, first + place, 20 - place)
        assert np.array_equal(bits(out), bits(expected[place:])), place
        assert case.bench.kv.digest(case.pages, 131) == case.digest


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_sequences_in_one_batch(isa: str, threads: int) -> None:
    """Rows of several sequences, of one row and of many, at different lengths, in one call."""
    head_dim, kv_heads, group = 24, 2, 3
    lengths, takes = (5, 600, 66, 1, 130), (5, 2, 17, 1, 40)
    width = kv_heads * (group + 2) * head_dim
    bench = Bench(width, kv_heads=kv_heads, head_dim=head_dim, kv_type="bf16", pages=40)
    q_width, kv_width = kv_heads * group * head_dim, kv_heads * head_dim
    q, k = bench.cut(0, q_width), bench.cut(q_width, kv_width)
    v, y = bench.cut(q_width + kv_width, kv_width), bench.buffer(q_width)
    bench.program.attention(y, q, k, v, 0)
    bench.show((y, q_width))
    order = np.random.default_rng(SEED).permutation(40).astype(np.int32)
    tables: list[NDArray[np.int32]] = []
    inputs, alone = [], []
    fast = bench.player(FASTEST)
    for i, (length, take) in enumerate(zip(lengths, takes, strict=True)):
        pages = -(-length // PAGE)
        table, order = order[:pages], order[pages:]
        x = activations("normal", length, width, SEED + i)
        for first in range(0, length, 128):
            play(fast, x[first : first + 128], first=first, pages=table)
        scalar, first = bench.player("scalar"), length - take
        alone.append(one_by_one(scalar, x[first:], first=first, pages=table))
        tables.append(table)
        inputs.append(x[length - take :])
    digests = [bench.kv.digest(t, n) for t, n in zip(tables, lengths, strict=True)]
    starts = np.concatenate([[0], np.cumsum([len(t) for t in tables])])
    segments = [
        (take, length - take, int(start))
        for take, length, start in zip(takes, lengths, starts[:-1], strict=True)
    ]
    out = play(
        bench.player(isa, threads),
        np.concatenate(inputs),
        segments=segments,
        pages=np.concatenate(tables),
    )
    assert np.array_equal(bits(out), bits(np.concatenate(alone)))
    assert digests == [bench.kv.digest(t, n) for t, n in zip(tables, lengths, strict=True)]


def test_what_is_stored(isa: str) -> None:
    """Rounding of keys and values: the digest is that of the same values rounded beforehand."""
    from row_twin import stored

    values = np.array(
        (
            *(1, 1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519.9, 65520, 1e6, 1e38, 2**-14, 2**-24),
            *(2**-25, 1.0000001 * 2**-25, 3e-6, 1e-40, 1.00390625, 1.01171875),
        ),
        np.float32,
    )
    values = np.concatenate([values, -values])
    for kv_type in ("f16", "bf16"):
        bench = Bench(48, head_dim=16, kv_type=kv_type, pages=4)
        q, k, v = (bench.cut(16 * i, 16) for i in range(3))
        y = bench.buffer(16)
        bench.program.attention(y, q, k, v, 0)
        bench.show((y, 16))
        x = np.zeros((1, 48), np.float32)
        x[0, 16:] = values
        player = bench.player(isa)
        rounded = stored(x, kv_type)
        rounded[rounded == 0] = 0  # unit matrices turn -0 into +0 ...
        x[rounded == 0] = np.abs(x[rounded == 0])  # ... so nothing may round to -0
        assert not np.array_equal(bits(rounded), bits(x))
        player.forward(**arrays(1, pages=[0]), vectors=x)
        bench.player("scalar").forward(**arrays(1, pages=[1]), vectors=rounded)
        one = np.array([0], np.int32)
        assert bench.kv.digest(one, 1) == bench.kv.digest(one + 1, 1)
