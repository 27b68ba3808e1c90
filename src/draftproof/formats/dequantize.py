"""The tensor types of ggml: names, block sizes, and a slow reference that widens blocks to float32.

Owns the block layouts (those of `ggml-common.h`, little-endian, one row of blocks after another).
Knows nothing about files or models. The engine's kernels don't use this module: it is what their
packing and their results are tested against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]
I8Array = npt.NDArray[np.int8]


@dataclass(frozen=True)
class GgmlType:
    """A tensor type: ggml's name, elements per block, bytes per block."""

    name: str
    block_elems: int
    block_bytes: int


# Those that can be read: every one has a rule below and a packing in the kernels.
GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    20: GgmlType("IQ4_NL", 32, 18),
    23: GgmlType("IQ4_XS", 256, 136),
    30: GgmlType("BF16", 1, 2),
    39: GgmlType("MXFP4", 32, 17),
}

# Types that exist (or once existed) in ggml and have no known size here: only for error messages.
OTHER_TYPE_NAMES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
}


def ggml_type_name(ggml_type: int) -> str:
    """The name of a type id for people, e.g. `IQ2_XXS (16)`, also for ids that can't be read."""
    known = GGML_TYPES.get(ggml_type)
    name = known.name if known else OTHER_TYPE_NAMES.get(ggml_type)
    return f"{name} ({ggml_type})" if name else f"number {ggml_type}"


# What four bits stand for. MXFP4's values are doubled and its scale halved.
_IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
_MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _half(blocks: ByteArray, at: int) -> F32Array:
    """The float16 field at byte `at` of every block, as float32 of shape (blocks, 1)."""
    field = np.ascontiguousarray(blocks[:, at : at + 2])
    return field.view("<f2").astype(np.float32)


def _nibbles(packed: ByteArray) -> ByteArray:
    """(blocks, n) bytes to (blocks, 2n) values: all low nibbles first, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: ByteArray, at: int) -> ByteArray:
    """The 32-bit field at byte `at` as (blocks, 32) values, 16 where bit i is set, else 0."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    fifth: ByteArray = np.left_shift(bits, np.uint8(4))
    return fifth


def _f32(blocks: ByteArray) -> F32Array:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: ByteArray) -> F32Array:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: ByteArray) -> F32Array:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: ByteArray) -> F32Array:
    q: I8Array = _nibbles(blocks[:, 2:18]).astype(np.int8) - np.int8(8)
    return _half(blocks, 0) * q.astype(np.float32)


def _q4_1(blocks: ByteArray) -> F32Array:
    values: F32Array = _half(blocks, 0) * _nibbles(blocks[:, 4:20]).astype(np.float32)
    values += _half(blocks, 2)
    return values


def _q5_0(blocks: ByteArray) -> F32Array:
    q: I8Array = (_nibbles(blocks[:, 6:22]) | _fifth_bits(blocks, 2)).astype(np.int8) - np.int8(16)
    return _half(blocks, 0) * q.astype(np.float32)


def _q5_1(blocks: ByteArray) -> F32Array:
    q = _nibbles(blocks[:, 8:24]) | _fifth_bits(blocks, 4)
    values: F32Array = _half(blocks, 0) * q.astype(np.float32)
    values += _half(blocks, 2)
    return values


def _q8_0(blocks: ByteArray) -> F32Array:
    return _half(blocks, 0) * blocks[:, 2:34].view(np.int8).astype(np.float32)


def _iq4_nl(blocks: ByteArray) -> F32Array:
    return _half(blocks, 0) * _IQ4_VALUES[_nibbles(blocks[:, 2:18])]


def _mxfp4(blocks: ByteArray) -> F32Array:
    exponent = blocks[:, 0:1].astype(np.uint32)
    bits = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - 1) << 23)
    scale: F32Array = bits.astype(np.uint32).view(np.float32)
    return scale * _MXFP4_VALUES[_nibbles(blocks[:, 1:17])]


