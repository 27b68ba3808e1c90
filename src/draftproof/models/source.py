"""What the loader needs of a model on disk, whatever form it lies in there.

Names are GGUF's and rows are in Hugging Face's order (half-split), so that a family's file and the
packing know one form only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from draftproof.errors import ModelFileError
from draftproof.formats import TensorInfo
from draftproof.models.config import ModelConfig
from draftproof.text import ChatTemplate, Tokenizer


class ModelSource(Protocol):
    """An open model on disk; `close` ends it. Everything in it has been checked except what only
    the model's configuration can tell: names and shapes of the tensors.

    path: the file or folder. files: all files whose bytes decide what the model computes.
    tensors: by GGUF name, in the order in which reading is cheapest; vectors are always F32.
    """

    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]

    def config(self) -> ModelConfig: ...
    def tokenizer(self) -> Tokenizer: ...
    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate: ...

    def generation_config(self) -> dict[str, Any]:
        """How the model's makers advise to sample, by Hugging Face's names; may be empty."""

    def data(self, name: str) -> memoryview:
        """The bytes of a tensor, rows in order. Raises ModelFileError."""

    def release(self, name: str) -> None:
        """Gives the memory behind `data` back."""

    def shown(self, name: str) -> str:
        """The name that the tensor has on disk, for messages."""

    def error(self, what: str, hint: str = ...) -> ModelFileError:
        """An error about this model, to raise."""

    def close(self) -> None: ...
