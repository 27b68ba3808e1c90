"""The header of a GGUF v2 or v3 file: metadata and tensor infos, every field bounded before use.

Owns the container format (ggml's `docs/gguf.md`) and the checks that make a hostile file an error
instead of a crash. Doesn't touch tensor data and doesn't know what keys and tensors mean.

The header is read with `pread`, never through a mapping, so a file that shrinks meanwhile is an
error too; nothing is allocated whose size the length of the file and the limits below don't bound.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import ModelFileError
from draftproof.formats.dequantize import GGML_TYPES, ggml_type_name

# Own limits, far above any real model, far below what could hurt.
MAX_HEADER_BYTES = 64 << 20
MAX_STRING_BYTES = 8 << 20  # one value; the longest in real files are chat templates
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 22  # in all arrays together
MAX_KEY_BYTES = 1 << 16
MAX_TENSOR_NAME_BYTES = 63  # ggml's GGML_MAX_NAME - 1
MAX_DIM = (1 << 31) - 1
MAX_ALIGNMENT = 1 << 20

_MIN_KEY_BYTES = 8 + 1 + 4 + 1  # length, one character, type, one byte of value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, one character, n_dims, one dim, type, offset
_READ_BYTES = 1 << 20
DAMAGED = "the file is damaged or incomplete, download it again"

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in PyTorch order, (out_features, in_features) for a matrix.

    `offset` is counted in bytes from the start of the file; `ggml_type` is a key of GGML_TYPES.
    """

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """What the header says. `digest`: SHA-256 (hex) of its bytes and of the file size as u64."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    digest: str


def show_name(text: str) -> str:
    """A name from a file, quoted, escaped and cut so that it fits into a one-line message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


