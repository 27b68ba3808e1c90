"""Qwen3-VL, the part that reads and writes text: Qwen3, or Qwen3 with experts, with three positions
per row and, in the rows of an image, features of the vision tower added behind the first layers
(DeepStack).

A row of an image comes as a vector: hidden_size columns in the place of the embedding, then
hidden_size more for each of the first layers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftproof.models import decoder, qwen3, qwen3moe
from draftproof.models.config import ModelConfig
from draftproof.models.program import ProgramBuilder

PERMUTED = False


def shapes(c: ModelConfig) -> decoder.Shapes:
    return qwen3moe.shapes(c) if c.num_experts else qwen3.shapes(c)


def rotary_axes(c: ModelConfig) -> NDArray[np.uint8]:
    """The position that each frequency turns by: time, row and column by turns as long as the
    sections of row and column last, then time."""
    axes = np.zeros(c.head_dim // 2, np.uint8)
    for axis in (1, 2):
        axes[axis : 3 * c.rope_sections[axis] : 3] = axis
    return axes


def record(p: ProgramBuilder, c: ModelConfig) -> None:
    p.embed("x", "token_embd.weight")
    for i in range(c.num_layers):
        qwen3.attention(p, i)
        if c.num_experts:
            decoder.experts(p, c, i)
        else:
            decoder.mlp(p, i)
        if i < c.deepstack_layers:
            p.add_vectors("x", column=(1 + i) * c.hidden_size)
    decoder.head(p, c)
