"""Llama (SmolLM2): no biases, no query and key norms.

GGUF files of this family hold the rows of q and k permuted for adjacent-pair rotation; the loader
puts them back (PERMUTED), so the rotation here is half-split as in every other family.
"""

from __future__ import annotations

from draftproof.models import decoder
from draftproof.models.config import ModelConfig
from draftproof.models.program import ProgramBuilder

PERMUTED = True
shapes = decoder.common_shapes


def record(p: ProgramBuilder, c: ModelConfig) -> None:
    p.embed("x", "token_embd.weight")
    for i in range(c.num_layers):
        p.rms_norm("normed", "x", f"blk.{i}.attn_norm.weight")
        p.linear(["q", "k", "v"], "normed", [f"blk.{i}.attn_{name}.weight" for name in "qkv"])
        decoder.attend_and_add(p, i)
        decoder.mlp(p, i)
    decoder.head(p, c)
