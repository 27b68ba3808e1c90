"""Qwen3: every head of q and k is normed before the rotation, with one weight for all heads."""

from __future__ import annotations

from draftproof.models import decoder
from draftproof.models.config import ModelConfig
from draftproof.models.program import ProgramBuilder

PERMUTED = False


def shapes(c: ModelConfig) -> decoder.Shapes:
    return decoder.common_shapes(c) | norm_shapes(c)


def norm_shapes(c: ModelConfig) -> decoder.Shapes:
    """The norms of q and k."""
    return {
        f"blk.{i}.attn_{name}_norm.weight": (c.head_dim,)
        for i in range(c.num_layers)
        for name in "qk"
    }


def attention(p: ProgramBuilder, i: int) -> None:
    """The first half of layer i."""
    p.rms_norm("normed", "x", f"blk.{i}.attn_norm.weight")
    p.linear(["q", "k", "v"], "normed", [f"blk.{i}.attn_{name}.weight" for name in "qkv"])
    p.rms_norm("q", "q", f"blk.{i}.attn_q_norm.weight")
    p.rms_norm("k", "k", f"blk.{i}.attn_k_norm.weight")
    decoder.attend_and_add(p, i)


def record(p: ProgramBuilder, c: ModelConfig) -> None:
    p.embed("x", "token_embd.weight")
    for i in range(c.num_layers):
        attention(p, i)
        decoder.mlp(p, i)
    decoder.head(p, c)
