"""A model whose float weights are quantized while they are read, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftproof import _native
from draftproof.errors import ModelFileError
from draftproof.formats import GGML_TYPES, TensorInfo
from draftproof.models.config import ModelConfig
from draftproof.models.recipe import check_source, target_type
from draftproof.models.source import ModelSource
from draftproof.text import ChatTemplate, Tokenizer


class QuantizedSource:
    """See ModelSource; `recipe` is a key of RECIPES. Closing it closes
    `source`."""

    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, source: ModelSource, recipe: str, threads: int) -> None:
        """Raises ModelFileError, InvalidRequestError (it is quantized already)."""
        check_source(recipe, source.tensors)
        model = source.config()
        self.path = source.path
        self.files = source.files
        self.tensors = {
            name: _retyped(tensor, target_type(recipe, tensor, model))
            for name, tensor in source.tensors.items()
        }
        self._source = source
        self._threads = threads

    def config(self) -> ModelConfig:
        return self._source.config()

    def tokenizer(self) -> Tokenizer:
        return self._source.tokenizer()

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate:
        return self._source.chat_template(tokenizer)

    def generation_config(self) -> dict[str, Any]:
        return self._source.generation_config()

    def data(self, name: str) -> memoryview:
        source, target = self._source.tensors[name], self.tensors[name]
        data = self._source.data(name)
        if source.ggml_type == target.ggml_type:
            return data
        *leading, width = source.shape
        rows = 1
        for dim in leading:
            rows *= dim
        try:
            packed = _native.quantize(
                data, source.ggml_type, target.ggml_type, rows, width, self._threads
            )
        except ValueError as error:
            kind = GGML_TYPES[target.ggml_type].name
            raise self.error(f"{self.shown(name)} can't become {kind}: {error}") from None
        self._source.release(name)
        out: memoryview = packed.data
        return out

    def release(self, name: str) -> None:
        self._source.release(name)

    def shown(self, name: str) -> str:
        return self._source.shown(name)

    def error(self, what: str, hint: str = "get the weights anew") -> ModelFileError:
        return self._source.error(what, hint)

    def close(self) -> None:
        self._source.close()


def _retyped(tensor: TensorInfo, ggml_type: int) -> TensorInfo:
    kind = GGML_TYPES[ggml_type]
    count = 1
    for dim in tensor.shape:
        count *= dim
    return replace(tensor, ggml_type=ggml_type, nbytes=count // kind.block_elems * kind.block_bytes)
