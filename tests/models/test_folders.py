"""Safetensors folders: the same bits as the GGUF file of the same weights; broken ones refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof import LLM
from draftproof.config import EngineConfig
from draftproof.errors import DraftproofError
from draftproof.models import load_model, open_model
from parity.logits import all_logits
from tiny_folders import bf16_values, config_json, spoil, write_folder, write_safetensors
from tiny_models import SPECS, TinyModels, gguf_tensors, hf_weights, metadata, write_gguf

CONFIG: dict[str, Any] = {"kv_type": "f32", "ctx": 256, "threads": 1}
NAMES = [name for name in SPECS if "wide" not in name]


def prompt(name: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    rng = np.random.default_rng(SPECS[name].seed + 2)
    return rng.integers(0, SPECS[name].vocab, 80).astype(np.int32)


def logits(path: Path, name: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Their bits."""
    values = all_logits(load_model(path, EngineConfig(**CONFIG)), prompt(name), 64)
    return values.view(np.uint32)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_gives_the_bits_of_its_gguf(
    name: str, dtype: str, tiny: TinyModels, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", SPECS[name], dtype)
    assert np.array_equal(logits(folder, name), logits(tiny.path(name, dtype), name))


def test_shards_give_the_bits_of_one_file(tiny: TinyModels, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen2-untied"], shards=3)
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert np.array_equal(
        logits(folder, "qwen2-untied"), logits(tiny.path("qwen2-untied"), "qwen2-untied")
    )


def test_bf16_vectors_are_widened_exactly(tmp_path: Path) -> None:
    spec = SPECS["qwen2"]
    weights = {n: bf16_values(w) if w.ndim == 1 else w for n, w in hf_weights(spec).items()}
    write_gguf(tmp_path / "m.gguf", spec.arch, metadata(spec), gguf_tensors(spec, weights))
    folder = write_folder(tmp_path / "m", spec, vector_dtype="BF16")
    assert np.array_equal(logits(folder, "qwen2"), logits(tmp_path / "m.gguf", "qwen2"))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_tokens_and_template_are_those_of_the_gguf(
    name: str, tiny: TinyModels, tmp_path: Path
) -> None:
    ours = open_model(write_folder(tmp_path / "m", SPECS[name]))
    other = open_model(tiny.path(name))
    one, two = ours.tokenizer(), other.tokenizer()
    text = "the end<|im_end|> and 1234 e\u0301 <tool_call>\n\n  ()ing"
    for parse_special in (False, True):
        assert one.encode(text, parse_special) == two.encode(text, parse_special)
    assert (one.vocab_size, one.eos_ids, one.control_tokens) == (
        two.vocab_size, two.eos_ids, two.control_tokens
    )  # fmt: skip
    messages = [{"role": "user", "content": "Say <|im_end|> and stop"}]
    ids = ours.chat_template(one).encode(one, messages)
    assert ids == other.chat_template(two).encode(two, messages)
    assert ids.count(one.control_tokens["<|im_end|>"]) == 1
    assert ours.config() == replace(other.config(), name=ours.config().name)
    ours.close()
    other.close()


def test_a_template_file_wins(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    source = open_model(folder)
    template = source.chat_template(source.tokenizer())
    assert template.render([{"role": "user", "content": "a"}]) == "a!"
    source.close()


def test_the_front_door_takes_a_folder(tiny: TinyModels, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    with LLM(folder, ctx=256, threads=1) as one, LLM(tiny.path("qwen3"), ctx=256, threads=1) as two:
        ours, others = one.chat("the answer"), two.chat("the answer")
    assert ours.token_ids == others.token_ids
    assert ours.usage.completion_tokens > 0
    assert ours.engine.system_fingerprint != others.engine.system_fingerprint


def test_every_file_enters_the_fingerprint(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"], shards=2)
    seen = {load_model(folder, EngineConfig(**CONFIG)).fingerprint}
    data = bytearray((folder / "model-00002-of-00002.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model-00002-of-00002.safetensors").write_bytes(data)
    seen.add(load_model(folder, EngineConfig(**CONFIG)).fingerprint)
    spoil(folder / "config.json", rms_norm_eps=1e-4)
    seen.add(load_model(folder, EngineConfig(**CONFIG)).fingerprint)
    assert len(seen) == 3


# --- settings -------------------------------------------------------------------------------------


def test_the_newer_spelling_of_rope(tmp_path: Path) -> None:
    spec = SPECS["llama"]
    old = write_folder(tmp_path / "old", spec)
    new = write_folder(tmp_path / "new", spec)
    spoil(
        new / "config.json",
        rope_theta=None,
        rope_parameters={"rope_type": "default", "rope_theta": spec.theta},
    )
    assert np.array_equal(logits(old, "llama"), logits(new, "llama"))


REFUSED_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"rope_theta": None}, "rope_theta is missing"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope_scaling.rope_type 'dynamic'"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "original_max_position_embeddings"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1}}, "rope_scaling.mscale"),
    ({"rope_scaling": 5}, "rope_scaling must be an object"),
    ({"model_type": "mamba"}, "model_type 'mamba' isn't supported"),
    ({"model_type": ["qwen3"]}, "model_type must be a string"),
    ({"architectures": ["Qwen3ForSequenceClassification"]}, "architectures doesn't name"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config says"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ({"use_sliding_window": True}, "use_sliding_window is true"),
    ({"attention_bias": True}, "attention_bias is true"),
    ({"layer_types": ["sliding_attention"]}, "layer_types"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers must be from 1 to 512"),
    ({"num_hidden_layers": 10**400}, "num_hidden_layers must be from 1 to 512"),
    ({"num_hidden_layers": -1}, "num_hidden_layers must be from 1 to 512"),
    ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
    ({"num_hidden_layers": 4}, "model.layers.3."),
    ({"num_hidden_layers": 2}, "blk.2."),
    ({"hidden_size": 97}, "has the shape"),
    ({"num_attention_heads": 5}, "can't share"),
    ({"head_dim": 33}, "head_dim is odd"),
    ({"rms_norm_eps": 0}, "rms_norm_eps must be a number"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a number"),
    ({"vocab_size": 4}, "has the shape"),
    ({"tie_word_embeddings": False}, "no tensor lm_head.weight"),
    ({"eos_token_id": 10**6}, "end token 1000000"),
    ({"eos_token_id": "x"}, "eos_token_id isn't a token id"),
]  # fmt: skip
REFUSED_EXPERTS: list[tuple[dict[str, Any], str]] = [
    ({"num_experts": 10**12}, "num_experts must be from 1 to 1024"),
    ({"num_experts": None}, "num_experts is missing"),
    ({"num_experts": 12}, "has the shape"),
    ({"num_experts_per_tok": 12}, "num_experts_per_tok must be from 1 to 11"),
    ({"decoder_sparse_step": 2}, "decoder_sparse_step isn't 1"),
    ({"mlp_only_layers": [0]}, "mlp_only_layers isn't empty"),
]


def refusal(path: Path) -> str:
    """The one clear line with which loading `path` fails."""
    with pytest.raises(DraftproofError) as caught:
        load_model(path, EngineConfig(**CONFIG))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize(("keys", "said"), REFUSED_SETTINGS, ids=[s for _, s in REFUSED_SETTINGS])
def test_a_setting_that_is_wrong_is_named(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    spoil(folder / "config.json", **keys)
    assert said in refusal(folder)


@pytest.mark.parametrize(("keys", "said"), REFUSED_EXPERTS, ids=[s for _, s in REFUSED_EXPERTS])
def test_a_setting_of_experts_that_is_wrong_is_named(
    keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3moe"])
    spoil(folder / "config.json", **keys)
    assert said in refusal(folder)


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    spec = SPECS["qwen3moe"]
    folder = write_folder(tmp_path / "m", spec)
    weights = hf_weights(spec)
    del weights["model.layers.1.mlp.experts.4.up_proj.weight"]
    tensors = {name: ("F32", w.shape, w.tobytes()) for name, w in weights.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    assert "model.layers.1.mlp.experts.*.up_proj.weight" in refusal(folder)


def test_a_stored_copy_of_a_tied_head_is_ignored(tiny: TinyModels, tmp_path: Path) -> None:
    """Small Qwen3 folders hold both; the configuration decides."""
    spec = SPECS["qwen3"]
    plain = logits(write_folder(tmp_path / "plain", spec), "qwen3")
    folder = write_folder(tmp_path / "m", SPECS["qwen3-untied"])
    spoil(folder / "config.json", tie_word_embeddings=True)
    assert "lm_head.weight" in (folder / "model.safetensors").read_bytes().decode("latin-1")
    source = open_model(folder)
    assert source.config().tied
    assert "output.weight" not in source.tensors
    source.close()
    assert plain.shape == logits(folder, "qwen3").shape


# --- folders that aren't whole --------------------------------------------------------------------


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def _text(name: str, text: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(text)

    return write


def _weight_map(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    return write


SHARD = "model-00002-of-00002.safetensors"
HALF_FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (_without("config.json"), "config.json: no such file"),
    "no tokenizer": (_without("tokenizer.json"), "tokenizer.json: no such file"),
    "no index": (_without("model.safetensors.index.json"), "the download isn't complete"),
    "a shard missing": (_without(SHARD), f"1 of 2 weight files are missing ({SHARD})"),
    "a shard cut": (_cut(SHARD, 5000), "but the file ends at 5000"),
    "a header cut": (_cut(SHARD, 100), "the header needs"),
    "an empty shard": (_cut(SHARD, 0), "too short"),
    "config cut": (_cut("config.json", 20), "config.json: isn't JSON"),
    "config a list": (_text("config.json", b"[]"), "config.json: isn't a JSON object"),
    "config binary": (_text("config.json", b"\xff\xfe"), "config.json: isn't UTF-8"),
    "config nested": (_text("config.json", b"[" * 100_000), "config.json: is nested too deep"),
    "config NaN": (_text("config.json", b'{"rms_norm_eps": NaN}'), "NaN isn't a JSON number"),
    "config LFS": (_text("config.json", b"version https://git-lfs.x\n"), "Git LFS pointer"),
    "shard LFS": (_text(SHARD, b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
    "shard HTML": (_text(SHARD, b"<!DOCTYPE html><html>404</html>"), "looks like an HTML page"),
    "index outside": (
        _weight_map(lambda m: m.update({"model.norm.weight": "../x.safetensors"})),
        "doesn't name a .safetensors file in this folder",
    ),
    "index wrong": (
        _weight_map(lambda m: m.update({"model.norm.bias": SHARD})),
        "has no tensor 'model.norm.bias'",
    ),
    "index empty": (_weight_map(lambda m: m.clear()), "weight_map is missing or empty"),
    "tokenizer foreign": (
        _text("tokenizer.json", b'{"model": {"type": "Unigram"}}'),
        "'Unigram': only byte-level BPE",
    ),
    "template broken": (
        _text("chat_template.jinja", b"{% if %}"),
        "the chat template has a syntax error in line 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HALF_FOLDERS)
def test_a_folder_that_is_not_whole_is_refused(case: str, tmp_path: Path) -> None:
    change, said = HALF_FOLDERS[case]
    folder = write_folder(tmp_path / "m", SPECS["qwen3"], shards=2)
    change(folder)
    assert said in refusal(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"], shards=2)
    data = (folder / SHARD).read_bytes()
    (folder / "model-00001-of-00002.safetensors").write_bytes(data)
    assert "is in model-00001-of-00002.safetensors too" in refusal(folder)


@pytest.mark.parametrize(
    ("dtype", "said"),
    [("F8_E4M3", "F8_E4M3, which isn't supported"), ("F64", "F64, which isn't supported")],
)
def test_a_type_that_is_not_built_is_named(dtype: str, said: str, tmp_path: Path) -> None:
    spec = SPECS["qwen3"]
    folder = write_folder(tmp_path / "m", spec)
    size = {"F64": 8, "F8_E4M3": 1}[dtype]
    tensors = {name: (dtype, w.shape, bytes(w.size * size)) for name, w in hf_weights(spec).items()}
    write_safetensors(folder / "model.safetensors", tensors)
    assert said in refusal(folder)


def test_a_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    spec = SPECS["qwen3"]
    folder = write_folder(tmp_path / "m", spec)
    weights = hf_weights(spec)
    weights["model.layers.1.mlp.up_proj.weight"][5, 7] = np.inf
    tensors = {name: ("F32", w.shape, w.tobytes()) for name, w in weights.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    assert "model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json(SPECS["qwen3"])))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "pickled weights" in refusal(tmp_path)
