"""The linear layers once more in numpy, from the written arithmetic: the oracle of the scalar row.

Owns: decoding of every GGUF block type, quantization of activations, exact integer sums in int64,
the float32 steps in their order. Doesn't know the compiled module. Slow and meant to be read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from blocks import BlockType
from numpy.typing import NDArray
from sampler_twin import exact_fma

F32 = np.float32
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Rows = NDArray[np.float32]

# What four bits stand for; MXFP4 doubled.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


@dataclass(frozen=True)
class Decoded:
    """Blocks of one weight: value = d * (scale * q) + min part.

    d, m: float32 [out, blocks] (m is the multiplier of the min part: -dmin or m; None = no min).
    q: [out, blocks, inputs]; scale: [out, blocks, subs]; mins: [out, blocks, subs] for K-quants,
    ones for Q4_1 and Q5_1, where subs = 1."""

    d: Rows
    m: Rows | None
    q: Ints
    scale: Ints
    mins: Ints


def _half(raw: Bytes) -> Rows:
    words = np.ascontiguousarray(raw).view("<f2")[..., 0]
    return words.astype(np.float32)


def _nibbles_in_halves(qs: Bytes) -> Ints:
    """[.., n] bytes -> [.., 2n]: all low nibbles, then all high ones."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.int64)


def _fifth_bits(qh: Bytes) -> Ints:
    """Four bytes, bit i for input i."""
    word = np.ascontiguousarray(qh).view("<u4")[..., 0].astype(np.int64)
    return (word[..., None] >> np.arange(32)) & 1


def _pairs(qs: Bytes) -> Ints:
    """64 bytes -> 256: of each half the lowest two bits of its bytes, then the next, ..."""
    halves = qs.reshape(*qs.shape[:-1], 2, 32)
    parts = [halves[..., n, :] >> 2 * g & 3 for n in range(2) for g in range(4)]
    return np.concatenate(parts, axis=-1).astype(np.int64)


def _six_bit_scales(raw: Bytes) -> tuple[Ints, Ints]:
    """Twelve bytes -> eight scales, eight mins."""
    s = raw.astype(np.int64)
    low, mid, top = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    scales = np.concatenate([low & 63, (top & 15) | (low >> 6) << 4], axis=-1)
    mins = np.concatenate([mid & 63, (top >> 4) | (mid >> 6) << 4], axis=-1)
    return scales, mins


