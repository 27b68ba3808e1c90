"""Draftproof: Qwen models on a CPU, made faster by speculation that cannot change a byte.

Importing it has no side effects; the native extension is loaded with the first model.
"""

from __future__ import annotations

from importlib import metadata

from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.errors import DraftproofError
from draftproof.llm import LLM
from draftproof.outputs import Completion, Delta
from draftproof.request import SamplingParams

try:
    __version__ = metadata.version("draftproof")
except metadata.PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

__all__ = [
    "LLM",
    "Completion",
    "Delta",
    "DraftproofError",
    "EngineConfig",
    "SamplingParams",
    "SpeculativeConfig",
    "__version__",
]
