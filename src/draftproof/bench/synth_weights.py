"""Seeded random tensors, a piece at a time: valid blocks of every packable type with every field
random, scaled to a wanted deviation.

Owns where the scales of a block lie. The random bits are PCG64's raw output, which numpy promises
not to change.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.formats import GGML_TYPES, dequantize
from draftproof.formats.gguf_writer import NewTensor

Pieces = NDArray[Any]
PIECE_BYTES = 16 << 20
_SAMPLE = 512  # blocks, to measure the deviation of a type

# Type -> (byte offset of the scale, that of the second one, second / first): as float16. The second
# is a minimum, or what is subtracted, chosen so that values are about zero on average.
_SCALES: dict[int, tuple[int, int | None, float]] = {
    2: (0, None, 0),
    3: (0, 2, -7.5),
    6: (0, None, 0),
    7: (0, 2, -15.5),
    8: (0, None, 0),
    12: (0, 2, 7.5),
    13: (0, 2, 15.5),
    14: (208, None, 0),
}


def random_pieces(tensor: NewTensor, level: float, seed: int) -> Iterator[Pieces]:
    """The bytes of a tensor in pieces of at most PIECE_BYTES. level: the standard deviation; for a
    vector the mean, with a deviation of a tenth of it. The same for the same name and seed.

    Raises ValueError for a type that isn't made here."""
    source = _Source(np.random.PCG64([seed, zlib.crc32(tensor.name.encode())]))
    kind = GGML_TYPES[tensor.ggml_type]
    blocks = tensor.nbytes // kind.block_bytes
    at_once = PIECE_BYTES // kind.block_bytes
    for first in range(0, blocks, at_once):
        n = min(at_once, blocks - first)
        if len(tensor.shape) == 1:
            yield (level * (1 + 0.1 * source.values(n))).astype("<f4")
        elif kind.block_elems == 1:
            yield _floats(tensor.ggml_type, level * source.values(n))
        else:
            yield _blocks(source, tensor.ggml_type, n, level)


@dataclass
class _Source:
    bits: np.random.PCG64

    def bytes(self, n: int) -> NDArray[np.uint8]:
        words: NDArray[np.uint64] = self.bits.random_raw(-(-n // 8))
        return words.astype("<u8", copy=False).view(np.uint8)[:n]

    def values(self, n: int) -> NDArray[np.float32]:
        """Uniform, of mean 0 and deviation 1."""
        words = self.bytes(2 * n).view("<u2").astype(np.float32)
        result: NDArray[np.float32] = (words - np.float32(32767.5)) * np.float32(12**0.5 / 65536)
        return result


def _floats(ggml_type: int, values: NDArray[np.float32]) -> Pieces:
    if ggml_type == 0:
        return values.astype("<f4")
    if ggml_type == 1:
        return values.astype("<f2")
    if ggml_type == 30:
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    raise ValueError(f"tensor type {ggml_type} isn't made here")


def _blocks(source: _Source, ggml_type: int, n: int, level: float) -> Pieces:
    if ggml_type not in _SCALES:
        raise ValueError(f"tensor type {ggml_type} isn't made here")
    size = GGML_TYPES[ggml_type].block_bytes
    blocks = source.bytes(n * size).reshape(n, size)
    # 256 scales around the one wanted, so that blocks differ and none is far off.
    table = np.linspace(0.6, 1.4, 256) * (level / _deviation(ggml_type))
    if _SCALES[ggml_type][1] is None:  # signed values aren't quite about zero: -8 .. 7
        table[::2] *= -1
    _set_scales(blocks, ggml_type, table[source.bytes(n)])
    return blocks


def _set_scales(blocks: NDArray[np.uint8], ggml_type: int, d: NDArray[np.float64]) -> None:
    first, second, ratio = _SCALES[ggml_type]
    blocks[:, first : first + 2] = d.astype("<f2").view(np.uint8).reshape(-1, 2)
    if second is not None:
        blocks[:, second : second + 2] = (ratio * d).astype("<f2").view(np.uint8).reshape(-1, 2)


def _deviation(ggml_type: int) -> float:
    """Of the values of random blocks whose scale is about 1."""
    if ggml_type not in _DEVIATIONS:
        kind = GGML_TYPES[ggml_type]
        source = _Source(np.random.PCG64(ggml_type))
        blocks = source.bytes(_SAMPLE * kind.block_bytes).reshape(_SAMPLE, -1)
        _set_scales(blocks, ggml_type, np.linspace(0.6, 1.4, _SAMPLE))
        values = dequantize(ggml_type, blocks.tobytes(), (_SAMPLE, kind.block_elems))
        _DEVIATIONS[ggml_type] = float(values.std())
    return _DEVIATIONS[ggml_type]


_DEVIATIONS: dict[int, float] = {}
