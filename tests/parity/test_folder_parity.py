"""Folders that transformers itself wrote: its greedy tokens are ours, from the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftproof import LLM, SamplingParams
from draftproof.config import EngineConfig
from draftproof.models import FAMILIES, load_model
from draftproof.models.convert import convert
from parity.logits import all_logits
from parity.reference import build, observe
from tiny_folders import tokenizer_json
from tiny_models import SPECS, TinySpec, hf_weights

NAMES = ["llama", "qwen2-untied", "qwen3", "qwen3-untied", "qwen3moe"]
STEPS = 64
SETTINGS: dict[str, Any] = {"kv_type": "f32", "ctx": 512, "threads": 1}


def saved(folder: Path, spec: TinySpec, **config: Any) -> tuple[Any, Path]:
    """(the model in float32, the folder that its save_pretrained made), with `config` changed."""
    model = build(spec, hf_weights(spec), torch.float32)
    for key, value in config.items():
        setattr(model.config, key, value)
    if config:
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    model.save_pretrained(folder, max_shard_size="200KB")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(spec)), encoding="utf-8")
    return model, folder


def prompt(spec: TinySpec, tokens: int) -> NDArray[np.int32]:
    rng = np.random.default_rng(spec.seed + 2)
    return rng.integers(0, spec.vocab - 40, tokens).astype(np.int32)


def greedy(model: Any, ids: NDArray[np.int32], allowed: int) -> list[int]:
    """STEPS tokens by transformers, among the ids that have a text."""
    sequence = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        for _ in range(STEPS):
            logits = model(sequence, use_cache=False).logits[0, -1, :allowed]
            sequence = torch.cat([sequence, logits.argmax()[None, None]], dim=1)
    return [int(i) for i in sequence[0, len(ids) :]]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """From the folder, and from the GGUF file of the same weights."""
    spec = SPECS[name]
    model, folder = saved(tmp_path / "m", spec)
    assert len(list(folder.glob("*.safetensors"))) > 1
    file = tmp_path / "m.gguf"
    convert(folder, file, "f32", 1, FAMILIES)
    ids = prompt(spec, 40)
    answers = []
    for path in (folder, file):
        with LLM(path, **SETTINGS) as llm:
            ours = llm.generate(
                [int(i) for i in ids], SamplingParams(max_tokens=STEPS, ignore_eos=True)
            )
            allowed = llm.info.vocab_size
        answers.append(list(ours.token_ids))
    assert answers[0] == answers[1] == greedy(model, ids, allowed)
    assert len(answers[0]) == STEPS
    assert len(set(answers[0])) > 3


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn with settings": {
        "rope_type": "yarn",
        "factor": 3.0,
        "original_max_position_embeddings": 150,
        "beta_fast": 20.0,
        "beta_slow": 0.5,
        "attention_factor": 1.3,
        "truncate": False,
    },
}


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
@pytest.mark.parametrize("kind", ROPES)
def test_rope_scaling_is_that_of_transformers(kind: str, name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    rope = {**ROPES[kind], "rope_theta": spec.theta}
    model, folder = saved(tmp_path, spec, rope_parameters=rope)
    ids = prompt(spec, 200)
    expected = observe(model, ids).logits
    ours = all_logits(load_model(folder, EngineConfig(**SETTINGS)), ids, 64)
    error = np.abs(ours - expected).max() / expected.std()
    plain = observe(build(spec, hf_weights(spec), torch.float32), ids).logits
    assert error < 1e-3 < np.abs(plain - expected).max() / expected.std()
