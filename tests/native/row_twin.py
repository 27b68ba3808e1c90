"""Norm, rotation, SwiGLU and attention once more in numpy, from the written arithmetic.

Owns the order of every step, in float32 (double for the rotary polynomials). Doesn't know the
compiled module, nor pages, tiles or threads. Slow and meant to be read.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from linear_twin import quantize
from numpy.typing import NDArray
from sampler_twin import exact_fma, exp_f32

F32 = np.float32
LANES = 16
SPAN = 512
Rows = NDArray[np.float32]


def fold(lanes: Rows) -> Rows:
    """[16, ...] -> [...]: +8, +4, +2, +1."""
    for step in (8, 4, 2, 1):
        lanes = lanes[:step] + lanes[step : 2 * step]
    total: Rows = lanes[0]
    return total


def in_lanes(x: Rows, missing: float = 0.0) -> Rows:
    """[n] -> [ceil(n / 16), 16]: element i in lane i mod 16."""
    padded = np.full(-(-len(x) // LANES) * LANES, missing, np.float32)
    padded[: len(x)] = x
    return padded.reshape(-1, LANES)


def rms_norm(x: Rows, weight: Rows, eps: float) -> Rows:
    """One group [n]."""
    lanes = np.zeros(LANES, np.float32)
    for line in in_lanes(x):
        lanes = exact_fma(line, line, lanes)
    mean = fold(lanes) / F32(len(x))
    r = F32(1.0) / np.sqrt(mean + F32(eps))
    result: Rows = (x * r) * weight
    return result


def layer_norm(x: Rows, weight: Rows, bias: Rows, eps: float) -> Rows:
    lanes = np.zeros(LANES, np.float32)
    for line in in_lanes(x):
        lanes = lanes + line
    d = x - fold(lanes) / F32(len(x))
    lanes = np.zeros(LANES, np.float32)
    for line in in_lanes(d):
        lanes = exact_fma(line, line, lanes)
    r = F32(1.0) / np.sqrt(fold(lanes) / F32(len(x)) + F32(eps))
    result: Rows = exact_fma(d * r, weight, bias)
    return result


GELU_NEAR = [
    float.fromhex(c)
    for c in [
        "0x1.f5929ep-22",
        "-0x1.2e6c1ap-17",
        "0x1.e21b16p-14",
        "-0x1.372bf6p-10",
        "0x1.46cf76p-7",
        "-0x1.105834p-4",
        "0x1.988454p-2",
    ]
]
GELU_TAIL = [
    float.fromhex(c)
    for c in [
        "-0x1.dd5f40p-12",
        "0x1.1c5948p-11",
        "0x1.c3fc40p-10",
        "-0x1.85935ep-8",
        "0x1.a19276p-7",
        "-0x1.b52d88p-6",
        "0x1.b4e9fep-5",
        "-0x1.9f8218p-4",
        "0x1.86145ep-3",
        "0x1.e81a8ap+2",
        "0x1.0e705ap+4",
        "0x1.4b85f4p+3",
    ]
]


def gelu_tanh(x: Rows) -> Rows:
    t = exact_fma(x * x, F32(0.044715), F32(1.0))
    result: Rows = x / (F32(1.0) + exp_f32((x * F32(float.fromhex("-0x1.988454p+0"))) * t))
    return result


def gelu_erf(x: Rows) -> Rows:
    def horner(coefficients: list[float], at: Any) -> Any:
        p = np.full_like(at, F32(coefficients[0]))
        for c in coefficients[1:]:
            p = exact_fma(p, at, F32(c))
        return p

    z = np.minimum(np.abs(x), F32(8.0))
    near = exact_fma(x, horner(GELU_NEAR, x * x), F32(0.5))
    h = exp_f32(-horner(GELU_TAIL, exact_fma(z, F32(0.25), F32(-1.0))))
    far = np.where(x < 0, h, F32(1.0) - h)
    result: Rows = x * np.where(z < F32(1.25), near, far)
    return result


def swiglu(g: Rows, u: Rows) -> Rows:
    result: Rows = (g / (F32(1.0) + exp_f32(-g))) * u
    return result


# --- rotation ------------------------------------------------------------------------------------


def _exact_cos_sin(turns: int, position: int) -> tuple[Decimal, Decimal]:
    """cos and sin of the phase to 40 digits, by Taylor's series: no libm."""
    phase = turns * position % 2**64
    with localcontext() as context:
        context.prec = 50
        two_pi = Decimal("6.283185307179586476925286766559005768394338798750211641949889")
        half = phase if phase < 2**63 else phase - 2**64
        x = two_pi * half / 2**64
        sin = term = x
        cos = even = Decimal(1)
        for n in range(1, 40):
            even = -even * x * x / ((2 * n - 1) * (2 * n))
            term = -term * x * x / (2 * n * (2 * n + 1))
            cos += even
            sin += term
        return +cos, +sin


