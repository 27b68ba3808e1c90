"""Model families: architecture name -> the file that records its program. One line adds a
family."""

from __future__ import annotations

from pathlib import Path

from draftproof.config import EngineConfig
from draftproof.models import llama, qwen2, qwen3, qwen3moe
from draftproof.models.config import ModelConfig
from draftproof.models.loader import LoadedModel, Progress, load
from draftproof.models.source_digest import file_digest

FAMILIES = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3moe": qwen3moe}


def load_model(path: Path, config: EngineConfig, progress: Progress | None = None) -> LoadedModel:
    """Loads the GGUF file at `path` for `config`; see models.loader.load for the errors."""
    return load(path, config, FAMILIES, file_digest, progress)


__all__ = ["FAMILIES", "LoadedModel", "ModelConfig", "load_model"]