class _Cursor:
    """A cursor over the header. Every read is checked against the length of the file first."""

    def __init__(self, fd: int, size: int, label: str) -> None:
        self.fd = fd
        self.size = size
        self.label = label
        self.buffer = bytearray()  # the file from byte 0, read as far as needed
        self.pos = 0
        self.strings_left = MAX_STRINGS

    def error(self, what: str, hint: str = DAMAGED) -> ModelFileError:
        return ModelFileError(f"{self.label}: {what}; {hint}")

    def need(self, count: int, what: str) -> None:
        """Have `count` more bytes in the buffer after `pos`, or raise."""
        end = self.pos + count
        if end > self.size:
            raise self.error(
                f"{what} at byte {self.pos} needs {count} bytes, but the file ends at {self.size}"
            )
        if end > MAX_HEADER_BYTES:
            raise self.error(
                f"{what} at byte {self.pos} makes the header longer than {MAX_HEADER_BYTES} bytes",
                "no real model needs that, get the file from a source you trust",
            )
        while len(self.buffer) < end:
            try:
                chunk = os.pread(self.fd, _READ_BYTES, len(self.buffer))
            except OSError as error:
                raise self.error(
                    f"can't be read at byte {len(self.buffer)} ({error.strerror})",
                    "check the disk and the rights of the file",
                ) from None
            if not chunk:
                raise self.error(f"became shorter than {self.size} bytes while it was read")
            self.buffer += chunk

    def u32(self, what: str) -> int:
        self.need(4, what)
        value: int = _U32.unpack_from(self.buffer, self.pos)[0]
        self.pos += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        value: int = _U64.unpack_from(self.buffer, self.pos)[0]
        self.pos += 8
        return value

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        start, self.pos = self.pos, self.pos + count
        return bytes(self.buffer[start : self.pos])

    def name(self, what: str, limit: int) -> str:
        """A key or tensor name: short, not empty, valid UTF-8."""
        at = self.pos
        length = self.u64(f"the length of {what}")
        if not 1 <= length <= limit:
            raise self.error(f"{what} at byte {at} is {length} bytes long, expected 1 to {limit}")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} at byte {at} isn't valid UTF-8") from None

    def count(self, what: str, smallest: int, limit: int) -> int:
        """A number of records of at least `smallest` bytes each."""
        at = self.pos
        value = self.u64(what)
        if value * smallest > self.size - self.pos:
            raise self.error(
                f"{what} at byte {at} is {value}, more than fits into the file of {self.size} bytes"
            )
        if value > limit:
            raise self.error(
                f"{what} at byte {at} is {value}, more than the limit of {limit}",
                "no real model needs that, get the file from a source you trust",
            )
        return value

    def string_length(self, what: str) -> int:
        at = self.pos
        length = self.u64(f"the length of {what}")
        if length > MAX_STRING_BYTES:
            raise self.error(
                f"{what} at byte {at} has a string of {length} bytes, more than the limit of"
                f" {MAX_STRING_BYTES}"
            )
        return length

    def strings(self, count: int, what: str) -> list[str]:
        """An array of strings; a hot loop, since a vocabulary and its merges have 300,000.

        Bytes that aren't UTF-8 become U+FFFD: vocabularies may hold pieces of characters.
        """
        self.strings_left -= count
        if self.strings_left < 0:
            raise self.error(
                f"{what} at byte {self.pos} has {count} strings, more than the limit of"
                f" {MAX_STRINGS} in all",
                "no real model needs that, get the file from a source you trust",
            )
        self.need(8 * count, what)
        out: list[str] = []
        buffer, pos, have = self.buffer, self.pos, len(self.buffer)
        unpack = _U64.unpack_from
        for _ in range(count):
            start = pos + 8
            if start > have:
                self.pos = pos
                self.need(8, what)
                have = len(buffer)
            end = start + unpack(buffer, pos)[0]
            if end > have:
                self.pos = pos
                self.need(self.string_length(what), what)
                have = len(buffer)
            out.append(buffer[start:end].decode("utf-8", "replace"))
            pos = end
        self.pos = pos
        return out

    def numbers(self, kind: int, count: int, what: str) -> npt.NDArray[Any]:
        at, dtype = self.pos, _NUMBERS[kind]
        values: npt.NDArray[Any] = np.frombuffer(
            self.take(count * dtype.itemsize, what), dtype=dtype
        )
        if kind == _BOOL:
            if (values > 1).any():
                raise self.error(f"{what} at byte {at} has a boolean that is neither 0 nor 1")
            values = values.view(np.bool_)
        return values

    def value(self, what: str) -> Any:
        """A typed metadata value: str, int, float, bool, list of str, or a read-only array."""
        at = self.pos
        kind = self.u32(f"the type of {what}")
        if kind == _STRING:
            return self.take(self.string_length(what), what).decode("utf-8", "replace")
        if kind in _NUMBERS:
            return self.numbers(kind, 1, what)[0].item()
        if kind != _ARRAY:
            raise self.error(f"{what} at byte {at} has the unknown value type {kind}")
        kind = self.u32(f"the element type of {what}")
        count = self.u64(f"the length of {what}")
        if kind == _STRING:
            return self.strings(count, what)
        if kind in _NUMBERS:
            return self.numbers(kind, count, what)
        raise self.error(f"{what} at byte {at} is an array of the unsupported value type {kind}")


def _check_start(header: _Cursor) -> None:
    """Refuse what isn't a GGUF v2 or v3 file, and say what it is instead where that shows."""
    if header.size == 0:
        raise header.error("is empty")
    header.need(min(header.size, 512), "the start of the file")
    start = bytes(header.buffer[:512])
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        raise header.error("looks like a Git LFS pointer", "download the real file (git lfs pull)")
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")):
        raise header.error("looks like an HTML page", "download the real file")
    if not start.startswith(b"GGUF"):
        if start[:4] == b"\0\0\0\0":
            raise header.error("starts with zero bytes instead of GGUF at byte 0")
        raise header.error(
            f"isn't a GGUF file (starts with {start[:4]!r} at byte 0)", "give a .gguf model file"
        )
    if header.size < 24:
        raise header.error(f"ends at byte {header.size}, inside the 24 bytes every header has")
    header.pos = 4
    version = header.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise header.error(
            "is a big-endian GGUF file (version field at byte 4)", "get the little-endian file"
        )
    if version not in (2, 3):
        raise header.error(
            f"has GGUF version {version} at byte 4, supported are 2 and 3",
            "get a file made by a current converter",
        )


