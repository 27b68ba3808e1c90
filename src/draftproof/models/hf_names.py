"""The tensor names of Hugging Face's text models in GGUF's words. One table, both ways."""

from __future__ import annotations

import re

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",  # the router of a mixture of experts
}
_EXPERT = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
_LAYER_NAME = re.compile(r"model\.layers\.(\d{1,4})\.(.+)\.(weight|bias)")
_EXPERT_NAME = re.compile(r"model\.layers\.(\d{1,4})\.mlp\.experts\.(\d{1,4})\.(\w+)\.weight")
_HF_TOP = {gguf: hf for hf, gguf in _TOP.items()}
_HF_IN_LAYER = {gguf: hf for hf, gguf in _IN_LAYER.items()}
_HF_EXPERT = {gguf: hf for hf, gguf in _EXPERT.items()}


def gguf_name(hf: str) -> tuple[str, int | None] | None:
    """(GGUF name, number of the expert if the tensor is that of one); None for a name that isn't
    known."""
    if hf in _TOP:
        return _TOP[hf], None
    if match := _EXPERT_NAME.fullmatch(hf):
        layer, expert, part = match.groups()
        if part in _EXPERT:
            return f"blk.{int(layer)}.{_EXPERT[part]}.weight", int(expert)
    elif match := _LAYER_NAME.fullmatch(hf):
        layer, part, kind = match.groups()
        if part in _IN_LAYER:
            return f"blk.{int(layer)}.{_IN_LAYER[part]}.{kind}", None
    return None


def hf_name(gguf: str) -> str:
    """The Hugging Face name of a GGUF tensor, for messages; `gguf` itself if it isn't known."""
    if gguf in _HF_TOP:
        return _HF_TOP[gguf]
    parts = gguf.split(".")
    if len(parts) == 4:
        _, layer, part, kind = parts
        if part in _HF_IN_LAYER:
            return f"model.layers.{layer}.{_HF_IN_LAYER[part]}.{kind}"
        if part in _HF_EXPERT:
            return f"model.layers.{layer}.mlp.experts.*.{_HF_EXPERT[part]}.{kind}"
    return gguf
