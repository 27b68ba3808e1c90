"""Tokenizers for the text tests: of a tiny vocabulary, and of the real model files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_vocabulary import tiny_metadata

from draftproof.formats.gguf import GgufFile
from draftproof.text import Tokenizer

FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen-1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer.from_gguf(tiny_metadata())


def _cache() -> Path:
    if folder := os.environ.get("DRAFTPROOF_CACHE"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "draftproof"


_loaded: dict[str, tuple[Mapping[str, Any], Tokenizer]] = {}


def _load(name: str) -> tuple[Mapping[str, Any], Tokenizer]:
    if name not in _loaded:
        path = _cache() / "models" / FILES[name]
        if not path.exists():
            pytest.skip(f"{path.name} is not in the cache")
        with GgufFile.open(path) as file:
            metadata = dict(file.metadata)
        _loaded[name] = metadata, Tokenizer.from_gguf(metadata)
    return _loaded[name]


@pytest.fixture(scope="session", params=list(FILES))
def real(request: pytest.FixtureRequest) -> tuple[Mapping[str, Any], Tokenizer]:
    """(metadata, tokenizer) of each real model file."""
    return _load(request.param)


@pytest.fixture(scope="session")
def qwen() -> tuple[Mapping[str, Any], Tokenizer]:
    return _load("qwen-0.5b")


@pytest.fixture(scope="session")
def smollm() -> tuple[Mapping[str, Any], Tokenizer]:
    return _load("smollm2")
