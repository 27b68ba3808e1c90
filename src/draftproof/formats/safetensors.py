"""An open .safetensors file: where its tensors lie, and read-only views of their bytes.

The format (huggingface/safetensors, README "Format"): u64 little-endian length of the header, the
header as JSON (tensor name -> dtype, shape, data_offsets from the end of the header), then the
data, without holes. Nothing is allocated whose size the length of the file and the limits below
don't bound. Knows no models.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from draftproof.errors import ModelFileError
from draftproof.formats.gguf_header import MAX_DIM, MAX_TENSORS, show_name
from draftproof.formats.json_file import parse_object
from draftproof.formats.mapped_file import MappedFile, file_label, open_regular

MAX_HEADER_BYTES = 32 << 20  # 19,000 tensors take 3 MB
MAX_NAME_CHARS = 512
MAX_DIMS = 8
INCOMPLETE = "the file is damaged or incomplete, download it again"

# dtype -> (bytes of an element, ggml's id of the type; None: known, but not a weight we can use)
DTYPES: dict[str, tuple[int, int | None]] = {
    "F32": (4, 0),
    "F16": (2, 1),
    "BF16": (2, 30),
    "F64": (8, None),
    "I64": (8, None),
    "U64": (8, None),
    "I32": (4, None),
    "U32": (4, None),
    "I16": (2, None),
    "U16": (2, None),
    "I8": (1, None),
    "U8": (1, None),
    "BOOL": (1, None),
    "F8_E4M3": (1, None),
    "F8_E5M2": (1, None),
    "F8_E8M0": (1, None),
}


@dataclass(frozen=True)
class SafeTensor:
    """Where a tensor lies. `shape` in PyTorch order; `offset` in bytes from the start of the
    file."""

    name: str
    dtype: str  # a key of DTYPES
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """An open file: tensor infos and views of tensor data. A context manager; views stay valid
    after `close`."""

    path: Path
    tensors: dict[str, SafeTensor]

    def __init__(self, path: Path, tensors: dict[str, SafeTensor], mapped: MappedFile) -> None:
        """For `open` only."""
        self.path = path
        self.tensors = tensors
        self._mapped = mapped

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Raises ModelNotFoundError (no such file) and ModelFileError (not a sound file)."""
        fd, size = open_regular(path, "a .safetensors file")
        label = file_label(path)
        try:
            tensors = _read_header(fd, size, label)
            return cls(path, tensors, MappedFile(fd, size, label))
        finally:
            os.close(fd)

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._mapped.close()

    def data(self, name: str) -> memoryview:
        """The bytes of a tensor of this file, little-endian, rows in order: a read-only view.

        Raises ModelFileError if the file has become shorter since it was opened.
        """
        tensor = self.tensors[name]
        return self._mapped.view(tensor.offset, tensor.nbytes, f"tensor {show_name(name)}")

    def release(self, name: str) -> None:
        """Give the resident pages of a tensor back."""
        tensor = self.tensors[name]
        self._mapped.release(tensor.offset, tensor.nbytes)


def _read_header(fd: int, size: int, label: str) -> dict[str, SafeTensor]:
    def error(what: str, hint: str = INCOMPLETE) -> ModelFileError:
        return ModelFileError(f"{label}: {what}; {hint}")

    start = _pread(fd, min(size, 64), 0, label)
    if start.startswith(b"version https://git-lfs"):
        raise error("is a Git LFS pointer", "download the real file (git lfs pull)")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise error("looks like an HTML page", "download the real file")
    if size < 10:
        raise error(f"ends at byte {size}, too short for a safetensors header")
    length = struct.unpack_from("<Q", start)[0]
    if length > size - 8:
        raise error(f"the header needs {length} bytes, but the file ends at {size}")
    if length > MAX_HEADER_BYTES:
        raise error(
            f"the header of {length} bytes is longer than {MAX_HEADER_BYTES}",
            "no real model needs that, get the file from a source you trust",
        )
    header = parse_object(_pread(fd, length, 8, label), f"{label}: the header")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise error(f"has {len(header)} tensors, more than the limit of {MAX_TENSORS}")
    data_start = 8 + length
    tensors: dict[str, SafeTensor] = {}
    for name, entry in header.items():
        if not name or len(name) > MAX_NAME_CHARS or not _is_text(name):
            raise error(f"the tensor name {show_name(name)} is empty, too long or not text")
        try:
            tensors[name] = _tensor(name, entry, data_start)
        except ValueError as wrong:
            raise error(f"tensor {show_name(name)} {wrong}") from None
    _check_ranges(tensors, data_start, size, error)
    return tensors


def _pread(fd: int, count: int, offset: int, label: str) -> bytes:
    parts = []
    while count:
        try:
            part = os.pread(fd, min(count, 1 << 20), offset)
        except OSError as error:
            raise ModelFileError(
                f"{label}: can't be read at byte {offset} ({error.strerror}); check the disk"
            ) from None
        if not part:
            raise ModelFileError(f"{label}: became shorter while it was read; {INCOMPLETE}")
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # JSON can escape a lone surrogate
        return False
    return True


def _tensor(name: str, entry: Any, data_start: int) -> SafeTensor:
    """ValueError: what is wrong with the entry."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError("has no dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"has the unknown dtype {show_name(str(dtype))}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS:
        raise ValueError(f"has no shape of at most {MAX_DIMS} dimensions")
    if not all(type(dim) is int and 0 <= dim <= MAX_DIM for dim in shape):
        raise ValueError("has an impossible shape")
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError("has data_offsets that aren't a pair")
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < 1 << 63:
        raise ValueError("has impossible data_offsets")
    nbytes = math.prod(shape) * DTYPES[dtype][0]
    if end - begin != nbytes:
        raise ValueError(f"has {end - begin} bytes of data, its shape {shape} needs {nbytes}")
    return SafeTensor(name, dtype, tuple(shape), data_start + begin, nbytes)


def _check_ranges(tensors: dict[str, SafeTensor], data_start: int, size: int, error: Any) -> None:
    """The tensors must cover the data exactly: no overlap, no hole, nothing behind."""
    order = sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes))
    at = data_start
    for tensor in order:
        if tensor.offset < at:
            before = next(a for a, b in pairwise(order) if b is tensor)
            raise error(
                f"tensors {show_name(before.name)} and {show_name(tensor.name)} overlap at byte"
                f" {tensor.offset}"
            )
        if tensor.offset > at:
            raise error(f"nothing describes the bytes {at} to {tensor.offset}")
        at = tensor.offset + tensor.nbytes
        if at > size:
            raise error(
                f"tensor {show_name(tensor.name)} ends at byte {at}, but the file ends at {size}"
            )
    if at != size:
        raise error(f"{size - at} bytes behind the last tensor belong to none")
