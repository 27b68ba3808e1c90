"""A synthetic tower is one that loads, encodes, and belongs to its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftproof.bench import synth_vision
from draftproof.config import EngineConfig
from draftproof.errors import InvalidRequestError
from draftproof.models.config import ModelConfig
from draftproof.models.vision_tower import load_tower


def test_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(
        synth_vision.TOWERS["qwen3-vl-2b"],
        num_layers=3,
        hidden_size=64,
        intermediate_size=96,
        num_heads=2,
        output_size=32,
        deepstack_layers=(1,),
    )
    monkeypatch.setitem(synth_vision.TOWERS, "small", small)
    path, again = tmp_path / "a.gguf", tmp_path / "b.gguf"
    size = synth_vision.synthesise_tower("small", path, seed=3)
    synth_vision.synthesise_tower("small", again, seed=3)
    assert path.stat().st_size == size
    assert path.read_bytes() == again.read_bytes()
    text = ModelConfig(
        "qwen3vl", "m", 2, 64, 32, 64, 2, 1, 16, 1e-6, 1e4, 10, True, deepstack_layers=1
    )
    tower = load_tower(path, text, EngineConfig(threads=1), "")
    assert replace(tower.config, layer_norm_eps=1e-6) == small
    vectors = tower.vectors(8)
    vectors[:] = np.random.default_rng(1).uniform(-1, 1, vectors.shape)
    features = tower.encode(vectors, 2, 4)
    assert features.shape == (2, 64)
    assert 0.1 < features.std() < 10


def test_a_model_without_a_tower(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no vision tower"):
        synth_vision.synthesise_tower("qwen3-8b", tmp_path / "a.gguf")
