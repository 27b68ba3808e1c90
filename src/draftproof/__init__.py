"""Draftproof: Qwen models on a CPU, made faster by speculation that cannot change a byte.

Importing it has no side effects and loads nothing heavy: the names below come with their first use,
the native extension with the first model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftproof.config import EngineConfig, SpeculativeConfig
    from draftproof.errors import DraftproofError
    from draftproof.llm import LLM
    from draftproof.outputs import Completion, Delta, TokenLogprob
    from draftproof.sampling import Grammar, SamplingParams

    __version__: str
else:
    _HOMES = {
        "LLM": "llm",
        "Completion": "outputs",
        "Delta": "outputs",
        "DraftproofError": "errors",
        "EngineConfig": "config",
        "Grammar": "sampling",
        "SamplingParams": "sampling",
        "SpeculativeConfig": "config",
        "TokenLogprob": "outputs",
    }

    def __getattr__(name):  # PEP 562
        if name == "__version__":
            value = _version()
        elif name in _HOMES:
            from importlib import import_module

            value = getattr(import_module(f"draftproof.{_HOMES[name]}"), name)
        else:
            raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("draftproof")
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return "0+unknown"


__all__ = [
    "LLM",
    "Completion",
    "Delta",
    "DraftproofError",
    "EngineConfig",
    "Grammar",
    "SamplingParams",
    "SpeculativeConfig",
    "TokenLogprob",
    "__version__",
]
