"""Norm, rotation and embedding: any batch, any thread count and any row of the dispatch table give
the bits of one row at a time on the scalar row."""

from __future__ import annotations

import numpy as np
import plans
import pytest
from blocks import TYPES, activations, weight_bytes
from linear_twin import dequantize
from numpy.typing import NDArray
from programs import Alone, Bench, bits, counted, one_by_one, play

from draftproof.models.rotary import rotary_turns
from pairwise import Cell

SEED = 11
MOST_ROWS = max(plans.ROWS)


def test_rms_norm(exhaustive: bool) -> None:
    cells = plans.norm_cells(exhaustive)
    benches: dict[tuple[tuple[int, int], float], Bench] = {}
    alone: dict[tuple[tuple[int, int], float, str], Alone] = {}
    for cell in cells:
        (width, n), eps, acts = cell["shape"], cell["eps"], cell["acts"]
        if ((width, n), eps) not in benches:
            bench = Bench(width)
            rng = np.random.default_rng(SEED)
            y = bench.buffer(width)
            weight = bench.vector(rng.standard_normal(n).astype(np.float32))
            bench.program.rms_norm(y, bench.x, weight, eps)
            bench.show((y, width))
            benches[(width, n), eps] = bench
        bench = benches[(width, n), eps]
        key = ((width, n), eps, acts)
        if key not in alone:
            x = activations(acts, MOST_ROWS, width, SEED)
            alone[key] = Alone(bench.player("scalar"), x)
        player, rows = bench.player(cell["isa"], cell["threads"]), cell["rows"]
        before = player.counters()
        out = play(player, alone[key].vectors[MOST_ROWS - rows :])
        assert counted(player, before)["rms_norm"] == 1
        assert np.array_equal(bits(out), bits(alone[key].last(rows))), cell
    assert len(cells) >= plans.NORM_CELLS


def test_rope(exhaustive: bool) -> None:
    cells = plans.rope_cells(exhaustive)
    benches: dict[tuple[int, int, str], Bench] = {}
    alone: dict[tuple[int, int, str, int, int], NDArray[np.uint32]] = {}
    for cell in cells:
        head_dim, heads, axes = cell["head_dim"], cell["heads"], cell["axes"]
        if (head_dim, heads, axes) not in benches:
            # Two buffers, as q and k: the second has one head.
            bench = Bench((heads + 1) * head_dim)
            q = bench.cut(0, heads * head_dim)
            k = bench.cut(heads * head_dim, head_dim)
            which = np.zeros(head_dim // 2, np.uint8)
            if axes == "three":
                which[:] = np.arange(head_dim // 2) % 3
            bench.program.rope([q, k], head_dim, rotary_turns(1e6, head_dim), which)
            bench.show((q, heads * head_dim), (k, head_dim))
            benches[head_dim, heads, axes] = bench
        bench = benches[head_dim, heads, axes]
        x = activations("normal", MOST_ROWS, bench.width, SEED)
        positions = cell["first"] + np.arange(MOST_ROWS)[:, None] + np.array([[0, 7, -3]])
        positions = np.maximum(positions, 0).astype(np.int32)
        rows = cell["rows"]

        def alone_at(
            i: int,
            bench: Bench = bench,
            x: NDArray[np.float32] = x,
            positions: NDArray[np.int32] = positions,
            cell: Cell = cell,
        ) -> NDArray[np.uint32]:
            key = (cell["head_dim"], cell["heads"], cell["axes"], cell["first"], i)
            if key not in alone:
                out = play(bench.player("scalar"), x[i : i + 1], positions=positions[i : i + 1])
                alone[key] = bits(out)
            return alone[key]

        expected = np.concatenate([alone_at(i) for i in range(MOST_ROWS - rows, MOST_ROWS)])
        player = bench.player(cell["isa"], cell["threads"])
        before = player.counters()
        out = play(player, x[-rows:], positions=positions[-rows:])
        assert np.array_equal(bits(out), expected), cell
        assert counted(player, before)["rope"] == 1
        assert not np.array_equal(bits(out), bits(x[-rows:]))  # it did rotate
    assert len(cells) >= plans.ROPE_CELLS


@pytest.mark.parametrize("type_name", plans.TYPE_NAMES)
@pytest.mark.parametrize("kind", ["random", "max", "denormal", "huge", "negative"])
def test_embedding_is_the_dequantized_row(type_name: str, kind: str, isa: str) -> None:
    """Vocabulary of 41 rows: the last panel is not full. Tokens in any order, some twice."""
    type_, vocab = TYPES[type_name], 41
    width = 74 if type_.is_float else 2 * type_.inputs
    data = weight_bytes(type_, kind, vocab, width, SEED)
    bench = Bench(width, table=(type_.ggml, data, vocab))
    bench.show((bench.x, width))
    expected = bits(dequantize(type_, data, vocab, width))
    tokens = np.concatenate([np.arange(vocab), [0, 40, 0, 16]]).astype(np.int32)[::-1].copy()
    rows = len(tokens)
    every = np.arange(rows, dtype=np.int32)
    for threads in (1, 3):
        player = bench.player(isa, threads)
        flags = player.forward(
            tokens,
            np.zeros((rows, 3), np.int32),
            np.array([[rows, 0, 0]], np.int32),
            np.zeros(1, np.int32),
            every,
        )
        assert not flags.any()
        assert np.array_equal(bits(player.logits()), expected[tokens])


def test_vectors_and_marked_rows_go_through_unchanged(isa: str) -> None:
    """Bits in, the same bits out, of the rows that are marked, in order."""
    bench = Bench(33)
    bench.show((bench.x, 33))
    rng = np.random.default_rng(SEED)
    words = rng.integers(0, 2**32, (50, 33), dtype=np.uint32)
    x = words.view(np.float32)
    player = bench.player(isa, 2)
    for marked in ([], [0], [49], [3, 4, 17, 40], range(50)):
        player.forward(
            -1 - np.arange(50, dtype=np.int32),
            np.zeros((50, 3), np.int32),
            np.array([[50, 0, 0]], np.int32),
            np.zeros(1, np.int32),
            np.array(marked, np.int32),
            x,
        )
        assert player.logits().shape == (len(marked), 33)
        assert np.array_equal(player.logits().view(np.uint32), words[list(marked)])


def test_one_by_one_is_what_it_says(isa: str) -> None:
    """The reference itself: one row per call."""
    bench = Bench(16)
    bench.show((bench.x, 16))
    x = activations("normal", 5, 16, SEED)
    player = bench.player(isa)
    before = player.counters()
    assert np.array_equal(bits(one_by_one(player, x)), bits(x))
    assert counted(player, before)["embed"] == 5
