"""A seeded sample of a product of axes in which every pair of values of two axes occurs.

Owns the sampling only; what the axes mean, and how long a cell takes, is the tests' business.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

Axes = Mapping[str, Sequence[Any]]
Cell = dict[str, Any]
_Pair = tuple[int, int, int, int]  # axis, value, later axis, value: as indices


def whole(axes: Axes) -> list[Cell]:
    """Every cell of the product."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def pairwise(axes: Axes, at_least: int, seed: int = 0) -> list[Cell]:
    """Distinct cells that cover all pairs, filled up at random to `at_least` (or the product)."""
    rng = random.Random(seed)
    sizes = [len(values) for values in axes.values()]
    order = sorted(_all_pairs(sizes))
    rng.shuffle(order)
    open_pairs = set(order)
    chosen: dict[tuple[int, ...], None] = {}
    for pair in order:
        if pair in open_pairs:
            cell = _cell_around(pair, sizes, open_pairs, rng)
            open_pairs -= _pairs_of(cell)
            chosen[cell] = None
    while len(chosen) < min(at_least, math.prod(sizes)):
        chosen[tuple(rng.randrange(size) for size in sizes)] = None
    values = list(axes.values())
    return [
        {name: values[axis][i] for axis, (name, i) in enumerate(zip(axes, cell, strict=True))}
        for cell in chosen
    ]


def uncovered(axes: Axes, cells: Sequence[Cell]) -> set[_Pair]:
    """The pairs of values that no cell has."""
    names = list(axes)
    open_pairs = _all_pairs([len(values) for values in axes.values()])
    for cell in cells:
        open_pairs -= _pairs_of(tuple(list(axes[name]).index(cell[name]) for name in names))
    return open_pairs


def _all_pairs(sizes: Sequence[int]) -> set[_Pair]:
    return {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(sizes)), 2)
        for i in range(sizes[a])
        for j in range(sizes[b])
    }


def _pairs_of(cell: tuple[int, ...]) -> set[_Pair]:
    return {(a, cell[a], b, cell[b]) for a, b in itertools.combinations(range(len(cell)), 2)}


def _cell_around(
    pair: _Pair, sizes: Sequence[int], open_pairs: set[_Pair], rng: random.Random
) -> tuple[int, ...]:
    """A cell with that pair; each further axis takes the value that closes most open pairs."""
    first, i, second, j = pair
    cell = {first: i, second: j}
    rest = [axis for axis in range(len(sizes)) if axis not in cell]
    rng.shuffle(rest)
    for axis in rest:
        values = list(range(sizes[axis]))
        rng.shuffle(values)

        def closes(value: int, axis: int = axis) -> int:
            return sum(
                ((a, v, axis, value) if a < axis else (axis, value, a, v)) in open_pairs
                for a, v in cell.items()
            )

        cell[axis] = max(values, key=closes)
    return tuple(cell[axis] for axis in range(len(sizes)))
