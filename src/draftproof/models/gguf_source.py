"""A GGUF file as a source of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.errors import ModelFileError
from draftproof.formats import GgufFile, TensorInfo
from draftproof.models.config import ModelConfig
from draftproof.models.gguf_metadata import SAMPLING_KEYS
from draftproof.text import ChatTemplate, Tokenizer

_DAMAGED = "the file is damaged or incomplete, download it again"


class GgufSource:
    """See ModelSource. permuted: architectures whose converter permutes the rows of q and k."""

    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: Path, permuted: frozenset[str]) -> None:
        """Opens the file. Raises ModelNotFoundError, ModelFileError."""
        self._file = GgufFile.open(path)
        self.path = path
        self.files = self._file.files
        self.tensors = {n: t for n, t in self._file.tensors.items() if n != "rope_freqs.weight"}
        self._permuted = permuted
        self._config: ModelConfig | None = None

    def config(self) -> ModelConfig:
        if self._config is None:
            self._config = ModelConfig.from_gguf(self._file)
        return self._config

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_gguf(self._file.metadata)

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate:
        return ChatTemplate.from_gguf(self._file.metadata, tokenizer)

    def generation_config(self) -> dict[str, Any]:
        values = self._file.metadata
        return {name: values[key] for name, (key, _) in SAMPLING_KEYS.items() if key in values}

    def data(self, name: str) -> memoryview:
        view = self._file.data(name)
        config = self.config()
        if config.architecture in self._permuted and name.endswith(
            ("attn_q.weight", "attn_k.weight")
        ):
            return half_split_rows(view, self.tensors[name].shape[0], config.head_dim)
        return view

    def release(self, name: str) -> None:
        self._file.release(name)

    def shown(self, name: str) -> str:
        return name

    def error(self, what: str, hint: str = _DAMAGED) -> ModelFileError:
        return self._file.error(what, hint)

    def close(self) -> None:
        self._file.close()


def half_split_rows(data: memoryview, rows: int, head_dim: int) -> memoryview:
    """Undoes the converter's permutation of q and k: row 2j+s of a head becomes row
    s*head_dim/2+j. Whole rows move, so blocks of any type may."""
    heads = np.frombuffer(data, np.uint8).reshape(rows // head_dim, head_dim // 2, 2, -1)
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(-1).data
