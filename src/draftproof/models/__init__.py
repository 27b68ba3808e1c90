"""Model families: architecture name -> the file that records its program. One line adds a
family."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from draftproof.config import EngineConfig
from draftproof.errors import OutOfMemoryError
from draftproof.models import llama, qwen2, qwen3, qwen3moe, qwen3vl
from draftproof.models.config import ModelConfig
from draftproof.models.folder_source import FolderSource
from draftproof.models.gguf_source import GgufSource
from draftproof.models.loader import LoadedModel, Progress, load
from draftproof.models.quantized_source import QuantizedSource
from draftproof.models.recipe import FLOATS
from draftproof.models.source import ModelSource
from draftproof.models.source_digest import source_digest

FAMILIES = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3moe": qwen3moe,
    "qwen3vl": qwen3vl,
    "qwen3vlmoe": qwen3vl,
}
PERMUTED = frozenset(name for name, family in FAMILIES.items() if family.PERMUTED)


def open_model(path: Path) -> ModelSource:
    """The GGUF file or the safetensors folder at `path`, opened and checked; the caller closes it.

    Raises ModelNotFoundError, ModelFileError.
    """
    return FolderSource(path) if path.is_dir() else GgufSource(path, PERMUTED)


def load_model(
    path: Path,
    config: EngineConfig,
    progress: Progress | None = None,
    mmproj: Path | None = None,
) -> LoadedModel:
    """Loads the model at `path` for `config`, and its vision tower from the file `mmproj`; see
    open_model and models.loader.load for errors."""
    with closing(open_model(path)) as opened:
        source = opened
        if config.quantize is not None:
            source = QuantizedSource(opened, config.quantize, config.threads)
        try:
            return load(source, config, FAMILIES, source_digest, progress, mmproj)
        except OutOfMemoryError as error:
            if any(t.ggml_type not in FLOATS for t in source.tensors.values()):
                raise
            raise OutOfMemoryError(f"{error}; or pack the weights: --quantize q4_k_m") from None


__all__ = ["FAMILIES", "PERMUTED", "LoadedModel", "ModelConfig", "load_model", "open_model"]
