"""Linear layers: any number of rows, threads and any row of the dispatch table give the bits of one
row at a time on the scalar row, and the kernel that was meant ran."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import plans
import pytest
from blocks import TYPES, BlockType, activations, weight_bytes
from numpy.typing import NDArray
from programs import Alone, Bench, bits, counted, play

from pairwise import Cell

SEED = 7
FLOAT_BLOCK = 37
MOST_ROWS = max(plans.ROWS)


def input_width(type_: BlockType, blocks: int) -> int:
    return blocks * (FLOAT_BLOCK if type_.is_float else type_.inputs)


class LinearCase:
    """One operation with its program, its inputs and the reference rows."""

    def __init__(
        self,
        type_name: str,
        weights: str,
        acts: str,
        outs: tuple[int, ...],
        blocks: int,
        extra: str,
    ) -> None:
        self.type = TYPES[type_name]
        self.outs = outs
        width = input_width(self.type, blocks)
        rng = np.random.default_rng(SEED)
        # Extra columns carry the residual.
        self.has_residual = "residual" in extra
        extra_width = outs[0] if self.has_residual else 0
        self.bench = bench = Bench(width + extra_width)
        x = bench.cut(0, width) if self.has_residual else bench.x
        ids: list[int] = []
        biases: list[int] = []
        buffers: list[int] = []
        for out in outs:
            data = weight_bytes(self.type, weights, out, width, SEED)
            ids.append(bench.weight(self.type.ggml, data, out, width))
            has_bias = "bias" in extra and len(biases) % 2 == 0  # the second output has none
            bias = rng.standard_normal(out).astype(np.float32)
            biases.append(bench.vector(bias) if has_bias else -1)
            buffers.append(bench.buffer(out))
        residual = bench.cut(width, extra_width) if self.has_residual else -1
        bench.program.linear(buffers, x, ids, biases, residual)
        bench.show(*zip(buffers, outs, strict=True))
        self.vectors = activations(acts, MOST_ROWS, width + extra_width, SEED)
        self.alone = Alone(bench.player("scalar"), self.vectors)

    def panel_calls(self, rows: int) -> dict[str, int]:
        """Kernel calls by tile that one forward makes, for a type of panels of sixteen outputs."""
        panels = sum(-(-out // 16) for out in self.outs)
        calls = dict.fromkeys(("m8", "m4", "m2", "m1"), 0)
        for first in range(0, rows, 32):
            n = min(32, rows - first)
            for tile, size in (("m8", 8), ("m4", 4), ("m2", 2), ("m1", 1)):
                calls[tile] += panels * (n // size)
                n %= size
        return {f"linear.{self.type.name}.{tile}": n for tile, n in calls.items() if n}


@lru_cache(maxsize=64)
def linear_case(
    type_name: str, weights: str, acts: str, outs: tuple[int, ...], blocks: int, extra: str
) -> LinearCase:
    return LinearCase(type_name, weights, acts, outs, blocks, extra)


def outs_and_extra(cell: Cell) -> tuple[tuple[int, ...], str]:
    """A residual goes with one output only."""
    outs = cell["outs"]
    return (outs[:1] if "residual" in cell["extra"] else outs), cell["extra"]


def sorted_for_cache(cells: Sequence[Cell], *names: str) -> list[Cell]:
    return sorted(cells, key=lambda cell: [str(cell[name]) for name in names])


@pytest.mark.parametrize("type_name", plans.TYPE_NAMES)
def test_every_batch_gives_the_bits_of_one_row(type_name: str, exhaustive: bool) -> None:
    cells = plans.linear_cells(type_name, exhaustive)
    done = 0
    for cell in sorted_for_cache(cells, "weights", "acts", "outs", "blocks", "extra"):
        outs, extra = outs_and_extra(cell)
        case = linear_case(type_name, cell["weights"], cell["acts"], outs, cell["blocks"], extra)
        player = case.bench.player(cell["isa"], cell["threads"])
        before = player.counters()
        rows = cell["rows"]
        # The last rows, so that a row's place in the batch differs between cells.
        out = play(player, case.vectors[MOST_ROWS - rows :])
        ran = {
            k: n for k, n in counted(player, before).items() if k.startswith(f"linear.{type_name}.")
        }
        assert np.array_equal(bits(out), bits(case.alone.last(rows))), cell
        if case.type.is_float:
            assert ran, cell
        else:
            assert ran == case.panel_calls(rows), cell
        done += 1
    assert done == len(cells) >= plans.LINEAR_CELLS_PER_TYPE


@pytest.mark.parametrize("type_name", plans.TYPE_NAMES)
def test_a_result_says_something(type_name: str) -> None:
    """The data of the cells: finite results, rows that differ, zeros only where they belong."""
    case = linear_case(type_name, "random", "normal", (41,), 2, "none")
    expected = case.alone.last(33)
    assert np.isfinite(expected).all()
    assert len(np.unique(expected, axis=0)) == 33
    assert np.count_nonzero(expected) > 0.99 * expected.size
    zeros = linear_case(type_name, "zeros", "normal", (41,), 2, "none")
    assert not zeros.alone.last(3).any()


@pytest.mark.parametrize("type_name", plans.TYPE_NAMES)
def test_swiglu(type_name: str, exhaustive: bool) -> None:
    cells = plans.swiglu_cells(type_name, exhaustive)
    benches: dict[tuple[str, int], tuple[Bench, int]] = {}
    expected: dict[tuple[str, int, str], Alone] = {}
    for cell in cells:
        gate, out = TYPES[type_name], cell["out"]
        up = gate if cell["up"] == "same" else TYPES[cell["up"]]
        key = (up.name, out)
        if key not in benches:
            width = 512
            bench = Bench(width)
            ids = [
                bench.weight(t.ggml, weight_bytes(t, "random", out, width, s), out, width)
                for s, t in ((1, gate), (2, up))
            ]
            hidden = bench.buffer(out)
            bench.program.swiglu_linear(hidden, bench.x, *ids)
            bench.show((hidden, out))
            benches[key] = bench, width
        bench, width = benches[key]
        inputs = (*key, cell["acts"])
        if inputs not in expected:
            x = activations(cell["acts"], MOST_ROWS, width, SEED) * np.float32(0.1)
            expected[inputs] = Alone(bench.player("scalar"), x)
        alone = expected[inputs]
        player = bench.player(cell["isa"], cell["threads"])
        before = player.counters()
        rows = cell["rows"]
        out_rows = play(player, alone.vectors[MOST_ROWS - rows :])
        ran = counted(player, before)
        assert np.array_equal(bits(out_rows), bits(alone.last(rows))), cell
        assert ran["swiglu_linear"] == 1
        assert any(name.startswith(f"linear.{type_name}.") for name in ran), cell
        assert any(name.startswith(f"linear.{up.name}.") for name in ran), cell
    assert len(cells) >= plans.SWIGLU_CELLS_PER_TYPE


@pytest.mark.parametrize("type_name", plans.TYPE_NAMES)
def test_order_and_neighbours_of_rows(type_name: str, isa: str) -> None:
    """A row's bits are the same wherever it stands and whatever stands beside it."""
    case = linear_case(type_name, "random", "normal", (41,), 2, "none")
    player = case.bench.player(isa, 2)
    order: NDArray[np.intp] = MOST_ROWS - 1 - np.random.default_rng(3).permutation(33)
    out = play(player, case.vectors[order])
    assert np.array_equal(bits(out), bits(case.alone.at(order)))
    same = play(player, np.repeat(case.vectors[-1:], 23, axis=0))
    assert np.array_equal(bits(same), np.repeat(bits(case.alone.last(1)), 23, axis=0))
