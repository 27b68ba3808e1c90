"""`convert`: the file answers as its folder does, and the public reader finds what it expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from typer.testing import CliRunner

from draftproof import LLM, SamplingParams
from draftproof.cli.app import app
from draftproof.config import EngineConfig
from draftproof.errors import InvalidRequestError, ModelFileError
from draftproof.models import FAMILIES, load_model, open_model
from draftproof.models.convert import convert
from parity.logits import all_logits
from tiny_folders import spoil, write_folder, write_safetensors
from tiny_models import SPECS, Array, hf_weights, vocabulary

CONFIG: dict[str, Any] = {"kv_type": "f32", "ctx": 256, "threads": 1}
NAMES = ("llama", "llama-wide-untied", "qwen2", "qwen2-wide", "qwen3-untied", "qwen3moe-wide")


def to_gguf(folder: Path, recipe: str) -> Path:
    target = folder.with_suffix(f".{recipe}.gguf")
    convert(folder, target, recipe, 2, FAMILIES)
    return target


def logits(path: Path, name: str, **fields: Any) -> Array:
    """Their bits, as uint32."""
    rng = np.random.default_rng(SPECS[name].seed + 2)
    ids = rng.integers(0, SPECS[name].vocab, 40).astype(np.int32)
    values = all_logits(load_model(path, EngineConfig(**CONFIG, **fields)), ids, 64)
    return values.view(np.uint32)


@pytest.mark.parametrize("recipe", ["q8_0", "q4_k_m"])
@pytest.mark.parametrize("name", NAMES)
def test_the_file_has_the_bits_of_the_folder_quantized_on_load(
    name: str, recipe: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", SPECS[name], "BF16", vector_dtype="BF16", shards=2)
    path = to_gguf(folder, recipe)
    assert np.array_equal(logits(path, name), logits(folder, name, quantize=recipe))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_the_same_type_keeps_every_bit(name: str, dtype: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS[name], dtype)
    assert np.array_equal(logits(to_gguf(folder, dtype.lower()), name), logits(folder, name))


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_scaling_is_written(kind: str, tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "m", SPECS["llama"], "BF16", config={"rope_scaling": ROPES[kind]}
    )
    plain = write_folder(tmp_path / "plain", SPECS["llama"])
    path = to_gguf(folder, "bf16")
    plain_file = to_gguf(plain, "bf16")
    assert not np.array_equal(logits(path, "llama"), logits(plain_file, "llama"))
    source = open_model(path)
    other = open_model(folder)
    assert source.config().rope_divisors == other.config().rope_divisors
    assert source.config().yarn == other.config().yarn
    assert (source.config().yarn is not None) is (kind == "yarn")
    assert np.array_equal(logits(path, "llama"), logits(folder, "llama"))
    source.close()
    other.close()
    names = [t.name for t in GGUFReader(path).tensors]
    assert ("rope_freqs.weight" in names) is (kind == "llama3")


def test_answers_are_equal_token_for_token(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["llama"])
    path = to_gguf(folder, "q4_k_m")
    sampling = SamplingParams(max_tokens=32, temperature=0.9, seed=3)
    answers = []
    for model, quantize in ((folder, "q4_k_m"), (path, None)):
        with LLM(model, ctx=256, threads=1, quantize=quantize) as llm:
            done = llm.chat("the end is the answer 12", sampling)
            answers.append((done.token_ids, done.text, done.usage.prompt_tokens))
    assert answers[0] == answers[1]
    assert len(answers[0][0]) > 3


def test_texts_and_settings_come_back(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    spoil(folder / "generation_config.json", temperature=0.6, top_k=20, top_p=0.95, do_sample=True)
    ours, other = open_model(to_gguf(folder, "q8_0")), open_model(folder)
    assert ours.config() == other.config()
    one, two = ours.tokenizer(), other.tokenizer()
    assert (one.vocab_size, one.eos_ids, one.control_tokens) == (
        *(two.vocab_size, two.eos_ids, two.control_tokens),
    )
    assert ours.chat_template(one) == other.chat_template(two)
    assert ours.generation_config() == pytest.approx(other.generation_config())
    assert other.generation_config() == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    ours.close()
    other.close()


def test_the_public_reader_finds_what_converters_write(tmp_path: Path) -> None:
    spec = SPECS["qwen2"]
    reader = GGUFReader(to_gguf(write_folder(tmp_path / "m", spec), "q4_k_m"))
    value = {name: field.contents() for name, field in reader.fields.items()}
    vocab = vocabulary(spec)
    assert value["general.architecture"] == "qwen2"
    assert value["general.file_type"] == 15
    assert value["qwen2.attention.head_count_kv"] == spec.kv_heads
    assert value["tokenizer.ggml.pre"] == "qwen2"
    assert value["tokenizer.ggml.tokens"] == vocab.tokens
    assert value["tokenizer.ggml.token_type"] == vocab.types
    assert value["tokenizer.ggml.merges"] == vocab.merges
    assert value["tokenizer.ggml.eos_token_id"] == vocab.id("<|im_end|>")
    assert value["tokenizer.ggml.add_bos_token"] is False
    assert {t.name for t in reader.tensors} >= {"token_embd.weight", "blk.2.attn_q.bias"}
    assert all(t.data_offset % 32 == 0 for t in reader.tensors)


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    words = ["convert", str(folder), "--to", str(tmp_path / "m.gguf"), "--quantize", "q8_0"]
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["size_bytes"] == (tmp_path / "m.gguf").stat().st_size
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert again.exit_code == 2
    assert "exists already: delete it" in again.stderr


# --- nothing half done ----------------------------------------------------------------------------


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    spec = SPECS["qwen3"]
    folder = write_folder(tmp_path / "m", spec)
    weights = hf_weights(spec)
    weights["model.layers.2.mlp.up_proj.weight"][0, 0] = np.nan
    tensors = {name: ("F32", w.shape, w.tobytes()) for name, w in weights.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(ModelFileError, match=r"layers\.2\.mlp\.up_proj"):
        convert(folder, tmp_path / "m.gguf", "q8_0", 1, FAMILIES)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_places_that_can_not_be_written_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    with pytest.raises(InvalidRequestError, match="is no folder"):
        convert(folder, tmp_path / "no" / "m.gguf", "q8_0", 1, FAMILIES)
    with pytest.raises(InvalidRequestError, match="isn't a folder"):
        convert(folder / "config.json", tmp_path / "m.gguf", "q8_0", 1, FAMILIES)