def _two_bits(packed: ByteArray) -> ByteArray:
    """The 64 bytes of 2-bit quants of Q2_K and Q3_K as (blocks, 2, 4, 32)."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    pairs: ByteArray = np.bitwise_and(packed.reshape(-1, 2, 1, 32) >> shifts, np.uint8(3))
    return pairs


def _q2_k(blocks: ByteArray) -> F32Array:
    scales = (_half(blocks, 80) * (blocks[:, 0:16] & 15).astype(np.float32))[:, :, None]
    low = (_half(blocks, 82) * (blocks[:, 0:16] >> 4).astype(np.float32))[:, :, None]
    values: F32Array = scales * _two_bits(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    values -= low
    return values.reshape(-1, 256)


def _q3_k(blocks: ByteArray) -> F32Array:
    packed = blocks[:, 96:108]
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 4, 1)
    high = ((packed[:, None, 8:12] >> shifts) & 3).reshape(-1, 16) << 4
    scales = (_nibbles(packed[:, 0:8]) | high).astype(np.int8) - np.int8(32)
    bits = np.unpackbits(blocks[:, 0:32, None], axis=2, bitorder="little")
    third = bits.transpose(0, 2, 1).reshape(-1, 2, 4, 32) << 2  # bit 4n+g: element 128n+32g+byte
    q: I8Array = (_two_bits(blocks[:, 32:96]) | third).astype(np.int8) - np.int8(4)
    scale = (_half(blocks, 108) * scales.astype(np.float32))[:, :, None]
    values: F32Array = scale * q.reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, 256)


def _iq4_xs(blocks: ByteArray) -> F32Array:
    b = np.arange(8)
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int32)
    low = np.ascontiguousarray(blocks[:, 4:8]).view("<u4")
    scales = ((low >> (4 * b).astype(np.uint32)) & 15).astype(np.int32) | ((high >> 2 * b) & 3) << 4
    scale = (_half(blocks, 0) * (scales - 32).astype(np.float32))[:, :, None]
    values = _IQ4_VALUES[_nibbles(blocks[:, 8:136].reshape(-1, 16))].reshape(-1, 8, 32)
    return (scale * values).reshape(-1, 256)


def _k_scales(packed: ByteArray) -> tuple[F32Array, F32Array]:
    """The 12 scale bytes of Q4_K and Q5_K to eight 6-bit scales and mins, each (blocks, 8)."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _k_quants(packed: ByteArray) -> ByteArray:
    """The 128 bytes of 4-bit quants of Q4_K and Q5_K as (blocks, 8 sub-blocks, 32)."""
    groups = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _k_values(blocks: ByteArray, quants: ByteArray) -> F32Array:
    """d * scale * q - dmin * min for Q4_K and Q5_K; quants is (blocks, 8, 32)."""
    scales, mins = _k_scales(blocks[:, 4:16])
    scale = (_half(blocks, 0) * scales)[:, :, None]
    low = (_half(blocks, 2) * mins)[:, :, None]
    values: F32Array = scale * quants.astype(np.float32)
    values -= low
    return values.reshape(-1, 256)


def _q4_k(blocks: ByteArray) -> F32Array:
    return _k_values(blocks, _k_quants(blocks[:, 16:144]))


def _q5_k(blocks: ByteArray) -> F32Array:
    bits = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")
    high = bits.transpose(0, 2, 1) << 4  # bit b of byte i belongs to element i of sub-block b
    return _k_values(blocks, _k_quants(blocks[:, 48:176]) | high)


def _q6_k(blocks: ByteArray) -> F32Array:
    low = blocks[:, 0:128].reshape(-1, 2, 1, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    q: I8Array = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


_WIDEN: dict[int, Callable[[ByteArray], F32Array]] = {
    0: _f32,
    1: _f16,
    2: _q4_0,
    3: _q4_1,
    6: _q5_0,
    7: _q5_1,
    8: _q8_0,
    10: _q2_k,
    11: _q3_k,
    12: _q4_k,
    13: _q5_k,
    14: _q6_k,
    20: _iq4_nl,
    23: _iq4_xs,
    30: _bf16,
    39: _mxfp4,
}


def dequantize(
    ggml_type: int, data: bytes | bytearray | memoryview | npt.NDArray[Any], shape: Sequence[int]
) -> F32Array:
    """The values of a tensor as float32, `shape` in PyTorch order (rows last axis contiguous).

    Every product below is exact in float32 or rounded once, so the result doesn't depend on the
    order of the factors. Non-finite scales propagate. Raises ValueError for a type without a rule
    here and for data whose length doesn't fit the shape.
    """
    kind = GGML_TYPES.get(ggml_type)
    if kind is None:
        raise ValueError(f"no dequantization for tensor type {ggml_type_name(ggml_type)}")
    raw = np.frombuffer(data, dtype=np.uint8)
    elements = math.prod(shape)
    if (shape and shape[-1] % kind.block_elems) or (
        raw.size * kind.block_elems != elements * kind.block_bytes
    ):
        raise ValueError(f"{raw.size} bytes of {kind.name} don't make the shape {tuple(shape)}")
    with np.errstate(invalid="ignore", over="ignore"):
        return _WIDEN[ggml_type](raw.reshape(-1, kind.block_bytes)).reshape(tuple(shape))
