"""`quantize`: which tensor gets which type, and the bits of the same blocks out of a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from draftproof import LLM, _native
from draftproof.config import EngineConfig
from draftproof.errors import InvalidRequestError, ModelFileError, OutOfMemoryError
from draftproof.formats import GGML_TYPES, TensorInfo
from draftproof.models import load_model, open_model
from draftproof.models.config import ModelConfig
from draftproof.models.quantized_source import QuantizedSource
from draftproof.models.recipe import target_type
from parity.logits import all_logits
from tiny_blocks import Array, Packed
from tiny_folders import write_folder, write_safetensors
from tiny_models import (
    SPECS,
    TinyModels,
    gguf_tensors,
    hf_weights,
    metadata,
    write_gguf,
)

CONFIG: dict[str, Any] = {"kv_type": "f32", "ctx": 256, "threads": 1}
NAMES = ("llama", "qwen2-wide", "qwen3-wide-untied", "qwen3moe-wide")


def logits(path: Path, name: str, **fields: Any) -> Array:
    """Their bits, as uint32."""
    rng = np.random.default_rng(SPECS[name].seed + 2)
    ids = rng.integers(0, SPECS[name].vocab, 40).astype(np.int32)
    values = all_logits(load_model(path, EngineConfig(**CONFIG, **fields)), ids, 64)
    return values.view(np.uint32)


def packed(tensor: Array, ggml_type: int) -> Array | Packed:
    """A GGUF tensor, blocks by the quantizer that is tested elsewhere."""
    if tensor.ndim == 1 or ggml_type == 0:
        return tensor
    *leading, width = tensor.shape
    rows = int(np.prod(leading))
    data = _native.quantize(np.ascontiguousarray(tensor), 0, ggml_type, rows, width, 1)
    return Packed(data.reshape(*leading, -1), Type(ggml_type))


@pytest.mark.parametrize("recipe", ["q8_0", "q4_k_m"])
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_are_those_of_a_file_with_these_blocks(
    name: str, recipe: str, tmp_path: Path
) -> None:
    spec = SPECS[name]
    folder = write_folder(tmp_path / "m", spec)
    with_types = QuantizedSource(open_model(folder), recipe, 1)
    types = {tensor: info.ggml_type for tensor, info in with_types.tensors.items()}
    with_types.close()
    tensors = {n: packed(w, types[n]) for n, w in gguf_tensors(spec, hf_weights(spec)).items()}
    write_gguf(tmp_path / "m.gguf", spec.arch, metadata(spec), tensors)
    ours = logits(folder, name, quantize=recipe)
    assert np.array_equal(ours, logits(tmp_path / "m.gguf", name))
    assert not np.array_equal(ours, logits(folder, name))


def test_a_float_gguf_is_quantized_like_its_folder(tiny: TinyModels, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"], "BF16")
    assert np.array_equal(
        logits(folder, "qwen3", quantize="q8_0"),
        logits(tiny.path("qwen3", "BF16"), "qwen3", quantize="q8_0"),
    )


def test_it_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    seen = set()
    for quantize in (None, "q8_0", "q4_k_m"):
        with LLM(folder, ctx=256, threads=1, quantize=quantize) as llm:
            seen.add(llm.info.fingerprint)
    assert len(seen) == 3


def test_mistakes_are_refused(tiny: TinyModels, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="quantize must be one of q8_0, q4_k_m"):
        EngineConfig(quantize="q3")
    with pytest.raises(InvalidRequestError, match="is Q8_0 already"):
        load_model(tiny.path("qwen3", "Q8_0"), EngineConfig(**CONFIG, quantize="q4_k_m"))
    spec = SPECS["qwen3"]
    folder = write_folder(tmp_path / "m", spec)
    weights = hf_weights(spec)
    weights["model.layers.1.mlp.up_proj.weight"][5, 7] = np.inf
    tensors = {name: ("F32", w.shape, w.tobytes()) for name, w in weights.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.up_proj\.weight .*row 5"):
        load_model(folder, EngineConfig(**CONFIG, quantize="q8_0"))


def test_a_float_model_that_does_not_fit_names_the_way_out(
    tiny: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.models.kv_budget.available_bytes", lambda: 1 << 20)
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    with pytest.raises(OutOfMemoryError, match=r"are free: .*; or pack the weights: --quantize"):
        load_model(folder, EngineConfig(**CONFIG))
    with pytest.raises(OutOfMemoryError) as caught:
        load_model(folder, EngineConfig(**CONFIG, quantize="q8_0"))
    assert "--quantize" not in str(caught.value)


# --- the recipe -----------------------------------------------------------------------------------


def model(layers: int, tied: bool) -> ModelConfig:
    return ModelConfig("qwen2", "m", layers, 4096, 1536, 8960, 12, 2, 128, 1e-6, 1e6, 151936, tied)


def type_of(name: str, *shape: int, layers: int = 28, tied: bool = True) -> str:
    tensor = TensorInfo(name, 30, shape, 0, 0)
    return GGML_TYPES[target_type("q4_k_m", tensor, model(layers, tied))].name


def test_q4_k_m_is_the_mix_of_real_files() -> None:
    """As the published 1.5B file has it: half of v and down Q6_K, the head too."""
    counts = Counter(type_of(f"blk.{i}.attn_v.weight", 256, 1536) for i in range(28))
    assert counts == {"Q4_K": 14, "Q6_K": 14}
    assert [i for i in range(28) if type_of(f"blk.{i}.ffn_down.weight", 1536, 8960) == "Q6_K"] == [
        *(0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27)
    ]
    assert {type_of(f"blk.{i}.attn_q.weight", 1536, 1536) for i in range(28)} == {"Q4_K"}
    assert type_of("token_embd.weight", 151936, 1536) == "Q6_K"
    assert type_of("token_embd.weight", 151936, 1536, tied=False) == "Q4_K"
    assert type_of("output.weight", 151936, 1536, tied=False) == "Q6_K"
    assert type_of("blk.0.attn_norm.weight", 1536) == "F32"
    assert type_of("blk.0.ffn_gate_inp.weight", 128, 1536) == "F32"


def test_rows_that_blocks_do_not_divide_get_stand_ins() -> None:
    """As the published 0.5B file (rows of 896) has it."""
    assert type_of("blk.0.attn_q.weight", 896, 896, layers=24) == "Q5_0"
    assert type_of("blk.0.attn_v.weight", 128, 896, layers=24) == "Q8_0"
    assert type_of("token_embd.weight", 151936, 896, layers=24) == "Q8_0"
    assert type_of("blk.0.ffn_up.weight", 64, 100, layers=24) == "F16"
