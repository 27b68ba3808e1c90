"""An open GGUF model: checked metadata values and read-only views of memory-mapped tensors.

Owns the typed access to metadata. The container format is `gguf_header`'s business, the files of a
model `gguf_shards`'; what the keys and tensors mean is the models'.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from draftproof.errors import ModelFileError
from draftproof.formats.dequantize import GGML_TYPES, GgmlType, dequantize
from draftproof.formats.gguf_header import DAMAGED, TensorInfo, show_name
from draftproof.formats.gguf_shards import Shard, open_shards
from draftproof.formats.mapped_file import file_label

__all__ = ["GGML_TYPES", "GgmlType", "GgufFile", "TensorInfo", "dequantize"]


class GgufFile:
    """An open GGUF file, or all shards of a split one: metadata, tensor infos, and read-only views
    of the tensor data.

    A context manager. Views handed out stay valid after `close`, which then only drops this
    object's own hold on the mappings. files: every file, in order; an offset counts in its own.
    """

    path: Path
    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: Path, shards: tuple[Shard, ...]) -> None:
        """For `open` only, which makes the checks the methods rely on."""
        self.path = path
        self.files = tuple(shard.path for shard in shards)
        self.metadata = shards[0].header.metadata
        self.tensors = {n: t for shard in shards for n, t in shard.header.tensors.items()}
        self._shards = shards
        self._holder = {n: shard.mapped for shard in shards for n in shard.header.tensors}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Read the header of `path` and map the file; of a shard, those of all shards.

        Raises ModelNotFoundError if there is no such file, or a shard of it is missing, and
        ModelFileError for everything that isn't a sound GGUF file of supported tensor types.
        """
        path = Path(path)
        return cls(path, open_shards(path))

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the mappings; each goes when its last view goes. May be called twice."""
        for shard in self._shards:
            shard.mapped.close()

    def error(self, what: str, hint: str = DAMAGED) -> ModelFileError:
        """An error about this file, to raise: file name, what is wrong and where, what to do."""
        return ModelFileError(f"{file_label(self.path)}: {what}; {hint}")

    def _tensor(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise self.error(
                f"has no tensor {show_name(name)}", "the file isn't a complete model of this kind"
            )
        return info

    def data(self, name: str) -> memoryview:
        """The bytes of a tensor, a read-only view into the mapping, `nbytes` long.

        Raises ModelFileError if there is no such tensor, or if the file has become shorter since
        it was opened (see MappedFile.view).
        """
        info = self._tensor(name)
        return self._holder[name].view(info.offset, info.nbytes, f"tensor {show_name(name)}")

    def release(self, name: str) -> None:
        """Give the resident pages of a tensor back; a later `data` reads them from disk again."""
        info = self._tensor(name)
        self._holder[name].release(info.offset, info.nbytes)

    def digest(self) -> str:
        """SHA-256 (hex) of the header, tensor infos included, and of the file's size as u64.

        Of shards: of their digests. The tensor data doesn't enter: two files that differ only there
        have the same digest.
        """
        digests = [shard.header.digest for shard in self._shards]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def int_value(self, key: str, lo: int, hi: int, default: int | None = None) -> int:
        """An integer from lo to hi. An array of equal integers counts as one.

        A missing key gives the default, or ModelFileError without one; so do the other getters.
        """
        value = self._scalar(key, default)
        if type(value) is not int:
            raise self._wrong(key, "must be an integer", value)
        if not lo <= value <= hi:
            raise self._wrong(key, f"must be from {lo} to {hi}", value)
        return value

    def float_value(self, key: str, lo: float, hi: float, default: float | None = None) -> float:
        """A finite number from lo to hi. An array of equal numbers counts as one."""
        value = self._scalar(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self._wrong(key, "must be a finite number", value)
        if not lo <= value <= hi:
            raise self._wrong(key, f"must be from {lo} to {hi}", value)
        return float(value)

    def bool_value(self, key: str, default: bool | None = None) -> bool:
        """A boolean. An array of equal booleans counts as one."""
        value = self._scalar(key, default)
        if type(value) is not bool:
            raise self._wrong(key, "must be a boolean", value)
        return value

    def str_value(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "must be a string", value)
        return value

    def str_list(self, key: str, default: list[str] | None = None) -> list[str]:
        """An array of strings."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size == 0:
            return []  # writers give an empty array any element type
        if not isinstance(value, list):
            raise self._wrong(key, "must be an array of strings", value)
        return value

    def int_list(self, key: str, lo: int, hi: int, default: list[int] | None = None) -> list[int]:
        """An array of integers, each from lo to hi."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            value = value.tolist()
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._wrong(key, "must be an array of integers", value)
        for item in value:
            if not lo <= item <= hi:
                raise self._wrong(key, f"must hold integers from {lo} to {hi}", item)
        return value

    def _get(self, key: str, default: object) -> Any:
        value = self.metadata.get(key, default)
        if value is None:
            raise self.error(
                f"metadata key {show_name(key)} is missing",
                "get a file made by a current converter",
            )
        return value

    def _scalar(self, key: str, default: object) -> Any:
        """A value, where an array of equal numbers (one per layer) collapses to that number."""
        value = self._get(key, default)
        if not isinstance(value, np.ndarray):
            return value
        if value.size == 0:
            raise self._wrong(key, "must not be an empty array", value)
        if not (value == value[0]).all():
            raise self._wrong(key, "must be the same for all layers", value)
        return value[0].item()

    def _wrong(self, key: str, rule: str, value: object) -> ModelFileError:
        if isinstance(value, np.ndarray | list):
            shown = f"an array of {len(value)} values"
        else:
            shown = show_name(value) if isinstance(value, str) else str(value)
        return self.error(f"metadata key {show_name(key)} {rule} (is {shown})", "get another file")
