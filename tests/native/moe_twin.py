"""A layer of experts once more in numpy, from the written arithmetic: row by row, expert by expert.

Knows no grouping, tiles or threads, nor the compiled module.
"""

from __future__ import annotations

import linear_twin
import numpy as np
from blocks import BlockType
from numpy.typing import NDArray
from row_twin import F32, LANES, Rows, fold, in_lanes, swiglu
from sampler_twin import exact_fma, exp_f32

Experts = tuple[BlockType, NDArray[np.uint8], int]  # type, rows of all experts, rows of one


def softmax(x: Rows) -> Rows:
    """One row: e = exp(x - max), its sum in sixteen virtual lanes, e / sum."""
    e = exp_f32(x - x.max())
    lanes = np.zeros(LANES, np.float32)
    for line in in_lanes(e):
        lanes = lanes + line
    result: Rows = e / fold(lanes)
    return result


def chosen(logits: Rows, used: int, renormalise: bool) -> tuple[list[int], list[np.float32]]:
    """Experts, likeliest first, the lower index among equals; and their probabilities."""
    p = softmax(logits)
    order = sorted(range(len(p)), key=lambda e: (-p[e], e))[:used]
    probabilities = [p[e] for e in order]
    if renormalise:
        total = F32(0)
        for value in probabilities:
            total = total + value
        probabilities = [value / total for value in probabilities]
    return order, probabilities


def _linear(experts: Experts, e: int, x: Rows) -> Rows:
    type_, data, out = experts
    return linear_twin.linear(type_, data[e * out : (e + 1) * out], out, x[None])[0]


def moe(
    x: Rows,
    logits: Rows,
    gate: Experts,
    up: Experts,
    down: Experts,
    used: int,
    renormalise: bool,
) -> Rows:
    """[rows, out], before the residual."""
    out = np.zeros((len(x), down[2]), np.float32)
    for r, row in enumerate(x):
        for e, p in zip(*chosen(logits[r], used, renormalise), strict=True):
            hidden = swiglu(_linear(gate, e, row), _linear(up, e, row))
            out[r] = exact_fma(p, _linear(down, e, hidden), out[r])
    return out
