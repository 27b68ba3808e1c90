"""Rotary frequencies as exact fractions of a turn. Knows no positions; the native side
multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

_TWO_PI = Decimal("6.283185307179586476925286766559005768394338798750211641949889184615632812572")


@dataclass(frozen=True)
class Yarn:
    """YaRN (arXiv 2309.00071): a model that was trained on `trained` positions turns its slow
    frequencies `factor` times slower, so that it can see `factor` times as many.

    A frequency that makes more than beta_fast turns within the trained positions stays as it is,
    one with less than beta_slow is slowed by the whole factor; in between a line from the one to
    the other, whose ends are moved to whole pairs (`truncate`). attention_factor: of cosine and
    sine; None = 0.1 ln(factor) + 1.
    """

    factor: float
    trained: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    @property
    def magnitude(self) -> float:
        """The factor of cosine and sine: scores get its square."""
        if self.attention_factor is not None:
            return self.attention_factor
        with localcontext() as context:
            context.prec = 60
            return float(Decimal(self.factor).ln() / 10 + 1)

    def divisors(self, theta: float, head_dim: int) -> list[Decimal]:
        """By what each of the head_dim / 2 frequencies theta^(-2j / head_dim) is divided."""
        with localcontext() as context:
            context.prec = 60
            low, high = (self._pair(beta, theta, head_dim) for beta in self._betas)
            if self.truncate:
                low = low.to_integral_value(ROUND_FLOOR)
                high = high.to_integral_value(ROUND_CEILING)
            low, high = max(low, Decimal(0)), min(high, Decimal(head_dim - 1))
            if low == high:
                high += Decimal("0.001")
            slowed = [
                min(max((j - low) / (high - low), Decimal(0)), Decimal(1))
                for j in range(head_dim // 2)
            ]
            return [1 / (s / Decimal(self.factor) + (1 - s)) for s in slowed]

    @property
    def _betas(self) -> tuple[float, float]:
        return self.beta_fast, self.beta_slow

    def _pair(self, turns: float, theta: float, head_dim: int) -> Decimal:
        """The pair, as a fraction, that makes so many turns within the trained positions."""
        wavelength = Decimal(self.trained) / (Decimal(turns) * _TWO_PI)
        return head_dim * wavelength.ln() / (2 * Decimal(theta).ln())


def rotary_turns(
    theta: float, head_dim: int, divide_by: Sequence[float | Decimal] | None = None
) -> NDArray[np.uint64]:
    """round(2^64 * inv_freq_j / 2 pi) for inv_freq_j = theta^(-2j / head_dim) [head_dim / 2].

    `divide_by` [head_dim / 2] scales the frequencies down (YaRN, or the tensor rope_freqs.weight of
    llama-3 files). Computed in decimal arithmetic, whose exp and ln are correctly rounded, so the
    integers are the same on every machine; libm's aren't.
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
