"""Tiny random models as Hugging Face folders: the weights and vocabularies of tiny_models.

Owns the writing of config.json, tokenizer.json and .safetensors files, with the public packages
`tokenizers` and, for the weights, by hand. Knows nothing of Draftproof.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from gguf.quants import quantize
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers import models as tokenizer_models

from tiny_blocks import Array, Type
from tiny_models import CHAT_TEMPLATE, TinySpec, hf_weights, vocabulary

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3moe": "Qwen3Moe"}


def config_json(spec: TinySpec) -> dict[str, Any]:
    """As the published models have it (the older spelling of the rotary settings)."""
    experts = {
        "num_experts": spec.experts,
        "num_experts_per_tok": spec.experts_used,
        "moe_intermediate_size": spec.expert_ffn,
        "norm_topk_prob": spec.renormalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return {
        **(experts if spec.experts else {}),
        "architectures": [f"{_CLASSES[spec.arch]}ForCausalLM"],
        "model_type": spec.arch.replace("moe", "_moe"),
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn,
        "vocab_size": spec.vocab,
        "rms_norm_eps": spec.eps,
        "rope_theta": spec.theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "max_position_embeddings": spec.context,
        "tie_word_embeddings": spec.tied,
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
    }


def tokenizer_json(spec: TinySpec) -> dict[str, Any]:
    vocab = vocabulary(spec)
    # As published: SmolLM2's control tokens, the first ids, are in the vocabulary too.
    kinds = (1, 3) if spec.arch == "llama" else (1,)
    normal = {t: i for i, t in enumerate(vocab.tokens) if vocab.types[i] in kinds}
    merges = [(a, b) for a, b in (m.split(" ") for m in vocab.merges)]
    tokenizer = tokenizers.Tokenizer(tokenizer_models.BPE(vocab=normal, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=spec.arch == "llama")
    if spec.arch == "llama":
        first = pre_tokenizers.Digits(individual_digits=True)
    else:
        tokenizer.normalizer = normalizers.NFC()
        first = pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    file: dict[str, Any] = json.loads(tokenizer.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    file["added_tokens"] = [
        {"id": i, "content": token, "special": kind == 3, **flags}
        for i, (token, kind) in enumerate(zip(vocab.tokens, vocab.types, strict=True))
        if kind in (3, 4)
    ]
    return file


Stored = tuple[str, tuple[int, ...], bytes]  # dtype, shape, bytes


Stored = tuple[str, tuple[int, ...], bytes]  # dtype, shape, bytes


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts = [data for _, _, data in tensors.values()]
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def encoded(tensor: Array, dtype: str) -> Stored:
    """float32 as F32, F16 or BF16 (rounded as the public gguf package does)."""
    if dtype == "BF16":
        rows = tensor if tensor.ndim == 2 else tensor[None]
        return dtype, tensor.shape, quantize(rows, Type.BF16).tobytes()
    return dtype, tensor.shape, tensor.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_folder(
    folder: Path,
    spec: TinySpec,
    dtype: str = "F32",
    *,
    vector_dtype: str = "F32",
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the model to `folder`: matrices in `dtype`, norms and biases in `vector_dtype`, in
    `shards` files. config: replaces keys of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = vocabulary(spec)
    end, text_end = vocab.id("<|im_end|>"), vocab.id("<|endoftext|>")
    files = {
        "config.json": {**config_json(spec), "eos_token_id": text_end, **(config or {})},
        "generation_config.json": {"eos_token_id": [end, text_end]},
        "tokenizer.json": tokenizer_json(spec),
        "tokenizer_config.json": {
            "bos_token": "<|endoftext|>",
            "eos_token": {"content": "<|im_end|>"},
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    tensors = {
        # The router keeps its precision, as in GGUF files.
        name: encoded(w, "F32" if name.endswith("mlp.gate.weight") else dtype)
        if w.ndim > 1
        else encoded(w, vector_dtype)
        for name, w in hf_weights(spec).items()
    }
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    weight_map = {}
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        own = {name: tensors[name] for name in list(tensors)[i::shards]}
        write_safetensors(folder / shard, own)
        weight_map |= dict.fromkeys(own, shard)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def spoil(path: Path, **keys: Any) -> None:
    """Replaces keys of a JSON file; None takes one away."""
    values = json.loads(path.read_text(encoding="utf-8")) | keys
    kept = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def bf16_values(tensor: Array) -> Array:
    """float32 rounded to bfloat16 and back."""
    raw = np.frombuffer(encoded(tensor, "BF16")[2], np.uint16).astype(np.uint32) << 16
    return raw.view(np.float32).reshape(tensor.shape)
