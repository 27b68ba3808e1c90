"""Tiny models whose bytes are the same on every machine: integers of PCG64's raw stream and powers
of two, nothing that a library could compute otherwise. Knows nothing of the engine.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

from tiny_blocks import Array, Packed
from tiny_models import SPECS, gguf_tensors, hf_weights, metadata, write_gguf

TOKENS = 75

# Offsets of d and of dmin or m with its factor of d; the deviation of the values when d is 1.
_SCALES: dict[str, tuple[int | None, tuple[int, float] | None, float]] = {
    "Q4_0": (0, None, 4.6),
    "Q4_1": (0, (2, -7.5), 4.6),
    "Q5_0": (0, None, 9.2),
    "Q5_1": (0, (2, -15.5), 9.2),
    "Q8_0": (0, None, 74),
    "Q2_K": (80, (82, 1.5), 17),
    "Q3_K": (108, None, 42),
    "Q4_K": (0, (2, 7.5), 210),
    "Q5_K": (0, (2, 15.5), 430),
    "Q6_K": (208, None, 1360),
    "IQ4_NL": (0, None, 66),
    "IQ4_XS": (0, None, 1220),
    "MXFP4": (None, None, 5.7),
}


class _Integers:
    """The raw stream, cut into bytes."""

    def __init__(self, seed: str) -> None:
        self._stream = np.random.PCG64(zlib.crc32(seed.encode()))

    def bytes(self, count: int) -> NDArray[np.uint8]:
        words = np.atleast_1d(self._stream.random_raw(-(-count // 8)))
        return words.astype("<u8").view(np.uint8)[:count].copy()

    def floats(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Multiples of 2^-15 from -1 to 1."""
        words = self.bytes(2 * math.prod(shape)).view("<i2")
        return (words.astype(np.float32) * np.float32(2.0**-15)).reshape(shape)


def _power_below(x: float) -> float:
    return 2.0 ** (math.frexp(x)[1] - 1)


def _matrix(integers: _Integers, shape: tuple[int, ...], type_name: str) -> Packed:
    target = 1.2 / math.sqrt(shape[-1])
    type_ = Type[type_name]
    if type_name in ("F32", "F16", "BF16"):
        values = integers.floats(shape) * np.float32(_power_below(target / 0.58))
        if type_name == "BF16":
            words = (values.view(np.uint32) >> 16).astype("<u2")
        else:
            words = values.astype("<f4" if type_name == "F32" else "<f2")
        return Packed(words.view(np.uint8).reshape(*shape[:-1], -1), type_)
    block, size = GGML_QUANT_SIZES[type_]
    count = math.prod(shape) // block
    blocks = integers.bytes(count * size).reshape(count, size)
    at, minimum, deviation = _SCALES[type_name]
    d = _power_below(target / deviation)
    if at is None:
        blocks[:, 0] = 128 + round(math.log2(d))
    else:
        blocks[:, at : at + 2] = np.array([d], "<f2").view(np.uint8)
    if minimum is not None:
        blocks[:, minimum[0] : minimum[0] + 2] = np.array([d * minimum[1]], "<f2").view(np.uint8)
    return Packed(blocks.reshape(*shape[:-1], -1), type_)


def write_golden_model(path: Path, name: str, type_name: str) -> str:
    """The file of SPECS[name] with every matrix in `type_name`. SHA-256 (hex) of its tensors."""
    spec, integers = SPECS[name], _Integers(f"{name} {type_name}")
    tensors: dict[str, Array | Packed] = {}
    for tensor, like in gguf_tensors(spec, hf_weights(spec)).items():
        if like.ndim == 1:
            centre = 0.0 if tensor.endswith(".bias") else 1.0
            tensors[tensor] = np.float32(centre) + integers.floats(like.shape) * np.float32(0.25)
        elif "ffn_gate_inp." in tensor:
            tensors[tensor] = integers.floats(like.shape) * np.float32(0.25)
        else:
            tensors[tensor] = _matrix(integers, like.shape, type_name)
    write_gguf(path, spec.arch, metadata(spec), tensors)
    digest = hashlib.sha256()
    for tensor, value in tensors.items():
        digest.update(tensor.encode())
        digest.update(value.data.tobytes())
    return digest.hexdigest()


def golden_prompt(name: str) -> NDArray[np.int32]:
    """Token ids [TOKENS]."""
    return (_Integers(name).bytes(TOKENS).astype(np.int32) * 7) % SPECS[name].vocab
