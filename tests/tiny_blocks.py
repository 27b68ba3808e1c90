"""Tensors in every GGUF type, for tests: quantized by the public `gguf` package where it can, else
random blocks that it can read.

Owns which types there are and what their random blocks look like. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Array = NDArray[Any]
Type = GGMLQuantizationType

# Types that the public package quantizes to; of the others it only reads blocks.
QUANTIZED_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")
RANDOM_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
FLOAT_TYPES = ("F32", "F16", "BF16")
TENSOR_TYPES = FLOAT_TYPES + QUANTIZED_TYPES + RANDOM_TYPES
MIXED = "Q4_K_M"  # as real files: Q4_K, half of v and down Q6_K, output Q6_K

# What a quantizer takes instead when a row is no multiple of 256.
_FALLBACK = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}


@dataclass(frozen=True)
class Packed:
    """A tensor in a block format: `data` uint8 [.., rows, bytes of a row]."""

    data: Array
    type: Type

    def values(self) -> Array:
        """float32 [.., rows, columns], as the public package reads the blocks."""
        return dequantize(self.data, self.type)


def random_blocks(
    rng: np.random.Generator, rows: int, width: int, type_: Type, std: float
) -> Packed:
    """Valid blocks of RANDOM_TYPES with every field random, of about the given deviation.

    Some block scales are negative or zero, as quantizers may write them."""
    block, size = GGML_QUANT_SIZES[type_]
    blocks = rng.integers(0, 256, (rows * width // block, size), dtype=np.uint8)
    d = rng.uniform(0.6, 1.4, len(blocks))
    # Where d stands, and dmin. d*s*q - dmin*m is about zero on average when dmin is d times the
    # mean of q.
    with_min = {Type.Q2_K: (80, 82, 1.5), Type.Q4_K: (0, 2, 7.5), Type.Q5_K: (0, 2, 15.5)}
    if type_ in with_min:
        at, at_min, mean = with_min[type_]
        fields = [(at, d), (at_min, d * mean)]
    else:
        at = {Type.Q3_K: 108, Type.Q6_K: 208}.get(type_, 0)
        fields = [(at, d * rng.choice([1, 1, 1, -1], len(blocks)))]

    def with_scale(scale: float) -> Packed:
        out = blocks.copy()
        for offset, value in fields:
            f16 = (value * scale).astype("<f2")
            out[:, offset : offset + 2] = f16.view(np.uint8).reshape(-1, 2)
        return Packed(out.reshape(rows, width // block * size), type_)

    packed = with_scale(std / float(with_scale(1.0).values().std()))
    if len(blocks) > 8:
        flat = packed.data.reshape(len(blocks), size)
        for offset, _ in fields:
            flat[5, offset : offset + 2] = 0
    return packed


def pack(rng: np.random.Generator, tensor: Array, type_name: str) -> Packed:
    """[.., rows, width] float32 in a tensor type, or its usual stand-in for other rows than of 256.

    RANDOM_TYPES don't approximate `tensor`: they are random blocks of its deviation."""
    *outer, rows, width = tensor.shape
    if outer:
        flat = pack(rng, tensor.reshape(-1, width), type_name)
        return Packed(flat.data.reshape(*outer, rows, -1), flat.type)
    if width % 256:
        type_name = _FALLBACK.get(type_name, type_name)
    type_ = getattr(Type, type_name)
    if type_name in RANDOM_TYPES:
        return random_blocks(rng, rows, width, type_, float(tensor.std()))
    data = np.ascontiguousarray(quantize(tensor, type_))
    return Packed(data.view(np.uint8).reshape(rows, -1), type_)
