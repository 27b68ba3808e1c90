"""The models by transformers, in float32 or float64: what Draftproof's logits are compared with.

Owns how a transformers model is made from plain arrays, never from the network or from
transformers' own GGUF reading. Knows nothing of Draftproof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader, ReaderField
from gguf.quants import dequantize
from numpy.typing import NDArray

from tiny_models import Array, TinySpec, hf_name, split_experts, stack_experts, unpermute

_CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3moe": "Qwen3Moe"}


@dataclass(frozen=True)
class Observed:
    """One forward pass: logits float64 [n, vocab]; attention_peak: the greatest probability of each
    query row, averaged over layers, heads and the later half of the rows (1/n would be uniform)."""

    logits: NDArray[np.float64]
    attention_peak: float


def build(spec: TinySpec, weights: Mapping[str, Array], dtype: torch.dtype) -> Any:
    """A transformers causal LM with exactly these weights (Hugging Face names and row order).

    Embedding and head may be left out where only `model.model(inputs_embeds=...)` is wanted."""
    stem = _CLASSES[spec.arch]
    experts: dict[str, Any] = {}
    if spec.experts:
        experts = {
            "num_experts": spec.experts,
            "num_experts_per_tok": spec.experts_used,
            "moe_intermediate_size": spec.expert_ffn,
            "norm_topk_prob": spec.renormalise,
            "experts_implementation": "eager",
        }
    config = getattr(transformers, f"{stem}Config")(
        hidden_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.ffn,
        vocab_size=spec.vocab,
        rms_norm_eps=spec.eps,
        rope_theta=spec.theta,
        max_position_embeddings=spec.context,
        tie_word_embeddings=spec.tied,
        attn_implementation="eager",
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **experts,
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{stem}ForCausalLM")(config)
    state = {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in _fused(weights).items()}
    loaded = model.load_state_dict(state, strict=False, assign=True)
    optional = {"lm_head.weight", "model.embed_tokens.weight"}
    if loaded.unexpected_keys or set(loaded.missing_keys) - optional:
        raise ValueError(f"names don't fit: {loaded}")
    if spec.tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    # Built on "meta", the table of frequencies is empty: made anew, and checked by the formula.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    exponents = np.arange(0, spec.head_dim, 2) / spec.head_dim
    np.testing.assert_allclose(model.model.rotary_emb.inv_freq, spec.theta**-exponents, rtol=1e-6)
    return model.to(dtype).eval()


def _fused(weights: Mapping[str, Array]) -> dict[str, Array]:
    """As transformers holds experts in memory: gate and up in one tensor, gate first."""
    out: dict[str, Array] = {}
    stacked = stack_experts(weights)
    for name, w in stacked.items():
        if name.endswith("gate_proj_exps.weight"):
            up = stacked[name.replace("gate_proj", "up_proj")]
            fused = name.replace("gate_proj_exps.weight", "experts.gate_up_proj")
            out[fused] = np.concatenate([w, up], axis=1)
        elif name.endswith("down_proj_exps.weight"):
            out[name.replace("down_proj_exps.weight", "experts.down_proj")] = w
        elif not name.endswith("up_proj_exps.weight"):
            out[name] = w
    return out


def observe(
    model: Any, token_ids: NDArray[np.int32], visible: NDArray[np.bool_] | None = None
) -> Observed:
    """Logits of all positions of one sequence [n]. `visible` [n, n] replaces the causal mask: which
    positions (columns) a row attends to."""
    mask = None
    if visible is not None:  # transformers adds a 4-D mask to the scores as it is
        mask = torch.zeros((1, 1, *visible.shape), dtype=model.dtype)
        mask[0, 0, torch.from_numpy(~visible)] = -torch.inf
    with torch.no_grad():
        ids = torch.from_numpy(token_ids.astype(np.int64))[None]
        out = model(ids, attention_mask=mask, output_attentions=True, use_cache=False)
    peaks = [a[0, :, len(token_ids) // 2 :].amax(-1).mean() for a in out.attentions]
    return Observed(out.logits[0].double().numpy(), float(torch.stack(peaks).mean()))


class GgufModel:
    """A GGUF file as the public `gguf` package reads it, in Hugging Face's names and row order."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors = {t.name: t for t in self._reader.tensors}
        arch = str(self._value("general.architecture"))
        heads = int(self._value(f"{arch}.attention.head_count"))
        hidden = int(self._value(f"{arch}.embedding_length"))
        self.spec = TinySpec(
            name=path.stem,
            arch=arch,
            hidden=hidden,
            heads=heads,
            kv_heads=int(self._value(f"{arch}.attention.head_count_kv")),
            head_dim=int(self._value(f"{arch}.attention.key_length", hidden // heads)),
            ffn=int(self._value(f"{arch}.feed_forward_length")),
            vocab=int(self._tensors["token_embd.weight"].shape[1]),
            theta=float(self._value(f"{arch}.rope.freq_base")),
            eps=float(self._value(f"{arch}.attention.layer_norm_rms_epsilon")),
            tied="output.weight" not in self._tensors,
            layers=int(self._value(f"{arch}.block_count")),
            context=int(self._value(f"{arch}.context_length")),
            experts=int(self._value(f"{arch}.expert_count", 0)),
            experts_used=int(self._value(f"{arch}.expert_used_count", 0)),
            expert_ffn=int(self._value(f"{arch}.expert_feed_forward_length", 0)),
            renormalise=bool(self._value(f"{arch}.expert_weights_norm", True)),
        )

    def _value(self, key: str, default: Any = None) -> Any:
        field: ReaderField | None = self._reader.get_field(key)
        if field is None and default is None:
            raise KeyError(key)
        return default if field is None else field.contents()

    def rows(self, name: str, which: NDArray[np.int64] | slice) -> Array:
        """float32 [rows, columns] of a GGUF tensor, as they lie in the file."""
        tensor = self._tensors[name]
        # A copy: the file is mapped read-only, and torch warns of such arrays.
        return dequantize(np.array(tensor.data[which], order="C"), tensor.tensor_type)

    def weights(self, with_vocabulary: bool = True) -> dict[str, Array]:
        """float32 by Hugging Face's names; without embedding and head if so asked."""
        out: dict[str, Array] = {}
        for name in self._tensors:
            if name in ("token_embd.weight", "output.weight") and not with_vocabulary:
                continue
            values = self.rows(name, slice(None))
            if self.spec.arch == "llama" and ".attn_q." in name:
                values = unpermute(values, self.spec.heads)
            if self.spec.arch == "llama" and ".attn_k." in name:
                values = unpermute(values, self.spec.kv_heads)
            if values.ndim == 3:
                out |= split_experts(hf_name(name), values)
            else:
                out[hf_name(name)] = values
        return out