def _read_metadata(header: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        at = header.pos
        key = header.name("a metadata key", MAX_KEY_BYTES)
        if key in metadata:
            raise header.error(f"metadata key {show_name(key)} at byte {at} appears twice")
        metadata[key] = header.value(f"metadata key {show_name(key)}")
    return metadata


def _read_tensor(header: _Cursor) -> TensorInfo:
    """One tensor info; the offset is still relative to the start of the data."""
    name = header.name("a tensor name", MAX_TENSOR_NAME_BYTES)
    what = f"tensor {show_name(name)}"
    at = header.pos
    n_dims = header.u32(f"the number of dimensions of {what}")
    if not 1 <= n_dims <= 4:
        raise header.error(f"{what} at byte {at} has {n_dims} dimensions, expected 1 to 4")
    dims = [header.u64(f"the dimensions of {what}") for _ in range(n_dims)]
    if not all(1 <= dim <= MAX_DIM for dim in dims):
        raise header.error(f"{what} at byte {at} has the impossible dimensions {dims}")
    at = header.pos
    ggml_type = header.u32(f"the type of {what}")
    kind = GGML_TYPES.get(ggml_type)
    if kind is None:
        raise header.error(
            f"{what} at byte {at} has the unsupported type {ggml_type_name(ggml_type)}",
            "get another quantization of the model, e.g. Q4_K_M or Q8_0",
        )
    if dims[0] % kind.block_elems:
        raise header.error(
            f"{what} at byte {at} has rows of {dims[0]} elements, not a multiple of the"
            f" {kind.block_elems} of its type {kind.name}"
        )
    nbytes = math.prod(dims) // kind.block_elems * kind.block_bytes
    offset = header.u64(f"the offset of {what}")
    return TensorInfo(name, ggml_type, tuple(reversed(dims)), offset, nbytes)


def _read_tensors(header: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """All tensor infos with absolute offsets: aligned, inside the file, not overlapping."""
    relative: dict[str, TensorInfo] = {}
    for _ in range(count):
        at = header.pos
        info = _read_tensor(header)
        if info.name in relative:
            raise header.error(f"tensor {show_name(info.name)} at byte {at} appears twice")
        if info.offset % alignment:
            raise header.error(
                f"tensor {show_name(info.name)} at byte {at} has offset {info.offset}, not a"
                f" multiple of the alignment {alignment}"
            )
        relative[info.name] = info
    start = -(-header.pos // alignment) * alignment
    tensors = {
        info.name: TensorInfo(
            info.name, info.ggml_type, info.shape, start + info.offset, info.nbytes
        )
        for info in relative.values()
    }
    by_offset = sorted(tensors.values(), key=lambda info: info.offset)
    for before, after in pairwise(by_offset):
        if before.offset + before.nbytes > after.offset:
            raise header.error(
                f"tensors {show_name(before.name)} and {show_name(after.name)} overlap at byte"
                f" {after.offset}"
            )
    for info in by_offset:
        end = info.offset + info.nbytes
        if end > header.size:
            raise header.error(
                f"tensor {show_name(info.name)} lies at bytes {info.offset} to {end}, but the file"
                f" ends at {header.size}"
            )
    return tensors


def read_header(fd: int, size: int, label: str) -> GgufHeader:
    """Read the header of the regular file `fd` of `size` bytes; `label` names it in messages.

    Raises ModelFileError for everything that isn't a sound GGUF file of supported tensor types.
    """
    header = _Cursor(fd, size, label)
    _check_start(header)
    tensor_count = header.count("the number of tensors", _MIN_TENSOR_BYTES, MAX_TENSORS)
    key_count = header.count("the number of metadata keys", _MIN_KEY_BYTES, MAX_KEYS)
    metadata = _read_metadata(header, key_count)
    alignment = metadata.get("general.alignment", 32)
    if (
        type(alignment) is not int
        or not 8 <= alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise header.error(
            "metadata key 'general.alignment' must be a power of two from 8 to"
            f" {MAX_ALIGNMENT}, not {str(alignment)[:40]!r}"
        )
    tensors = _read_tensors(header, tensor_count, alignment)
    digest = hashlib.sha256(memoryview(header.buffer)[: header.pos])
    digest.update(_U64.pack(size))
    return GgufHeader(MappingProxyType(metadata), MappingProxyType(tensors), digest.hexdigest())
