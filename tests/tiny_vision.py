"""A tiny random Qwen3-VL: the same weights as a transformers model and as GGUF + mmproj files.

Owns sizes, the Hugging Face -> GGUF naming of both files and a vocabulary with vision tokens. Knows
nothing of Draftproof: it writes with the public `gguf` package.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from tiny_models import (
    BOOL,
    CONTROL,
    EMBEDDING_STD,
    F32,
    MERGES,
    STR,
    U32,
    Array,
    Metadata,
    byte_alphabet,
    gguf_name,
    write_gguf,
)

VISION_CONTROL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

# Images and videos as Qwen3-VL's own template writes them (add_vision_id aside).
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% elif part.type == 'video' or 'video' in part %}"
    "{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyVision:
    """Sizes. deepstack: vision blocks whose output is handed to the first decoder layers."""

    name: str = "qwen3vl"
    hidden: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    sections: tuple[int, int, int] = (4, 2, 2)
    theta: float = 1e4
    eps: float = 1e-6
    context: int = 2048
    tied: bool = True
    v_hidden: int = 48
    v_layers: int = 4
    v_heads: int = 3
    v_ffn: int = 80
    patch: int = 4
    side: int = 6
    deepstack: tuple[int, ...] = (0, 2)
    experts: int = 0
    experts_used: int = 0
    expert_ffn: int = 0

    @property
    def arch(self) -> str:
        return "qwen3vlmoe" if self.experts else "qwen3vl"

    @property
    def tokens(self) -> list[str]:
        text = byte_alphabet() + [m.replace(" ", "") for m in MERGES]
        return [*text, *CONTROL, *VISION_CONTROL]

    def id(self, token: str) -> int:
        return self.tokens.index(token)


def hf_config(spec: TinyVision) -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLMoeConfig

    experts = {
        "num_experts": spec.experts,
        "num_experts_per_tok": spec.experts_used,
        "moe_intermediate_size": spec.expert_ffn,
        "norm_topk_prob": True,
    }
    return (Qwen3VLMoeConfig if spec.experts else Qwen3VLConfig)(
        text_config={
            **(experts if spec.experts else {}),
            "vocab_size": len(spec.tokens),
            "hidden_size": spec.hidden,
            "intermediate_size": spec.ffn,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "rms_norm_eps": spec.eps,
            "max_position_embeddings": spec.context,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": spec.theta,
                "mrope_section": list(spec.sections),
                "mrope_interleaved": True,
            },
            "bos_token_id": None,
            "eos_token_id": None,
        },
        vision_config={
            "depth": spec.v_layers,
            "hidden_size": spec.v_hidden,
            "intermediate_size": spec.v_ffn,
            "num_heads": spec.v_heads,
            "patch_size": spec.patch,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": spec.hidden,
            "num_position_embeddings": spec.side**2,
            "deepstack_visual_indexes": list(spec.deepstack),
        },
        image_token_id=spec.id("<|image_pad|>"),
        video_token_id=spec.id("<|video_pad|>"),
        vision_start_token_id=spec.id("<|vision_start|>"),
        vision_end_token_id=spec.id("<|vision_end|>"),
        tie_word_embeddings=spec.tied,
    )


def hf_model(spec: TinyVision, seed: int = 7) -> Any:
    """A transformers model (float64) with weights that float32 holds exactly."""
    import torch
    from transformers import (
        Qwen3VLForConditionalGeneration,
        Qwen3VLMoeForConditionalGeneration,
    )

    made = Qwen3VLMoeForConditionalGeneration if spec.experts else Qwen3VLForConditionalGeneration
    model = made._from_config(
        hf_config(spec), attn_implementation="eager", experts_implementation="eager"
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                level = 1.6 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
                if name.endswith("language_model.norm.weight") and spec.tied:
                    level = 2.5 / (EMBEDDING_STD * spec.hidden**0.5)
                p.copy_(level * (1 + 0.2 * noise))
            elif p.ndim == 1:
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                p.copy_(EMBEDDING_STD * noise)
            elif "pos_embed" in name:
                p.copy_(0.5 * noise)
            else:
                gain = 1.6 if "qkv" in name or "q_proj" in name or "k_proj" in name else 1.0
                width = p[0].numel() if "visual" in name else p.shape[-1]
                gain = 2.5 if name == "lm_head.weight" else gain
                p.copy_(gain * noise / width**0.5)
    return model.double().eval()


def state(model: Any) -> dict[str, Array]:
    return {
        name: p.detach().float().numpy()
        for name, p in model.named_parameters()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }


_VISION_NAMES = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}


def mmproj_name(spec: TinyVision, name: str) -> str:
    """Of a tensor below model.visual.; not for the patch kernel."""
    module, _, kind = name.removeprefix("model.visual.").rpartition(".")
    if module == "patch_embed.proj":
        return f"v.patch_embd.{kind}"
    if module == "pos_embed":
        return f"v.position_embd.{kind}"
    if module.startswith("blocks."):
        _, layer, rest = module.split(".", 2)
        return f"v.blk.{layer}.{_VISION_NAMES[rest]}.{kind}"
    if module.startswith("deepstack_merger_list."):
        _, k, rest = module.split(".", 2)
        short = rest.removeprefix("linear_")
        return f"v.deepstack.{spec.deepstack[int(k)]}.{short}.{kind}"
    return {
        "merger.norm": "v.post_ln",
        "merger.linear_fc1": "mm.0",
        "merger.linear_fc2": "mm.2",
    }[module] + f".{kind}"


def text_tensors(weights: dict[str, Array]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for name, w in weights.items():
        if "visual" in name:
            continue
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[3]
            gate, up = np.split(w, 2, axis=1)
            out[f"blk.{layer}.ffn_gate_exps.weight"] = np.ascontiguousarray(gate)
            out[f"blk.{layer}.ffn_up_exps.weight"] = np.ascontiguousarray(up)
        elif name.endswith("experts.down_proj"):
            out[f"blk.{name.split('.')[3]}.ffn_down_exps.weight"] = w
        else:
            out[gguf_name(name.replace("model.language_model.", "model."))] = w
    return out


def vision_tensors(spec: TinyVision, weights: dict[str, Array]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for name, w in weights.items():
        if "visual" not in name:
            continue
        if name.endswith("patch_embed.proj.weight"):
            out["v.patch_embd.weight"] = np.ascontiguousarray(w[:, :, 0])
            out["v.patch_embd.weight.1"] = np.ascontiguousarray(w[:, :, 1])
        else:
            out[mmproj_name(spec, name)] = w
    return out


def text_metadata(spec: TinyVision) -> Metadata:
    a = spec.arch
    experts: Metadata = {
        f"{a}.expert_count": (spec.experts, U32),
        f"{a}.expert_used_count": (spec.experts_used, U32),
        f"{a}.expert_feed_forward_length": (spec.expert_ffn, U32),
    }
    text = len(spec.tokens) - len(CONTROL) - len(VISION_CONTROL)
    types = [1] * text + [3] * (len(CONTROL) + len(VISION_CONTROL))
    return {
        **(experts if spec.experts else {}),
        "general.name": (f"tiny {spec.name}", STR),
        f"{a}.block_count": (spec.layers, U32),
        f"{a}.context_length": (spec.context, U32),
        f"{a}.embedding_length": (spec.hidden, U32),
        f"{a}.feed_forward_length": (spec.ffn, U32),
        f"{a}.attention.head_count": (spec.heads, U32),
        f"{a}.attention.head_count_kv": (spec.kv_heads, U32),
        f"{a}.attention.key_length": (spec.head_dim, U32),
        f"{a}.attention.value_length": (spec.head_dim, U32),
        f"{a}.attention.layer_norm_rms_epsilon": (spec.eps, F32),
        f"{a}.rope.freq_base": (spec.theta, F32),
        f"{a}.rope.dimension_sections": ([*spec.sections, 0], GGUFValueType.ARRAY),
        f"{a}.n_deepstack_layers": (len(spec.deepstack), U32),
        "tokenizer.ggml.model": ("gpt2", STR),
        "tokenizer.ggml.pre": ("qwen2", STR),
        "tokenizer.ggml.tokens": (spec.tokens, GGUFValueType.ARRAY),
        "tokenizer.ggml.token_type": (types, GGUFValueType.ARRAY),
        "tokenizer.ggml.merges": (list(MERGES), GGUFValueType.ARRAY),
        "tokenizer.ggml.eos_token_id": (spec.id("<|im_end|>"), U32),
        "tokenizer.ggml.add_bos_token": (False, BOOL),
        "tokenizer.chat_template": (TEMPLATE, STR),
    }


def vision_metadata(spec: TinyVision) -> Metadata:
    v = "clip.vision."
    return {
        "general.type": ("mmproj", STR),
        "clip.projector_type": ("qwen3vl_merger", STR),
        "clip.has_vision_encoder": (True, BOOL),
        "clip.use_gelu": (True, BOOL),
        v + "image_size": (spec.side * spec.patch, U32),
        v + "patch_size": (spec.patch, U32),
        v + "embedding_length": (spec.v_hidden, U32),
        v + "feed_forward_length": (spec.v_ffn, U32),
        v + "block_count": (spec.v_layers, U32),
        v + "projection_dim": (spec.hidden, U32),
        v + "attention.head_count": (spec.v_heads, U32),
        v + "attention.layer_norm_epsilon": (1e-6, F32),
        v + "image_mean": ([0.5, 0.5, 0.5], GGUFValueType.ARRAY),
        v + "image_std": ([0.5, 0.5, 0.5], GGUFValueType.ARRAY),
        v + "spatial_merge_size": (2, U32),
        v + "is_deepstack_layers": (
            [i in spec.deepstack for i in range(spec.v_layers)],
            GGUFValueType.ARRAY,
        ),
    }


def write(folder: Path, spec: TinyVision, weights: dict[str, Array]) -> tuple[Path, Path]:
    """The text file and the mmproj file."""
    text, mmproj = folder / f"{spec.name}.gguf", folder / f"mmproj-{spec.name}.gguf"
    write_gguf(text, spec.arch, text_metadata(spec), text_tensors(weights))
    write_gguf(mmproj, "clip", vision_metadata(spec), vision_tensors(spec, weights))
    return text, mmproj


def random_patches(spec: TinyVision, count: int, seed: int) -> NDArray[np.float32]:
    """Values of normalised pixels [count, 6 * patch^2]."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (count, 6 * spec.patch**2)).astype(np.float32)
