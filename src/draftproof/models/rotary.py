"""Rotary frequencies as exact fractions of a turn. Knows no positions; the native side
multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

_TWO_PI = Decimal("6.283185307179586476925286766559005768394338798750211641949889184615632812572")


def rotary_turns(
    theta: float, head_dim: int, divide_by: Sequence[float] | None = None
) -> NDArray[np.uint64]:
    """round(2^64 * inv_freq_j / 2 pi) for inv_freq_j = theta^(-2j / head_dim) [head_dim / 2].

    `divide_by` [head_dim / 2] scales the frequencies down (the tensor rope_freqs.weight of llama-3
    files). Computed in decimal arithmetic, whose exp and ln are correctly rounded, so the integers
    are the same on every machine; libm's aren't.
    """
    half = head_dim // 2
    turns = np.zeros(half, np.uint64)
    with localcontext() as context:
        context.prec = 60
        log_theta = Decimal(theta).ln()
        for j in range(half):
            inv_freq = (log_theta * -2 * j / head_dim).exp()
            if divide_by is not None:
                inv_freq /= Decimal(divide_by[j])
            turn = (inv_freq / _TWO_PI * 2**64).to_integral_value()
            turns[j] = int(turn) % 2**64
    return turns
