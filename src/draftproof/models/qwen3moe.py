"""Qwen3 with experts (30B-A3B, Coder): as Qwen3, but every layer's MLP is one of many.

A router gives each expert a probability; a row goes through the likeliest few.
"""

from __future__ import annotations

from draftproof.models import decoder, qwen3
from draftproof.models.config import ModelConfig
from draftproof.models.program import ProgramBuilder

PERMUTED = False


def shapes(c: ModelConfig) -> decoder.Shapes:
    return decoder.common_shapes(c, decoder.expert_shapes) | qwen3.norm_shapes(c)


def record(p: ProgramBuilder, c: ModelConfig) -> None:
    p.embed("x", "token_embd.weight")
    for i in range(c.num_layers):
        qwen3.attention(p, i)
        decoder.experts(p, c, i)
    decoder.head(p, c)
