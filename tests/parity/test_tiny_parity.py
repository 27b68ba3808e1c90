"""Logits of tiny random models against transformers, and proof that the bound catches mistakes.

Float weights and a float32 KV cache leave only rounding between the two, so the bound is small:
1e-3 of the logits' standard deviation (rounding alone is some 1e-5). Every classic mistake of
traps.py, injected, must exceed it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftproof.config import EngineConfig
from draftproof.errors import ModelFileError
from draftproof.models import load_model
from parity import traps
from parity.logits import all_logits
from parity.reference import GgufModel, Observed, build, observe
from tiny_blocks import MIXED, TENSOR_TYPES
from tiny_models import (
    ARCHITECTURES,
    SPECS,
    TinyModels,
    gguf_tensors,
    hf_weights,
    metadata,
    write_gguf,
)

BOUND = 1e-3
SHORT, LONG = 80, 1100  # tokens; the long one crosses two borders of the attention's spans
SPAN = 512
CHUNKS = (1, 7, 64)
FLOAT_CONFIG: dict[str, Any] = {"kv_type": "f32", "ctx": 1152, "threads": 1}


@cache
def prompt(name: str, tokens: int = SHORT) -> NDArray[np.int32]:
    """Random token ids [tokens], ids of padding rows among them."""
    rng = np.random.default_rng(SPECS[name].seed + 2)
    return rng.integers(0, SPECS[name].vocab, tokens).astype(np.int32)


@cache
def reference(name: str, tokens: int = SHORT) -> Observed:
    spec = SPECS[name]
    return observe(build(spec, hf_weights(spec), torch.float64), prompt(name, tokens))


def relative_error(logits: NDArray[Any], expected: NDArray[np.float64]) -> float:
    """The greatest error in units of the expected logits' standard deviation."""
    assert logits.shape == expected.shape
    return float(np.abs(logits - expected).max() / expected.std())


def spoilt_file(folder: Path, trap: traps.FileTrap) -> Path:
    spec = SPECS[trap.model]
    meta, tensors = metadata(spec), gguf_tensors(spec, hf_weights(spec))
    trap.spoil(spec, meta, tensors)
    path = folder / "spoilt.gguf"
    write_gguf(path, spec.arch, meta, tensors)
    return path


@pytest.mark.parametrize("name", SPECS)
def test_models_are_worth_testing_on(name: str) -> None:
    seen = reference(name)
    assert seen.logits.std() >= 1
    assert seen.attention_peak >= 0.2  # uniform over 40..80 positions would be about 0.02


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", SPECS)
def test_logits_equal_transformers(name: str, chunk: int, tiny: TinyModels, load: Any) -> None:
    loaded = load(tiny.path(name), **FLOAT_CONFIG)
    error = relative_error(all_logits(loaded, prompt(name), chunk), reference(name).logits)
    assert error <= BOUND


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_long_prompts_equal_transformers(arch: str, tiny: TinyModels, load: Any) -> None:
    loaded = load(tiny.path(arch), **FLOAT_CONFIG)
    error = relative_error(all_logits(loaded, prompt(arch, LONG), 64), reference(arch, LONG).logits)
    assert error <= BOUND


@pytest.mark.parametrize("trap", traps.FILE_TRAPS, ids=lambda t: f"{t.model}: {t.name}")
def test_bound_catches_spoilt_file(trap: traps.FileTrap, tmp_path: Path) -> None:
    loaded = load_model(spoilt_file(tmp_path, trap), EngineConfig(**FLOAT_CONFIG))
    logits = all_logits(loaded, prompt(trap.model), 64)
    assert relative_error(logits, reference(trap.model).logits) > BOUND


@pytest.mark.parametrize("place", ["behind RoPE", "over all heads"])
def test_bound_catches_misplaced_qk_norm(place: str, tiny: TinyModels, load: Any) -> None:
    spec = SPECS["qwen3"]
    wrong = build(spec, hf_weights(spec), torch.float64)
    if place == "behind RoPE":
        with traps.qk_norm_after_rope(wrong):
            expected = observe(wrong, prompt("qwen3")).logits
    else:
        traps.qk_norm_over_all_heads(wrong)
        expected = observe(wrong, prompt("qwen3")).logits
    logits = all_logits(load(tiny.path("qwen3"), **FLOAT_CONFIG), prompt("qwen3"), 64)
    assert relative_error(logits, expected) > BOUND


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_bound_catches_missing_causal_mask(arch: str, tiny: TinyModels, load: Any) -> None:
    spec = SPECS[arch]
    model = build(spec, hf_weights(spec), torch.float64)
    everything = np.ones((SHORT, SHORT), np.bool_)
    expected = observe(model, prompt(arch), everything).logits
    logits = all_logits(load(tiny.path(arch), **FLOAT_CONFIG), prompt(arch), 64)
    assert relative_error(logits, expected) > BOUND


@pytest.mark.parametrize("lost", ["the first span", "one position of it"])
def test_bound_catches_lost_positions(lost: str, tiny: TinyModels, load: Any) -> None:
    spec = SPECS["qwen3"]
    model = build(spec, hf_weights(spec), torch.float64)
    visible = np.tri(LONG, dtype=np.bool_)
    visible[SPAN:, slice(0, SPAN) if lost == "the first span" else 100] = False
    expected = observe(model, prompt("qwen3", LONG), visible).logits
    logits = all_logits(load(tiny.path("qwen3"), **FLOAT_CONFIG), prompt("qwen3", LONG), 64)
    assert relative_error(logits, expected) > BOUND


def test_head_dim_is_never_guessed_against_the_shapes(tmp_path: Path) -> None:
    spec = SPECS["qwen3"]
    meta = metadata(spec)
    del meta["qwen3.attention.key_length"], meta["qwen3.attention.value_length"]
    write_gguf(tmp_path / "x.gguf", spec.arch, meta, gguf_tensors(spec, hf_weights(spec)))
    with pytest.raises(ModelFileError) as refused:
        load_model(tmp_path / "x.gguf", EngineConfig(**FLOAT_CONFIG))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("type_name", [*TENSOR_TYPES, MIXED])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tensor_types_keep_their_values(
    arch: str, type_name: str, tiny: TinyModels, load: Any
) -> None:
    """Rounding activations to int8 costs a few hundredths of a deviation; a block read wrongly (a
    nibble order, a scale, a min with the wrong sign) costs about a whole one. Where rounding tips
    the choice of an expert a row jumps: with experts the bound is wider."""
    path = tiny.path(f"{arch}-wide-untied", type_name)
    model, ids = GgufModel(path), prompt(f"{arch}-wide-untied")
    expected = observe(build(model.spec, model.weights(), torch.float32), ids).logits
    logits = all_logits(load(path, **FLOAT_CONFIG), ids, 64)
    rms = float(np.sqrt(np.square(logits - expected).mean()) / expected.std())
    assert rms <= (0.3 if model.spec.experts else 0.1)
    if type_name in ("F32", "F16", "BF16"):
        assert relative_error(logits, expected) <= BOUND
