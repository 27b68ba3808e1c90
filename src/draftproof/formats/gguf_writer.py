"""Writes a GGUF v3 file from metadata and tensors that come in pieces, so that no tensor has to be
in memory as a whole.

Owns the bytes of the container (ggml's `docs/gguf.md`). Doesn't know what keys and tensors mean.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from draftproof.errors import InvalidRequestError
from draftproof.formats.dequantize import GGML_TYPES

Value = bool | int | float | str | list[str] | np.generic | np.ndarray[Any, Any]
"""An int is written as u32 (u64 if it must be), a float as f32; numpy numbers and one-dimensional
arrays keep their type."""

ALIGNMENT = 32
_VERSION = 3
_BOOL, _STRING, _ARRAY = 7, 8, 9
_TYPE_OF = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": _BOOL}
_TYPE_OF |= {"u8": 10, "i8": 11, "f8": 12}


@dataclass(frozen=True)
class NewTensor:
    """A tensor to be written; `shape` in PyTorch order, (out, in) for a matrix."""

    name: str
    ggml_type: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Raises ValueError if rows aren't whole blocks."""
        kind = GGML_TYPES[self.ggml_type]
        if self.shape[-1] % kind.block_elems:
            raise ValueError(f"{self.name}: rows of {self.shape[-1]} aren't whole {kind.name}")
        return math.prod(self.shape) // kind.block_elems * kind.block_bytes


Pieces = Callable[[NewTensor], "Iterable[Any]"]
"""The bytes of a tensor in order: bytes, memoryviews or C-contiguous arrays."""
Progress = Callable[[str, int, "int | None"], None]


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[NewTensor],
    pieces: Pieces,
    progress: Progress | None = None,
) -> int:
    """Writes `path`, which appears only when it is complete, and returns its size in bytes.

    metadata must have `general.architecture`. pieces: the bytes of a tensor in order, asked for
    once for each tensor. Raises InvalidRequestError: the path exists, can't be written, or the disk
    is too small; ValueError if the pieces of a tensor don't add up to its size.
    """
    header = _header(metadata, tensors)
    sizes = [tensor.nbytes for tensor in tensors]
    total = len(header) + sum(map(_padded, sizes))
    _check_place(path, total)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as out:
            out.write(header)
            done = len(header)
            for tensor, size in zip(tensors, sizes, strict=True):
                _write_tensor(out, tensor, size, pieces)
                done += _padded(size)
                if progress is not None:
                    progress("writing", done, total)
        partial.replace(path)
    except OSError as error:
        raise InvalidRequestError(f"{path}: can't be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return total


def _check_place(path: Path, total: int) -> None:
    if path.exists():
        raise InvalidRequestError(f"{path} exists already: delete it, or give another name")
    if not path.parent.is_dir():
        raise InvalidRequestError(f"{path.parent} is no folder: make it first")
    free = shutil.disk_usage(path.parent).free
    if total > free:
        raise InvalidRequestError(
            f"{path} needs {total / 1e9:.2f} GB, {free / 1e9:.2f} GB are free on that disk"
        )


def _write_tensor(out: BinaryIO, tensor: NewTensor, size: int, pieces: Pieces) -> None:
    written = 0
    for piece in pieces(tensor):
        view = memoryview(piece).cast("B")
        out.write(view)
        written += len(view)
    if written != size:
        raise ValueError(f"{tensor.name}: {written} bytes were given, its shape needs {size}")
    out.write(bytes(_padded(size) - size))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _header(metadata: Mapping[str, Value], tensors: Sequence[NewTensor]) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _value(value)]
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        parts.append(_string(tensor.name) + struct.pack("<I", len(dims)))
        parts.append(struct.pack(f"<{len(dims)}QIQ", *dims, tensor.ggml_type, offset))
        offset += _padded(tensor.nbytes)
    header = b"".join(parts)
    return header + bytes(_padded(len(header)) - len(header))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list):
        head = struct.pack("<IIQ", _ARRAY, _STRING, len(value))
        return head + b"".join(map(_string, value))
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        kind = _TYPE_OF[little.dtype.str[1:]]
        return struct.pack("<IIQ", _ARRAY, kind, len(little)) + little.tobytes()
    if isinstance(value, np.generic):  # np.float64 is a float too, but keeps its type
        pass
    elif isinstance(value, bool):
        value = np.bool_(value)
    elif isinstance(value, int):
        value = np.uint32(value) if value < 1 << 32 else np.uint64(value)
    elif isinstance(value, float):
        value = np.float32(value)
    number = np.asarray(value)
    little = number.astype(number.dtype.newbyteorder("<"))
    return struct.pack("<I", _TYPE_OF[little.dtype.str[1:]]) + little.tobytes()
