"""A Hugging Face config.json as a ModelConfig: the same checks as for a GGUF file.

Owns which settings are understood. What isn't understood and would change the result is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from draftproof.formats.json_file import JsonFile
from draftproof.models.config import ModelConfig
from draftproof.models.rotary import Yarn

# model_type -> (architecture in GGUF's words, the class that config.json must name)
MODEL_TYPES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3_moe": ("qwen3moe", "Qwen3MoeForCausalLM"),
}
_OTHER_MODEL = "this kind of model isn't supported"


def config_from_hf(file: JsonFile, name: str, has_head: bool) -> ModelConfig:
    """name: what the model is called. has_head: whether the folder has a tensor lm_head.weight.

    Raises ModelFileError with the key: missing, of the wrong type or out of range, or a setting
    that isn't built.
    """
    arch = _architecture(file)
    hidden = file.int_value("hidden_size", 1, 1 << 16)
    heads = file.int_value("num_attention_heads", 1, 1024)
    kv_heads = file.int_value("num_key_value_heads", 1, 1024, default=heads)
    if heads % kv_heads or heads // kv_heads > 64:
        raise file.error("num_key_value_heads", f"is {kv_heads}: {heads} heads can't share them")
    usual = 128 if arch == "qwen3" else hidden // heads or 2
    head_dim = file.int_value("head_dim", 2, 1024, default=usual)
    if head_dim % 2:
        raise file.error("head_dim", f"is odd ({head_dim})")
    _refuse_unknown_settings(file, arch)
    theta, divisors, yarn = _rope(file, head_dim)
    experts = _experts(file) if arch == "qwen3moe" else {}
    tied = file.bool_value("tie_word_embeddings", default=not has_head)
    if not tied and not has_head:
        raise file.error("tie_word_embeddings", "is false, but there is no tensor lm_head.weight")
    return ModelConfig(
        architecture=arch,
        name=name,
        num_layers=file.int_value("num_hidden_layers", 1, 512),
        context_length=file.int_value("max_position_embeddings", 2, 1 << 24),
        hidden_size=hidden,
        intermediate_size=file.int_value("intermediate_size", 1, 1 << 20),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_to_float32(file.float_value("rms_norm_eps", 1e-12, 1.0)),
        rope_theta=theta,
        vocab_size=file.int_value("vocab_size", 1, 1 << 24),
        tied=tied,
        rope_divisors=divisors,
        yarn=yarn,
        **experts,
    )


def _architecture(file: JsonFile) -> str:
    kind = file.str_value("model_type")
    if kind not in MODEL_TYPES:
        supported = ", ".join(sorted(MODEL_TYPES))
        raise file.error("model_type", f"{kind[:80]!r} isn't supported", f"supported: {supported}")
    arch, wanted = MODEL_TYPES[kind]
    classes = file.values.get("architectures") or [wanted]
    if not isinstance(classes, list) or wanted not in classes:
        raise file.error("architectures", f"doesn't name {wanted}", _OTHER_MODEL)
    return arch


def _refuse_unknown_settings(file: JsonFile, arch: str) -> None:
    if file.has("quantization_config"):
        part = file.part("quantization_config")
        method = part.values.get("quant_method") if part else None
        raise file.error(
            "quantization_config",
            f"says the weights are quantized ({str(method)[:40]})",
            "get the BF16 folder or a GGUF file of the model",
        )
    act = file.str_value("hidden_act", default="silu")
    if act != "silu":
        raise file.error("hidden_act", f"is {act[:80]!r}, silu is needed", _OTHER_MODEL)
    # Qwen2 has its biases always and writes no key.
    for key in ("mlp_bias", *(() if arch == "qwen2" else ("attention_bias",))):
        if file.bool_value(key, default=False):
            raise file.error(key, "is true", _OTHER_MODEL)
    if file.bool_value("use_sliding_window", default=False):
        raise file.error("use_sliding_window", "is true", _OTHER_MODEL)
    layers = file.values.get("layer_types") or []
    if not isinstance(layers, list) or any(kind != "full_attention" for kind in layers):
        raise file.error("layer_types", "has other layers than full_attention", _OTHER_MODEL)
    if file.float_value("partial_rotary_factor", 0.0, 1.0, default=1.0) != 1.0:
        raise file.error("partial_rotary_factor", "isn't 1", _OTHER_MODEL)


def _experts(file: JsonFile) -> dict[str, Any]:
    """The fields of ModelConfig that a mixture of experts adds."""
    count = "num_local_experts" if file.has("num_local_experts") else "num_experts"
    experts = file.int_value(count, 1, 1024)
    if file.int_value("decoder_sparse_step", 1, 1 << 16, default=1) != 1:
        raise file.error("decoder_sparse_step", "isn't 1", _OTHER_MODEL)
    if file.values.get("mlp_only_layers") not in (None, []):
        raise file.error("mlp_only_layers", "isn't empty", _OTHER_MODEL)
    return {
        "num_experts": experts,
        "experts_used": file.int_value("num_experts_per_tok", 1, min(experts, 64)),
        "expert_size": file.int_value("moe_intermediate_size", 1, 1 << 20),
        "renormalise_experts": file.bool_value("norm_topk_prob", default=False),
    }


def _rope(file: JsonFile, head_dim: int) -> tuple[float, tuple[float, ...] | None, Yarn | None]:
    """(theta, divisors of the frequencies, YaRN instead of divisors). Reads both spellings:
    `rope_parameters`, and the older `rope_theta` beside `rope_scaling`."""
    part = file.part("rope_parameters") or file.part("rope_scaling")
    holder = part if part is not None and part.has("rope_theta") else file
    theta = _to_float32(holder.float_value("rope_theta", 1.0, 1e12))
    if part is None:
        return theta, None, None
    kind = part.str_value("rope_type", default=part.str_value("type", default="default"))
    if kind == "default":
        return theta, None, None
    pairs = head_dim // 2
    if kind == "linear":
        return theta, (_to_float32(part.float_value("factor", 1.0, 1e6)),) * pairs, None
    if kind == "llama3":
        return theta, _llama3_divisors(part, theta, pairs), None
    if kind == "yarn":
        return theta, None, _yarn(part)
    raise part.error(
        "rope_type",
        f"{kind[:40]!r} isn't supported",
        "remove this part of config.json: the model then works up to its trained length",
    )


def _yarn(part: JsonFile) -> Yarn:
    for key in ("mscale", "mscale_all_dim"):
        if part.has(key):
            raise part.error(key, "is set", "this kind of YaRN isn't supported")
    fast = _to_float32(part.float_value("beta_fast", 1e-6, 1e6, default=32.0))
    slow = _to_float32(part.float_value("beta_slow", 1e-6, 1e6, default=1.0))
    if slow >= fast:
        raise part.error("beta_fast", "must be greater than beta_slow")
    given = part.has("attention_factor")
    return Yarn(
        _to_float32(part.float_value("factor", 1.0, 1e6)),
        part.int_value("original_max_position_embeddings", 2, 1 << 24),
        fast,
        slow,
        part.bool_value("truncate", default=True),
        part.float_value("attention_factor", 1e-6, 1e6) if given else None,
    )


def _llama3_divisors(part: JsonFile, theta: float, pairs: int) -> tuple[float, ...]:
    """Llama 3.1's smoothing: long waves are slowed by `factor`, short ones not at all."""
    factor = part.float_value("factor", 1.0, 1e6)
    low = part.float_value("low_freq_factor", 1e-6, 1e6)
    high = part.float_value("high_freq_factor", 1e-6, 1e6)
    trained = part.int_value("original_max_position_embeddings", 2, 1 << 24)
    if low >= high:
        raise part.error("high_freq_factor", "must be greater than low_freq_factor")
    divisors = []
    for j in range(pairs):
        wavelength = 2 * math.pi * theta ** (j / pairs)
        if wavelength < trained / high:
            divisor = 1.0
        elif wavelength > trained / low:
            divisor = factor
        else:
            smooth = (trained / wavelength - low) / (high - low)
            divisor = 1 / ((1 - smooth) / factor + smooth)
        divisors.append(_to_float32(divisor))
    return tuple(divisors)


def _to_float32(x: float) -> float:
    """As a GGUF file stores it, so that both forms of a model give the same bits."""
    return float(np.float32(x))
