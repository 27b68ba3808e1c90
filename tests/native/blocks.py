"""Weights and activations for the tests: valid random GGUF blocks of every type, and extremes.

Block layouts are facts of the file format (ggml-common.h of llama.cpp). Computes no products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Rows = NDArray[np.float32]
F32_TYPE = 0


@dataclass(frozen=True)
class BlockType:
    """halves: byte offsets of float16 scales (d first), mins: those of mins (dmin or m)."""

    name: str
    ggml: int
    inputs: int
    bytes: int
    halves: tuple[int, ...] = ()
    mins: tuple[int, ...] = ()

    @property
    def is_float(self) -> bool:
        return self.inputs == 1


TYPES = {
    t.name: t
    for t in (
        BlockType("f32", 0, 1, 4),
        BlockType("f16", 1, 1, 2),
        BlockType("bf16", 30, 1, 2),
        BlockType("q4_0", 2, 32, 18, (0,)),
        BlockType("q4_1", 3, 32, 20, (0,), (2,)),
        BlockType("q5_0", 6, 32, 22, (0,)),
        BlockType("q5_1", 7, 32, 24, (0,), (2,)),
        BlockType("q8_0", 8, 32, 34, (0,)),
        BlockType("q4_k", 12, 256, 144, (0,), (2,)),
        BlockType("q5_k", 13, 256, 176, (0,), (2,)),
        BlockType("q6_k", 14, 256, 210, (208,)),
        BlockType("q2_k", 10, 256, 84, (80,), (82,)),
        BlockType("q3_k", 11, 256, 110, (108,)),
        BlockType("iq4_nl", 20, 32, 18, (0,)),
        BlockType("iq4_xs", 23, 256, 136, (0,)),
        BlockType("mxfp4", 39, 32, 17),
    )
}
WEIGHT_KINDS = ("random", "zeros", "max", "denormal", "huge", "negative")
ACT_KINDS = ("normal", "saturating", "tiny", "ties", "huge", "sparse")


def weight_bytes(type_: BlockType, kind: str, out: int, width: int, seed: int) -> Bytes:
    """[out, bytes of a row] in a block format, every value finite."""
    rng = np.random.default_rng([seed, type_.ggml, out, width, WEIGHT_KINDS.index(kind)])
    if type_.is_float:
        return _float_bytes(type_, kind, out, width, rng)
    count = out * width // type_.inputs
    blocks = rng.integers(0, 256, (count, type_.bytes), dtype=np.uint8)
    if kind == "zeros":
        blocks[:] = 0
    if kind == "max":  # greatest nibbles, scales and mins; -128 and 127 where bytes are signed
        blocks[:] = 0xFF
        if type_.name == "q8_0":
            blocks[:] = np.where(rng.random((count, 1)) < 0.5, 0x80, 0x7F)
        if type_.name == "q6_k":
            blocks[:, 192:208] = np.where(rng.random((count, 1)) < 0.5, 0x80, 0x7F)
            blocks[::3, :192] = 0  # q = -32
        if type_.name in ("q3_k", "iq4_nl", "iq4_xs"):
            blocks[::3] = 0  # least value, and a scale of -32
        if type_.name == "mxfp4":
            blocks[:, 1:] = np.where(rng.random((count, 1)) < 0.5, 0x77, 0xFF)
    if type_.name == "mxfp4":
        blocks[:, 0] = _exponents(kind, count, rng)
    for offset in type_.halves + type_.mins:
        half = _halves(kind, count, offset in type_.mins, rng)
        blocks[:, offset : offset + 2] = half.view(np.uint8).reshape(count, 2)
    return blocks.reshape(out, -1)


def _exponents(kind: str, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The scales of MXFP4, 2^(e - 128): e = 0 and 1 are float32 denormals, 255 is refused."""
    span = {"denormal": (0, 4), "huge": (150, 165), "max": (160, 161)}.get(kind, (110, 124))
    return rng.integers(*span, count).astype(np.uint8)


def _halves(kind: str, count: int, is_min: bool, rng: np.random.Generator) -> NDArray[np.float16]:
    if kind == "zeros":
        zeros: NDArray[np.float16] = np.where(rng.random(count) < 0.5, 0.0, -0.0).astype(np.float16)
        return zeros
    if kind == "denormal":  # and the smallest of all, of both signs
        raw = rng.integers(1, 0x400, count).astype(np.uint16)
        raw[::5] = 1
        signed: NDArray[np.uint16] = raw | (rng.integers(0, 2, count) << 15).astype(np.uint16)
        denormal: NDArray[np.float16] = signed.view(np.float16)
        return denormal
    if kind == "huge":
        return (rng.choice([-1, 1], count) * rng.uniform(60000, 65504, count)).astype(np.float16)
    if kind == "max":
        return np.full(count, 65504 if not is_min else -65504, np.float16)
    if kind == "negative":
        return -rng.uniform(1e-4, 2, count).astype(np.float16)
    # Exponents all over, so that sums cancel and round.
    size = 2.0 ** rng.integers(-12, 3, count) * rng.uniform(1, 2, count)
    return (size * rng.choice([-1, 1], count)).astype(np.float16)


def _float_bytes(
    type_: BlockType, kind: str, out: int, width: int, rng: np.random.Generator
) -> Bytes:
    values = rng.standard_normal((out, width))
    if kind == "zeros":
        values = np.where(values > 0, 0.0, -0.0)
    if kind == "max":
        top = {"f16": 65504.0, "bf16": 2.0**60, "f32": 2.0**60}[type_.name]
        values = np.sign(values) * top
    if kind == "denormal":
        values *= {"f16": 2.0**-20, "bf16": 2.0**-128, "f32": 2.0**-130}[type_.name]
    if kind == "huge":
        values = np.clip(
            values * {"f16": 2.0**14, "bf16": 2.0**50, "f32": 2.0**50}[type_.name],
            *((-65504, 65504) if type_.name == "f16" else (-(2.0**60), 2.0**60)),
        )
    if kind == "negative":
        values = -np.abs(values)
    if type_.name == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8).reshape(out, -1)
    single = np.ascontiguousarray(values.astype(np.float32))
    if type_.name == "f32":
        return single.view(np.uint8).reshape(out, -1)
    words = (single.view(np.uint32) >> 16).astype(np.uint16)  # truncated: any bfloat16 will do
    return words.view(np.uint8).reshape(out, -1)


def activations(kind: str, rows: int, width: int, seed: int) -> Rows:
    """[rows, width] float32, every value finite."""
    rng = np.random.default_rng([seed, rows, width, ACT_KINDS.index(kind)])
    x = rng.standard_normal((rows, width)) * 2.0 ** rng.integers(-3, 4, (rows, 1))
    if kind == "saturating":  # |x| = amax everywhere: q = -127 or 127
        x = np.sign(x) * rng.uniform(0.5, 4, (rows, 1))
    if kind == "tiny":  # around amax = 2^-60, where a block becomes zero, and float32 denormals
        x *= 2.0 ** rng.choice([-140, -100, -62, -61, -60, -59], (rows, 1))
        x[:, ::7] = 2.0**-60
        x[::2, ::7] = np.nextafter(np.float32(2.0**-60), np.float32(0))
    if kind == "ties":  # amax = 127: x is its own quantum, halves round to even
        x = rng.integers(-126, 126, (rows, width)) + 0.5
        x[:, ::32] = 127.0
    if kind == "huge":
        x *= 1e18
    if kind == "sparse":
        x[rng.random((rows, width)) < 0.7] = 0.0
        x[rng.random((rows, width)) < 0.2] = -0.0
        x[rows // 2] = 0.0
    return x.astype(np.float32)
