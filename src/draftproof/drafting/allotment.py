"""The draft budget of a step that several requests share: whose draft tokens are worth their rows.

Knows chances and costs; knows no request and no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def allot(
    chances: Sequence[Sequence[float]], speed: float, cost: Callable[[int], float], rows: int
) -> list[int]:
    """How many tokens of each draft may travel.

    chances[i][j]: how likely token j of draft i and all before it are right; never rising in j.
    speed: tokens per plain step of all requests that wait for this step. cost: V(m). rows: what
    travels anyway.

    The likeliest tokens go first, whosever they are, and as many of them as gain most: the sum of
    their chances, less the tokens that all requests lose while the longer step takes.
    """
    order = sorted(((c, i) for i, draft in enumerate(chances) for c in draft), reverse=True)
    plain = cost(rows)
    best = best_gain = expected = 0.0
    for k, (chance, _) in enumerate(order, 1):
        expected += chance
        gain = expected - speed * (cost(rows + k) / plain - 1.0)
        if gain > best_gain:
            best, best_gain = k, gain
    counts = [0] * len(chances)
    for _, i in order[: int(best)]:
        counts[i] += 1
    return counts
