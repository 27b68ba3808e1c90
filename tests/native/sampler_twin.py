"""The sampler's definition (csrc/sampler.h) once more, in float32 numpy: the oracle of the tests.

Owns: exact fma, exp, Philox and the choice of one token, step by step and without shortcuts
(everything is sorted). Doesn't know the compiled module. Meant to be read, not to be fast: about
30 ms for a row of 150,000 logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = np.float32
Row = NDArray[np.float32]

Pairs = Sequence[tuple[int, float]]

EXP_HI = F32(88.0)
EXP_LO = F32(-69.0)
LOG2E = F32(1.44269504088896341)
LN2_HI = F32(0.693145751953125)
LN2_LO = F32(1.42860682030941723212e-6)
EXP_MAGIC = F32(1.5 * 2**23)
EXP_C = [
    F32(float.fromhex(c))
    for c in ("0x1.6a241ap-10", "0x1.1239f2p-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2")
]

LOG_SQRT_HALF_BITS = 0x3F3504F3
LOG_C = [
    F32(float.fromhex(c))
    for c in (
        *("-0x1.38c1aep-4", "0x1.05649ap-3", "-0x1.0d875ap-3", "0x1.22d90ap-3"),
        *("-0x1.5471f6p-3", "0x1.99a012p-3", "-0x1.000228p-2", "0x1.555554p-2"),
    )
]

LANES = 16
DRAW_BLOCK = 1024
MASK32 = 0xFFFFFFFF


def exact_fma(a: Row | F32, b: Row | F32, c: Row | F32) -> Row:
    """a * b + c with one rounding, elementwise, finite values only.

    The product of two float32 is exact in double; the sum is rounded to odd there (its error comes
    from TwoSum), which makes the second rounding, to float32, the only one that counts.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    addend_part = total - product
    error = (product - (total - addend_part)) + (addend - addend_part)
    bits = np.atleast_1d(total).view(np.int64).reshape(total.shape)
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0), bits + step, bits)
    return np.asarray(odd, np.int64).view(np.float64).astype(F32)


def exp_f32(x: Row) -> Row:
    """exp of a one-dimensional float32 array; steps and order as in csrc/simd/exp_spec.h."""
    clamped = np.minimum(np.maximum(x, EXP_LO), EXP_HI)
    t = clamped * LOG2E + EXP_MAGIC  # numpy rounds after the product and after the sum
    n = t - EXP_MAGIC
    r = exact_fma(n, -LN2_HI, clamped)
    r = exact_fma(n, -LN2_LO, r)
    p = np.full_like(r, EXP_C[0])
    for c in EXP_C[1:]:
        p = exact_fma(p, r, c)
    y = exact_fma(p, r * r, r) + F32(1.0)
    scaled = (y.view(np.int32) + (n.astype(np.int32) << 23)).astype(np.int32).view(F32)
    result: Row = np.where(x < EXP_LO, F32(0.0), scaled)
    return result


def log_f32(x: F32) -> F32:
    """log of a normal number; steps and order as in csrc/simd/log_spec.h."""
    bits = int(np.array(x, F32).view(np.int32))
    e = (bits - LOG_SQRT_HALF_BITS) >> 23
    m = np.array(bits - (e << 23), np.int32).view(F32)
    n, f = F32(e), m - F32(1.0)
    f2 = f * f
    p: Row | F32 = LOG_C[0]
    for c in LOG_C[1:]:
        p = exact_fma(p, f, c)
    y = exact_fma(n, LN2_LO, (f * f2) * p)
    y = exact_fma(F32(-0.5), f2, y)
    return F32(exact_fma(n, LN2_HI, f + y))