def nearest_float(value: Decimal) -> np.float32:
    """One rounding, to nearest even (Decimal -> double -> float32 would round twice)."""
    guess = F32(float(value))
    near = [np.nextafter(guess, F32(-9)), guess, np.nextafter(guess, F32(9))]
    even = {float(v): int(np.array(v).view(np.int32)) & 1 for v in near}
    best: np.float32 = min(near, key=lambda v: (abs(Decimal(float(v)) - value), even[float(v)]))
    return best


def true_cos_sin(turns: int, position: int) -> tuple[np.float32, np.float32]:
    """The correctly rounded values."""
    cos, sin = _exact_cos_sin(turns, position)
    return nearest_float(cos), nearest_float(sin)


def _horner(z: float, divisors: list[float], last: float) -> float:
    p = divisors[0]
    for c in divisors[1:]:
        p = p * z + c
    return p * z + last


def cos_sin(turns: int, position: int) -> tuple[np.float32, np.float32]:
    """As written: phase exact mod 2^64, nearest quarter turn, double polynomials, one rounding."""
    phase = turns * position % 2**64
    quarter = (phase + 2**61) % 2**64 >> 62
    rest = (phase - (quarter << 62)) % 2**64
    rest = rest - 2**64 if rest >= 2**63 else rest
    x = float(rest) * (6.283185307179586476925 / 2.0**64)
    z = x * x
    odd = [-1 / 1307674368000, 1 / 6227020800, -1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120]
    even = [1 / 20922789888000, -1 / 87178291200, 1 / 479001600, -1 / 3628800, 1 / 40320]
    s = x + x * (z * _horner(z, odd, -1 / 6))
    c = 1.0 + z * _horner(z, [*even, -1 / 720, 1 / 24], -0.5)
    cos, sin = ((c, s), (-s, c), (-c, -s), (s, -c))[quarter]
    return F32(cos), F32(sin)


def rope(x: Rows, turns: list[int], positions: list[int]) -> Rows:
    """One head [2 * len(turns)]; positions[j] is that of frequency j."""
    half = len(turns)
    table = [cos_sin(t, p) for t, p in zip(turns, positions, strict=True)]
    c = np.array([cos for cos, _ in table], np.float32)
    s = np.array([sin for _, sin in table], np.float32)
    a, b = x[:half], x[half:]
    return np.concatenate([exact_fma(a, c, -(b * s)), exact_fma(b, c, a * s)])


# --- attention -----------------------------------------------------------------------------------


def stored(x: Rows, kv_type: str) -> Rows:
    """What comes back from the KV cache."""
    if kv_type == "f32":
        return x
    if kv_type == "f16":
        clamped = np.clip(x, F32(-65504), F32(65504))
        return clamped.astype(np.float16).astype(np.float32)
    if kv_type == "q8_0":
        blocks = np.zeros((len(x), -(-x.shape[1] // 32) * 32), np.float32)
        blocks[:, : x.shape[1]] = x
        scales, quants = quantize(blocks, 32)
        wide = scales[:, :, None] * quants.astype(np.float32).reshape(*scales.shape, 32)
        result: Rows = wide.reshape(blocks.shape)[:, : x.shape[1]]
        return result
    word = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16
    return (rounded.astype(np.uint32) << 16).view(np.float32)


def _span(q: Rows, k: Rows, v: Rows) -> tuple[Any, Any, Rows]:
    """m, l (float32 scalars) and o of one span: k, v [n, head_dim], n <= 512."""
    head_dim = len(q)
    s = np.zeros(len(k), np.float32)
    for d in range(head_dim):
        s = exact_fma(q[d], k[:, d], s)
    s = s * F32(1 / math.sqrt(head_dim))  # a correctly rounded double, rounded once more
    m = s.max()
    e = exp_f32(s - m)
    lanes = np.zeros(LANES, np.float32)
    for line in in_lanes(e):
        lanes = lanes + line
    o: Rows = np.zeros(head_dim, np.float32)
    for weight, value in zip(e, v, strict=True):
        o = exact_fma(weight, value, o)
    return m, fold(lanes), o


def attend(q: Rows, k: Rows, v: Rows) -> Rows:
    """One query [head_dim] at the last of the positions k, v [n, head_dim] (as stored)."""
    m, total, first = _span(q, k[:SPAN], v[:SPAN])
    o: Any = first
    for start in range(SPAN, len(k), SPAN):
        m_c, l_c, o_c = _span(q, k[start : start + SPAN], v[start : start + SPAN])
        if m_c > m:
            w = exp_f32(np.array([m - m_c], np.float32))[0]
            total, o, m = exact_fma(total, w, l_c), exact_fma(o, w, o_c), m_c
        else:
            w = exp_f32(np.array([m_c - m], np.float32))[0]
            total, o = exact_fma(l_c, w, total), exact_fma(o_c, w, o)
    result: Rows = o / total
    return result
