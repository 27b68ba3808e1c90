"""What every measured number means, in one place. Pure arithmetic on plain numbers.

tokens/s        tokens after the first ÷ time from the first token to the last: the prompt's own
                step yields the first token, so no prefill is in it.
speedup         tokens/s with speculation ÷ tokens/s without, medians of interleaved runs.
modelled        Σ over steps of V(rows of the step), in plain steps; plain decoding costs one per
                token. Free of the noise of the clock, so it shows what a wall clock can't.
acceptance rate accepted ÷ drafted. Mean acceptance length: tokens per try, bonus included,
                1 + accepted ÷ tries; both 0 where nothing was drafted.
V(m)            time of a step with m rows ÷ time of a step with one row.
spread          (largest − smallest) ÷ median of runs that should take the same time.
GB/s            10^9 bytes per second.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """0 for no values, so that an empty table can be shown."""
    return statistics.median(values) if values else 0.0


def spread(values: Sequence[float]) -> float:
    """(largest - smallest) / median; 0 for fewer than two values."""
    middle = median(values)
    return (max(values) - min(values)) / middle if len(values) > 1 and middle > 0 else 0.0


def ratio(numerator: float, denominator: float) -> float:
    """0 where the denominator is 0: a rate over no time."""
    return numerator / denominator if denominator > 0 else 0.0


def tokens_per_second(tokens: int, seconds: float) -> float:
    """The first token is not counted: it belongs to the prompt."""
    return ratio(max(tokens - 1, 0), seconds)


def gb_per_second(nbytes: float, seconds: float) -> float:
    return ratio(nbytes, seconds) / 1e9


def overall_speedup(tokens: Sequence[int], speedups: Sequence[float]) -> float:
    """Time for all prompts without ÷ with speculation, if a token without takes the same time in
    all of them: Σ tokens ÷ Σ tokens/speedup. So a long answer counts more than a short one, and one
    that was measured while the machine was slow no more than the others. 0 for nothing."""
    rows = [row for row in zip(tokens, speedups, strict=True) if min(row) > 0]
    return ratio(sum(n for n, _ in rows), sum(n / speedup for n, speedup in rows))


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values; 0 for none."""
    positive = [v for v in values if v > 0]
    return math.exp(statistics.fmean(map(math.log, positive))) if positive else 0.0


def token_digest(ids: Sequence[int]) -> str:
    """sha256 in hex over the ids as little-endian int32."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little", signed=True) for i in ids)).hexdigest()
