"""Experts that a router can't tell apart: the lower index is chosen.

transformers leaves ties to torch.topk, whose choice is unspecified: here it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from parity.logits import all_logits
from parity.reference import build, observe
from parity.test_tiny_parity import BOUND, FLOAT_CONFIG, prompt, relative_error
from tiny_models import SPECS, Array, gguf_tensors, hf_weights, metadata, write_gguf

NAME = "qwen3moe"


def tied_weights() -> dict[str, Array]:
    """Routers whose rows come in equal pairs: with an odd number of experts used, the border
    between chosen and not lies within a pair, for every row."""
    weights = hf_weights(SPECS[NAME])
    for name, w in weights.items():
        if name.endswith("mlp.gate.weight"):
            w[1::2] = w[: len(w) - 1 : 2]
    return weights


@contextmanager
def ties_to(lower: bool) -> Iterator[None]:
    """torch.topk that gives the lower (or the higher) index first among equals."""

    def topk(x: torch.Tensor, k: int, dim: int) -> Any:
        if lower:
            order = torch.sort(x, dim=dim, descending=True, stable=True).indices[..., :k]
        else:
            flipped = torch.sort(x.flip(dim), dim=dim, descending=True, stable=True).indices
            order = x.shape[dim] - 1 - flipped[..., :k]
        return torch.gather(x, dim, order), order

    with mock.patch("torch.topk", topk):
        yield


def expected(lower: bool) -> NDArray[np.float64]:
    model = build(SPECS[NAME], tied_weights(), torch.float64)
    with ties_to(lower):
        return observe(model, prompt(NAME)).logits


def test_ties_go_to_the_lower_index(tmp_path: Path, load: Any) -> None:
    spec = SPECS[NAME]
    assert spec.experts_used % 2 == 1
    path = tmp_path / "ties.gguf"
    write_gguf(path, spec.arch, metadata(spec), gguf_tensors(spec, tied_weights()))
    logits = all_logits(load(path, **FLOAT_CONFIG), prompt(NAME), 64)
    assert relative_error(logits, expected(lower=True)) <= BOUND
    assert relative_error(logits, expected(lower=False)) > BOUND
