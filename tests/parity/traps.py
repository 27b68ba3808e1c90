"""The classic mistakes of an implementation, each injected so that parity must notice it.

Two kinds. A *file trap* spoils a tiny GGUF file: what the engine then computes is what an engine
with that mistake would compute from a good file. A *model trap* puts the mistake into the
transformers model instead, where no change of a file can express it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from gguf import GGUFValueType
from transformers.models.qwen3 import modeling_qwen3

from tiny_models import Array, Metadata, TinySpec, permute, unpermute

Tensors = dict[str, Array]
Spoil = Callable[[TinySpec, Metadata, Tensors], None]


@dataclass(frozen=True)
class FileTrap:
    name: str
    model: str  # a key of SPECS
    spoil: Spoil  # changes metadata and float tensors in place


def _each(tensors: Tensors, part: str, change: Callable[[Array], Array]) -> None:
    names = [name for name in tensors if f".{part}." in name]
    assert names, f"no tensor is called {part}"
    for name in names:
        tensors[name] = np.ascontiguousarray(change(tensors[name]))


def _unpermuted_q_and_k(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    # What an engine that takes llama's rows for half-split does, seen from the other side.
    _each(tensors, "attn_q", lambda w: permute(w, spec.heads))
    _each(tensors, "attn_k", lambda w: permute(w, spec.kv_heads))


def _k_permuted_by_query_heads(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    def wrong(w: Array) -> Array:
        return permute(unpermute(w, spec.kv_heads), spec.heads)

    _each(tensors, "attn_k", wrong)


def _v_permuted(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    _each(tensors, "attn_v", lambda w: permute(w, spec.kv_heads))


def _no_bias(part: str) -> Spoil:
    def spoil(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
        for name in [n for n in tensors if n.endswith(f"{part}.bias")]:
            tensors[name] = np.zeros_like(tensors[name])

    return spoil


def _norms_swapped(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    for i in range(spec.layers):
        q, k = f"blk.{i}.attn_q_norm.weight", f"blk.{i}.attn_k_norm.weight"
        tensors[q], tensors[k] = tensors[k], tensors[q]


def _layer_norms_swapped(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    for i in range(spec.layers):
        a, b = f"blk.{i}.attn_norm.weight", f"blk.{i}.ffn_norm.weight"
        tensors[a], tensors[b] = tensors[b], tensors[a]


def _gate_and_up_swapped(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    for i in range(spec.layers):
        gate, up = f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight"
        tensors[gate], tensors[up] = tensors[up], tensors[gate]


def _heads_modulo_kv_heads(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    # Query head i meets kv head i mod K: the same as moving the query heads, and o's columns along.
    group = spec.heads // spec.kv_heads
    order = np.arange(spec.heads).reshape(group, spec.kv_heads).T.reshape(-1)

    def move(w: Array) -> Array:
        moved: Array = w.reshape(spec.heads, spec.head_dim, -1)[order]
        return moved.reshape(w.shape)

    _each(tensors, "attn_q", move)
    _each(tensors, "attn_output", lambda w: move(np.ascontiguousarray(w.T)).T)


def _gate_and_up_experts_swapped(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    for i in range(spec.layers):
        gate, up = f"blk.{i}.ffn_gate_exps.weight", f"blk.{i}.ffn_up_exps.weight"
        tensors[gate], tensors[up] = tensors[up], tensors[gate]


def _experts_reversed(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    _each(tensors, "ffn_down_exps", lambda w: w[::-1])


def _renormalised(value: bool) -> Spoil:
    def spoil(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
        meta[f"{spec.arch}.expert_weights_norm"] = (value, GGUFValueType.BOOL)

    return spoil


def _fewer_experts_used(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    meta[f"{spec.arch}.expert_used_count"] = (spec.experts_used - 1, GGUFValueType.UINT32)


def _setting(key: str, value: float) -> Spoil:
    def spoil(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
        assert f"{spec.arch}.{key}" in meta
        meta[f"{spec.arch}.{key}"] = (value, GGUFValueType.FLOAT32)

    return spoil


def _head_ignored(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    del tensors["output.weight"]


def _tied_head_used_untied(spec: TinySpec, meta: Metadata, tensors: Tensors) -> None:
    tensors["output.weight"] = tensors["token_embd.weight"][::-1].copy()


_EPS, _THETA = "attention.layer_norm_rms_epsilon", "rope.freq_base"

FILE_TRAPS = [
    FileTrap("adjacent pairs read as halves", "llama", _unpermuted_q_and_k),
    FileTrap("k permuted by the number of query heads", "llama", _k_permuted_by_query_heads),
    FileTrap("v permuted too", "llama", _v_permuted),
    FileTrap("qwen2 permuted like llama", "qwen2", _unpermuted_q_and_k),
    FileTrap("qwen3 permuted like llama", "qwen3", _unpermuted_q_and_k),
    FileTrap("no bias on q", "qwen2", _no_bias("attn_q")),
    FileTrap("no bias on k", "qwen2", _no_bias("attn_k")),
    FileTrap("no bias on v", "qwen2", _no_bias("attn_v")),
    FileTrap("q norm and k norm swapped", "qwen3", _norms_swapped),
    FileTrap("the two norms of a layer swapped", "qwen3", _layer_norms_swapped),
    FileTrap("gate and up swapped", "llama", _gate_and_up_swapped),
    FileTrap("query head i on kv head i mod K", "qwen2", _heads_modulo_kv_heads),
    FileTrap("query head i on kv head i mod K", "qwen3", _heads_modulo_kv_heads),
    FileTrap("epsilon 1e-6 instead of 1e-5", "llama", _setting(_EPS, 1e-6)),
    FileTrap("epsilon 1e-5 instead of 1e-6", "qwen2", _setting(_EPS, 1e-5)),
    FileTrap("epsilon 1e-5 instead of 1e-6", "qwen3", _setting(_EPS, 1e-5)),
    FileTrap("theta 10000", "llama", _setting(_THETA, 1e4)),
    FileTrap("theta 10000", "qwen2", _setting(_THETA, 1e4)),
    FileTrap("theta 5e6 instead of 1e6", "qwen3", _setting(_THETA, 5e6)),
    FileTrap("gate and up swapped", "qwen3moe", _gate_and_up_experts_swapped),
    FileTrap("experts in another order", "qwen3moe", _experts_reversed),
    FileTrap("probabilities not renormalised", "qwen3moe", _renormalised(False)),
    FileTrap("probabilities renormalised", "qwen3moe-raw", _renormalised(True)),
    FileTrap("one expert too few", "qwen3moe", _fewer_experts_used),
    FileTrap("stored head ignored", "qwen3-untied", _head_ignored),
    FileTrap("stored head used where another is meant", "llama", _tied_head_used_untied),
]


@contextmanager
def qk_norm_after_rope(model: Any) -> Iterator[None]:
    """While open, a transformers qwen3 model norms q and k behind the rotation."""
    current: dict[str, Any] = {}
    rotate = modeling_qwen3.apply_rotary_pos_emb

    def rotate_then_norm(q: Any, k: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        q, k = rotate(q, k, *args, **kwargs)
        return current["q"](q), current["k"](k)

    def remember(q_norm: Any, k_norm: Any) -> Callable[..., None]:
        return lambda *args: current.update(q=q_norm, k=k_norm)

    for layer in model.model.layers:
        attention = layer.self_attn
        attention.register_forward_pre_hook(remember(attention.q_norm, attention.k_norm))
        attention.q_norm = attention.k_norm = torch.nn.Identity()
    with mock.patch.object(modeling_qwen3, "apply_rotary_pos_emb", rotate_then_norm):
        yield


class _NormOverAllHeads(torch.nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, rows, heads, head_dim]"""
        normed: torch.Tensor = x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + self.eps)
        normed = normed * self.weight
        return normed


def qk_norm_over_all_heads(model: Any) -> None:
    """Makes a transformers qwen3 model norm the whole rows of q and k instead of each head."""
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_norm = _NormOverAllHeads(attention.q_norm)
        attention.k_norm = _NormOverAllHeads(attention.k_norm)
