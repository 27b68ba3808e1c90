"""When speculation pays: the cost model, from V(m) and an acceptance rate. Pure arithmetic.

A draft of k tokens, each right with probability a as long as those before it were, emits
E(a, k) = 1 + a + a² + ... + a^k tokens (the bonus token is the 1; Leviathan et al. 2023, eq. 1).
`exact` pays one step of k + 1 rows for them: speedup E ÷ V(k + 1). `replay` pays the same step as a
probe and then decodes all E tokens again, one row each: E ÷ (V(k + 1) + E), below 1 whatever a is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.config import MAX_DRAFT_TOKENS

ACCEPTANCES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
DRAFT_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 15, 31, 63)
# The fixed k to recommend is the best one at this acceptance: what copying text usually reaches.
REFERENCE_ACCEPTANCE = 0.8

Cost = Callable[[int], float]
"""V: rows of a step -> time in plain steps."""


def expected_tokens(acceptance: float, k: int) -> float:
    """E(a, k): tokens that one verify step is expected to emit."""
    return float(k + 1) if acceptance >= 1.0 else (1 - acceptance ** (k + 1)) / (1 - acceptance)


def exact_speedup(cost: Cost, acceptance: float, k: int) -> float:
    """Over plain decoding, drafting itself taken as free. k = 0: 1."""
    return expected_tokens(acceptance, k) / cost(k + 1) if k else 1.0


def replay_speedup(cost: Cost, acceptance: float, k: int) -> float:
    tokens = expected_tokens(acceptance, k)
    return tokens / (cost(k + 1) + tokens) if k else 1.0


def break_even(cost: Cost, k: int) -> float | None:
    """The least acceptance at which a draft of k tokens is no slower than plain decoding under
    `exact`; None if even acceptance 1 is slower. (`replay` has none: always None.)"""
    price = cost(k + 1)
    if price > k + 1:
        return None
    if price <= 1:
        return 0.0
    low, high = 0.0, 1.0  # E is increasing in a
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < price else (low, middle)
    return high


def best_k(
    cost: Cost, acceptance: float, ks: Sequence[int] = range(1, MAX_DRAFT_TOKENS + 1)
) -> int:
    """The k with the highest expected speedup under `exact`, the smallest of equals; 0 if none
    pays."""
    return max((0, *ks), key=lambda k: (exact_speedup(cost, acceptance, k), -k))


@dataclass(frozen=True)
class BreakEvenRow:
    """One draft length. cost: V(k + 1). break_even: acceptance, None = never. exact, replay:
    expected speedups, one per acceptance of the table."""

    k: int
    cost: float
    break_even: float | None
    exact: tuple[float, ...]
    replay: tuple[float, ...]


@dataclass(frozen=True)
class BreakEvenTable:
    """rows by k; best_k: per acceptance, over every k; recommended_k: at REFERENCE_ACCEPTANCE."""

    acceptances: tuple[float, ...]
    rows: tuple[BreakEvenRow, ...]
    best_k: tuple[int, ...]
    recommended_k: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; a break-even that doesn't exist is null."""
        return {
            "break_even": {str(row.k): row.break_even for row in self.rows},
            "recommended_k": self.recommended_k,
            "best_k": {f"{a:g}": k for a, k in zip(self.acceptances, self.best_k, strict=True)},
            "expected_speedup": {str(row.k): self._by_acceptance(row.exact) for row in self.rows},
            "replay": {
                "break_even": {str(row.k): None for row in self.rows},
                "recommended_k": 0,
                "expected_speedup": {
                    str(row.k): self._by_acceptance(row.replay) for row in self.rows
                },
            },
        }

    def _by_acceptance(self, speedups: Sequence[float]) -> dict[str, float]:
        return {f"{a:g}": s for a, s in zip(self.acceptances, speedups, strict=True)}


def break_even_table(
    cost: Cost,
    ks: Sequence[int] = DRAFT_LENGTHS,
    acceptances: Sequence[float] = ACCEPTANCES,
    max_k: int = MAX_DRAFT_TOKENS,
) -> BreakEvenTable:
    """max_k: the longest draft whose V is known; longer ones are neither shown nor recommended."""
    rows = tuple(
        BreakEvenRow(
            k,
            cost(k + 1),
            break_even(cost, k),
            tuple(exact_speedup(cost, a, k) for a in acceptances),
            tuple(replay_speedup(cost, a, k) for a in acceptances),
        )
        for k in ks
        if k <= max_k
    )
    lengths = range(1, max_k + 1)
    return BreakEvenTable(
        tuple(acceptances),
        rows,
        tuple(best_k(cost, a, lengths) for a in acceptances),
        best_k(cost, REFERENCE_ACCEPTANCE, lengths),
    )
