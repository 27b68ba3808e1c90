"""Synthetic models: true shapes and sizes, sane values, the same bytes for the same seed, read by
the public package and by the engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from typer.testing import CliRunner

from draftproof.bench import synth
from draftproof.bench.synth_vocabulary import SPECIAL, fillers, vocabulary_metadata
from draftproof.bench.synth_weights import PIECE_BYTES, random_pieces
from draftproof.cli.app import app
from draftproof.errors import InvalidRequestError
from draftproof.formats.gguf_writer import NewTensor
from draftproof.text import Tokenizer
from parity.logits import all_logits

# Published totals of parameters (a tied embedding counted once).
PARAMETERS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_shapes_have_the_published_number_of_parameters(name: str) -> None:
    shapes = synth.MODELS[name].shapes
    assert sum(math.prod(shape) for shape in shapes.values()) == PARAMETERS[name]


def test_a_mixed_file_has_the_size_of_the_published_one() -> None:
    """Qwen3-8B-Q4_K_M.gguf is 5.03 GB, Qwen3-30B-A3B-Q4_K_M.gguf 18.6 GB."""
    for name, published in (("qwen3-8b", 5.03e9), ("qwen3-30b-a3b", 18.6e9)):
        model, recipe = synth.MODELS[name], synth.RECIPES["q4_k_m"]
        size = sum(
            NewTensor(t, synth.type_of(t, shape, model.config, recipe), shape).nbytes
            for t, shape in model.shapes.items()
        )
        assert abs(size / published - 1) < 0.01


@pytest.mark.parametrize("quant", synth.RECIPES)
@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_values_and_logits_are_sane(name: str, quant: str, tmp_path: Path, load: Any) -> None:
    path = tmp_path / "x.gguf"
    assert synth.synthesise(name, path, quant) == path.stat().st_size
    for tensor in GGUFReader(path).tensors:
        values = dequantize(np.array(tensor.data), tensor.tensor_type)
        assert np.isfinite(values).all(), tensor.name
        if values.ndim > 1 and tensor.name != "token_embd.weight":
            gain = float(values.std()) * math.sqrt(values.shape[-1])
            assert 0.8 < gain < 2.8, tensor.name
            assert abs(float(values.mean())) < 0.1 * float(values.std()), tensor.name
    loaded = load(path, ctx=512, threads=1, kv_type="f32")
    ids = np.random.default_rng(1).integers(0, 2000, 64).astype(np.int32)
    logits = all_logits(loaded, ids, 64)
    assert 1 < logits.std() < 10
    best = logits.argmax(axis=1)
    assert len(set(best.tolist())) > 40  # not one answer to everything
    if name == "tiny" and quant in ("q4_k_m", "f16"):
        assert {t.tensor_type.name for t in GGUFReader(path).tensors} == (
            {"Q4_K", "Q6_K", "F32"} if quant == "q4_k_m" else {"F16", "F32"}
        )


def test_the_seed_is_all_that_matters(tmp_path: Path) -> None:
    for i, seed in enumerate((5, 5, 6)):
        synth.synthesise("tiny", tmp_path / f"{i}.gguf", seed=seed)
    a, b, c = ((tmp_path / f"{i}.gguf").read_bytes() for i in range(3))
    assert a == b
    assert a != c


def test_large_tensors_come_in_pieces() -> None:
    tensor = NewTensor("blk.0.ffn_up.weight", 14, (9216, 4096))
    sizes = [piece.nbytes for piece in random_pieces(tensor, 0.02, 0)]
    assert sum(sizes) == tensor.nbytes
    assert len(sizes) == 2
    assert max(sizes) <= PIECE_BYTES


def test_a_true_vocabulary_splits_and_joins() -> None:
    metadata = vocabulary_metadata(151936)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == len(set(tokens)) == 151936
    assert tokens.index("<|endoftext|>") == 151643
    assert tokens.index("</think>") == 151668
    readable = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in metadata.items()}
    tokenizer = Tokenizer.from_gguf(readable)
    assert tokenizer.vocab_size == 151669
    assert 151645 in tokenizer.eos_ids
    text = "Any text, with Ünïcode 12345 and the quick brown fox.\n\n\tdef f(x): return x\n"
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert 0.2 * len(text) < len(ids) < 0.7 * len(text)


def test_every_filler_is_made_by_its_merge() -> None:
    tokens, merges = fillers(20_000)
    assert len(set(tokens)) == len(merges) == 20_000
    for token, merge in zip(tokens, merges, strict=True):
        left, right = merge.split(" ")
        assert left + right == token


def test_a_vocabulary_that_is_too_small_is_refused() -> None:
    least = 256 + len(SPECIAL)
    vocabulary_metadata(least)
    with pytest.raises(ValueError, match=f"at least {least} rows"):
        vocabulary_metadata(least - 1)


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    ran = CliRunner().invoke(app, ["synth", "tiny", str(path), "--json"])
    assert ran.exit_code == 0
    shown = json.loads(ran.stdout)
    assert shown["size_bytes"] == path.stat().st_size
    for wrong in (["huge", "x.gguf"], ["tiny", "x.gguf", "--quant", "q1"], ["tiny", str(path)]):
        ran = CliRunner().invoke(app, ["synth", *wrong])
        assert ran.exit_code == 2
        assert ran.stderr.count("\n") == 1


def test_names_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    for arguments in (("no", "q4_k_m", 0), ("tiny", "q4_k_x", 0), ("tiny", "q4_k_m", -1)):
        name, quant, seed = arguments
        with pytest.raises(InvalidRequestError):
            synth.synthesise(name, tmp_path / "x.gguf", quant, seed)
    assert list(tmp_path.iterdir()) == []
