"""A model's settings, vocabulary and template as the metadata of a GGUF file.

The reverse of ModelConfig.from_gguf, Tokenizer.from_gguf and ChatTemplate.from_gguf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftproof.errors import ModelFileError
from draftproof.models.config import ModelConfig
from draftproof.text import Vocabulary
from draftproof.text.tokenizer import END_TEXTS, UNUSED

# Hugging Face's name in generation_config.json -> GGUF's key and type.
SAMPLING_KEYS: Mapping[str, tuple[str, type[np.generic]]] = {
    "temperature": ("general.sampling.temp", np.float32),
    "top_k": ("general.sampling.top_k", np.int32),
    "top_p": ("general.sampling.top_p", np.float32),
    "min_p": ("general.sampling.min_p", np.float32),
    "repetition_penalty": ("general.sampling.penalty_repeat", np.float32),
}


def settings(c: ModelConfig, file_type: int) -> dict[str, Any]:
    """The keys `general.*` and `<architecture>.*` (GGUF specification, ggml docs/gguf.md)."""
    a, u32, f32 = c.architecture, np.uint32, np.float32
    out: dict[str, Any] = {
        "general.architecture": a,
        "general.type": "model",
        "general.name": c.name,
        "general.file_type": u32(file_type),
        "general.quantization_version": u32(2),
        f"{a}.block_count": u32(c.num_layers),
        f"{a}.context_length": u32(c.context_length),
        f"{a}.embedding_length": u32(c.hidden_size),
        f"{a}.feed_forward_length": u32(c.intermediate_size),
        f"{a}.vocab_size": u32(c.vocab_size),
        f"{a}.attention.head_count": u32(c.num_heads),
        f"{a}.attention.head_count_kv": u32(c.num_kv_heads),
        f"{a}.attention.key_length": u32(c.head_dim),
        f"{a}.attention.value_length": u32(c.head_dim),
        f"{a}.attention.layer_norm_rms_epsilon": f32(c.rms_norm_eps),
        f"{a}.rope.dimension_count": u32(c.head_dim),
        f"{a}.rope.freq_base": f32(c.rope_theta),
    }
    factor = linear_rope_factor(c)
    if factor is not None:
        out[f"{a}.rope.scaling.type"] = "linear"
        out[f"{a}.rope.scaling.factor"] = f32(factor)
    if c.yarn is not None:
        if not c.yarn.truncate or c.yarn.attention_factor is not None:
            raise ModelFileError(
                f"{c.name}: a GGUF file can't say rope_scaling.truncate or attention_factor: use"
                " the folder as it is"
            )
        out[f"{a}.rope.scaling.type"] = "yarn"
        out[f"{a}.rope.scaling.factor"] = f32(c.yarn.factor)
        out[f"{a}.rope.scaling.original_context_length"] = u32(c.yarn.trained)
        out[f"{a}.rope.scaling.yarn_beta_fast"] = f32(c.yarn.beta_fast)
        out[f"{a}.rope.scaling.yarn_beta_slow"] = f32(c.yarn.beta_slow)
    if c.num_experts:
        out[f"{a}.expert_count"] = u32(c.num_experts)
        out[f"{a}.expert_used_count"] = u32(c.experts_used)
        out[f"{a}.expert_feed_forward_length"] = u32(c.expert_size)
        out[f"{a}.expert_weights_norm"] = c.renormalise_experts
    return out


def linear_rope_factor(c: ModelConfig) -> float | None:
    """The one factor by which all rotary frequencies are divided; None if there is no such one."""
    divisors = c.rope_divisors
    return divisors[0] if divisors is not None and len({*divisors}) == 1 else None


def vocabulary_keys(v: Vocabulary, rows: int) -> dict[str, Any]:
    """The keys `tokenizer.ggml.*` for an embedding of `rows` rows; what is left over is padding.

    Raises ModelFileError if the end tokens are more than the format has keys for.
    """
    padding = range(len(v.tokens), rows)
    out: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": v.pre,
        "tokenizer.ggml.tokens": [*v.tokens, *(f"[PAD{i}]" for i in padding)],
        "tokenizer.ggml.token_type": np.array([*v.types, *(UNUSED for _ in padding)], np.int32),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in v.merges],
        "tokenizer.ggml.add_bos_token": False,
    }
    first, *others = v.end_ids or (None,)
    ends = [first, *(id for id in others if v.tokens[id] not in END_TEXTS)]
    if len(ends) > 3:
        raise ModelFileError(f"{len(ends)} end tokens are more than a GGUF file can name")
    for name, id in zip(("eos", "eot", "eom"), ends, strict=False):
        if id is not None:
            out[f"tokenizer.ggml.{name}_token_id"] = np.uint32(id)
    return out
