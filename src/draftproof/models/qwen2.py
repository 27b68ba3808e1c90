"""Qwen2 and Qwen2.5: biases on q, k and v."""

from __future__ import annotations

from draftproof.models import decoder
from draftproof.models.config import ModelConfig
from draftproof.models.program import ProgramBuilder

PERMUTED = False


def shapes(c: ModelConfig) -> decoder.Shapes:
    out = decoder.common_shapes(c)
    for i in range(c.num_layers):
        out[f"blk.{i}.attn_q.bias"] = (c.num_heads * c.head_dim,)
        out[f"blk.{i}.attn_k.bias"] = (c.num_kv_heads * c.head_dim,)
        out[f"blk.{i}.attn_v.bias"] = (c.num_kv_heads * c.head_dim,)
    return out


def record(p: ProgramBuilder, c: ModelConfig) -> None:
    p.embed("x", "token_embd.weight")
    for i in range(c.num_layers):
        p.rms_norm("normed", "x", f"blk.{i}.attn_norm.weight")
        p.linear(
            ["q", "k", "v"],
            "normed",
            [f"blk.{i}.attn_{name}.weight" for name in "qkv"],
            biases=[f"blk.{i}.attn_{name}.bias" for name in "qkv"],
        )
        decoder.attend_and_add(p, i)
        decoder.mlp(p, i)
    decoder.head(p, c)