def decode(type_: BlockType, data: Bytes, out: int, width: int) -> Decoded:
    """data [out, bytes of a row] of a quantized type."""
    b = data.reshape(out, width // type_.inputs, type_.bytes)
    ones = np.ones((*b.shape[:2], 1), np.int64)
    name = type_.name
    if name == "q4_0":
        return Decoded(_half(b[..., :2]), None, _nibbles_in_halves(b[..., 2:]) - 8, ones, ones)
    if name == "q4_1":
        q = _nibbles_in_halves(b[..., 4:])
        return Decoded(_half(b[..., :2]), _half(b[..., 2:4]), q, ones, ones)
    if name == "q5_0":
        q = _nibbles_in_halves(b[..., 6:]) + 16 * _fifth_bits(b[..., 2:6]) - 16
        return Decoded(_half(b[..., :2]), None, q, ones, ones)
    if name == "q5_1":
        q = _nibbles_in_halves(b[..., 8:]) + 16 * _fifth_bits(b[..., 4:8])
        return Decoded(_half(b[..., :2]), _half(b[..., 2:4]), q, ones, ones)
    if name == "q8_0":
        q = b[..., 2:].view(np.int8).astype(np.int64)
        return Decoded(_half(b[..., :2]), None, q, ones, ones)
    if name == "iq4_nl":
        q = IQ4[_nibbles_in_halves(b[..., 2:])]
        return Decoded(_half(b[..., :2]), None, q, ones, ones)
    if name == "mxfp4":
        d = np.ldexp(F32(1), b[..., 0].astype(np.int64) - 128).astype(np.float32)
        return Decoded(d, None, MXFP4[_nibbles_in_halves(b[..., 1:])], ones, ones)
    if name == "iq4_xs":
        q = IQ4[_nibbles_in_halves(b[..., 8:].reshape(*b.shape[:2], 8, 16))]
        high = b[..., 2].astype(np.int64) | b[..., 3].astype(np.int64) << 8
        low = np.stack([b[..., 4 + s // 2] >> 4 * (s % 2) & 15 for s in range(8)], -1)
        top = np.stack([high >> 2 * s & 3 for s in range(8)], -1)
        scale = (low.astype(np.int64) | top << 4) - 32
        return Decoded(_half(b[..., :2]), None, q.reshape(*b.shape[:2], 256), scale, ones)
    if name == "q2_k":
        q = _pairs(b[..., 16:80])
        scale = (b[..., :16] & 15).astype(np.int64)
        mins = (b[..., :16] >> 4).astype(np.int64)
        return Decoded(_half(b[..., 80:82]), -_half(b[..., 82:84]), q, scale, mins)
    if name == "q3_k":
        mask, raw = b[..., :32].astype(np.int64), b[..., 96:108].astype(np.int64)
        third = np.concatenate([mask >> s & 1 for s in range(8)], -1)
        q = _pairs(b[..., 32:96]) + 4 * third - 4
        sixteen = [
            (raw[..., k % 8] >> 4 * (k // 8) & 15) | (raw[..., 8 + k % 4] >> 2 * (k // 4) & 3) << 4
            for k in range(16)
        ]
        return Decoded(_half(b[..., 108:110]), None, q, np.stack(sixteen, -1) - 32, ones)
    if name == "q6_k":
        low, high = b[..., :128].astype(np.int64), b[..., 128:192].astype(np.int64)
        parts = []
        for n in range(2):
            for g in range(4):
                byte = low[..., 64 * n + 32 * (g % 2) : 64 * n + 32 * (g % 2) + 32]
                nibble = byte & 15 if g < 2 else byte >> 4
                two = (high[..., 32 * n : 32 * n + 32] >> (2 * g)) & 3
                parts.append((nibble | two << 4) - 32)
        scale = b[..., 192:208].view(np.int8).astype(np.int64)
        return Decoded(_half(b[..., 208:210]), None, np.concatenate(parts, -1), scale, ones)
    scale, mins = _six_bit_scales(b[..., 4:16])
    qs = b[..., -128:].reshape(*b.shape[:2], 4, 32)
    q = _nibbles_in_halves(qs).reshape(*b.shape[:2], 256)
    if name == "q5_k":
        high = b[..., 16:48].astype(np.int64)
        fifth = [(high >> s) & 1 for s in range(8)]
        q = q + 16 * np.concatenate(fifth, axis=-1)
    return Decoded(_half(b[..., :2]), -_half(b[..., 2:4]), q, scale, mins)


def dequantize(type_: BlockType, data: Bytes, out: int, width: int) -> Rows:
    """[out, width] float32: exact products, at most one rounding (in the sum with the min)."""
    if type_.is_float:
        return float_weights(type_, data, out, width)
    w = decode(type_, data, out, width)
    subs = w.scale.shape[-1]
    whole = (np.repeat(w.scale, type_.inputs // subs, axis=-1) * w.q).astype(np.float32)
    values = w.d[..., None] * whole
    if w.m is not None:
        subs = w.mins.shape[-1]
        mins = np.repeat(w.mins, type_.inputs // subs, axis=-1).astype(np.float32)
        values = values + w.m[..., None] * mins
    return values.reshape(out, width)


def float_weights(type_: BlockType, data: Bytes, out: int, width: int) -> Rows:
    """F32, F16 and BF16, widened exactly."""
    raw = np.ascontiguousarray(data)
    if type_.name == "bf16":
        words = raw.view("<u2").reshape(out, width).astype(np.uint32) << 16
        return words.view(np.float32)
    dtype = "<f4" if type_.name == "f32" else "<f2"
    return raw.view(dtype).reshape(out, width).astype(np.float32)


def quantize(x: Rows, inputs: int) -> tuple[Rows, Ints]:
    """d [rows, blocks] and q [rows, blocks, inputs] of activation rows."""
    blocks = x.reshape(len(x), -1, inputs)
    amax = np.abs(blocks).max(axis=-1)
    zero = amax < F32(2.0**-60)
    safe = np.where(zero, F32(1.0), amax)
    d = np.where(zero, F32(0.0), safe / F32(127.0))
    inverse = np.where(zero, F32(0.0), F32(127.0) / safe)
    q = np.rint(blocks * inverse[..., None]).astype(np.int64)
    assert np.abs(q).max() <= 127
    return d, q


def linear(type_: BlockType, data: Bytes, out: int, x: Rows) -> Rows:
    """[rows, out] = x W^T in arithmetic version 1, before bias and residual."""
    rows, width = x.shape
    acc = np.zeros((rows, out), np.float32)
    if type_.is_float:
        values = float_weights(type_, data, out, width)
        for k in range(width):
            acc = exact_fma(x[:, k, None], values[None, :, k], acc)
        return acc
    w = decode(type_, data, out, width)
    d_x, q_x = quantize(x, type_.inputs)
    subs, min_subs = w.scale.shape[-1], w.mins.shape[-1]
    for b in range(width // type_.inputs):
        q = w.q[:, b].reshape(out, subs, -1)
        xs = q_x[:, b].reshape(rows, subs, -1)
        dots = np.einsum("osi,rsi->ros", q, xs)
        isum = (dots * w.scale[None, :, b]).sum(axis=-1)
        t = w.d[None, :, b] * isum.astype(np.float32)
        if w.m is not None:
            sums = q_x[:, b].reshape(rows, min_subs, -1).sum(axis=-1)
            msum = sums @ w.mins[:, b].T
            t = exact_fma(w.m[None, :, b], msum.astype(np.float32), t)
        acc = exact_fma(d_x[:, b, None], t, acc)
    return acc
