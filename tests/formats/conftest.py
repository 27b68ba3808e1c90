"""Fixtures for model files: the real ones of the cache, and files made up on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from model_cache import cached_model

MODEL_FILES = (
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
)


@pytest.fixture(params=MODEL_FILES)
def real_file(request: pytest.FixtureRequest) -> Path:
    path = cached_model(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not in the cache")
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes bytes to a file `bad.gguf` and gives its path."""

    def write_bytes(data: bytes) -> Path:
        path = tmp_path / "bad.gguf"
        path.write_bytes(data)
        return path

    return write_bytes