def philox_4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Four 32-bit words (J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0 = 0xD2511F53 * c0
        p1 = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0 = (k0 + 0x9E3779B9) & MASK32
        k1 = (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def sampling_uniform(seed: int, output_index: int, choice_index: int) -> F32:
    """The multiple of 2^-24 in [0, 1) that decides one token."""
    words = philox_4x32_10((output_index, choice_index, 0, 0), (seed & MASK32, seed >> 32))
    u: F32 = F32((words[0] >> 8) * 2.0**-24)
    return u


def running_sums(values: Row) -> Row:
    """Sums in order, starting from +0. (np.sum adds pairwise; accumulate adds one by one.)"""
    return np.add.accumulate(values, dtype=F32)


def sum_lanes(weights: Row) -> F32:
    """Sixteen lanes (index mod 16, ascending, padded with +0), then folded +8, +4, +2, +1."""
    padded = np.zeros(-(-len(weights) // LANES) * LANES, F32)
    padded[: len(weights)] = weights
    lanes = np.add.accumulate(padded.reshape(-1, LANES), axis=0, dtype=F32)[-1]
    for step in (8, 4, 2, 1):
        lanes = lanes[:step] + lanes[step : 2 * step]
    total: F32 = lanes[0]
    return total


def draw_from_row(weights: Row, u: F32) -> int:
    """Nothing is truncated: blocks of 1024 ids, then one by one inside the block."""
    starts = range(0, len(weights), DRAW_BLOCK)
    sums = [sum_lanes(weights[start : start + DRAW_BLOCK]) for start in starts]
    after = running_sums(np.array(sums, F32))
    target = u * after[-1]
    block = int(np.argmax(after > target))
    before = after[block - 1] if block > 0 else F32(0.0)
    inside = weights[block * DRAW_BLOCK : (block + 1) * DRAW_BLOCK]
    running = running_sums(np.concatenate([np.array([before], F32), inside]))[1:]
    past = np.flatnonzero(running > target)
    chosen = past[0] if len(past) else np.flatnonzero(inside > 0)[-1]
    return block * DRAW_BLOCK + int(chosen)


def draw_from_prefix(ids: NDArray[np.intp], weights: Row, u: F32) -> int:
    running = running_sums(weights)
    return int(ids[np.argmax(running > u * running[-1])])


def logprobs_row(logits: Row, vocab_size: int, token: int, top: int) -> tuple[F32, list[int], Row]:
    """(logprob of token, the likeliest ids, their logprobs), by csrc/logprobs.h."""
    row = np.asarray(logits[:vocab_size], F32)
    below = row - row.max()
    values = below - log_f32(sum_lanes(exp_f32(below)))
    ids = np.argsort(-row, kind="stable")[:top]
    return values[token], ids.tolist(), values[ids]


def edit_row(
    row: Row,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
    bias: Pairs = (),
    allowed: NDArray[np.bool_] | None = None,
    banned: Sequence[int] = (),
) -> Row | None:
    """The edited row [vocab], by csrc/logit_edits.h; None if it can't be used."""
    row = row.copy()
    inside = range(len(row))
    with np.errstate(over="ignore"):
        for token in {*prompt, *output} & {*inside}:
            above = row[token] > 0
            row[token] = row[token] / F32(repetition) if above else row[token] * F32(repetition)
            if count := list(output).count(token):
                row[token] = row[token] - F32(frequency) * F32(count)
                row[token] = row[token] - F32(presence)
        for token, value in bias:
            row[token] = row[token] + F32(value)
    if not np.isfinite(row).all():
        return None
    if allowed is not None:
        row[~allowed] = -np.inf
    after = row.copy()
    after[[token for token in banned if token in inside]] = -np.inf
    return after if after.max() > -np.inf else row


def sample_row(
    logits: Row,
    vocab_size: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    output_index: int = 0,
    choice_index: int = 0,
    edits: Mapping[str, Any] | None = None,
) -> int:
    """The token of one row of logits [>= vocab_size]; -1 if one below vocab_size is not finite.

    temperature 0: greedy; top_k 0, top_p 1, min_p 0: off. edits: arguments of edit_row.
    """
    row = np.asarray(logits[:vocab_size], F32)
    if len(row) == 0 or not np.isfinite(row).all():
        return -1
    if edits is not None:
        edited = edit_row(row, **edits)
        if edited is None or edited.max() == -np.inf:
            return -1
        row = edited
    if not F32(temperature) > 0:
        return int(np.argmax(row))  # numpy returns the first of equal values
    with np.errstate(over="ignore", under="ignore"):
        z = row / F32(temperature)
        z_max = z.max()
        if not np.isfinite(z_max):
            return int(np.argmax(row))
        weights = exp_f32(z - z_max)
    u = sampling_uniform(seed, output_index, choice_index)

    top_k_on = 0 < top_k < vocab_size
    top_p_on = F32(top_p) < 1
    if not (top_k_on or top_p_on or F32(min_p) > 0):
        return draw_from_row(weights, u)

    ids = np.argsort(-z, kind="stable")  # z descending, then id ascending; -0 equals +0
    if top_k_on:
        ids = ids[:top_k]
    if top_p_on:
        running = running_sums(weights[ids])
        normaliser = running[-1] if top_k_on else sum_lanes(weights)
        enough = np.flatnonzero(running >= F32(top_p) * normaliser)
        if len(enough):
            ids = ids[: enough[0] + 1]
    kept = weights[ids]
    too_small = np.flatnonzero((kept < F32(min_p)) | (kept == 0))
    too_small = too_small[too_small > 0]  # one candidate always stays
    if len(too_small):
        ids = ids[: too_small[0]]
    return draw_from_prefix(ids, weights[ids], u)
