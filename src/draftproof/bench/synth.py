"""GGUF files of real models' true shapes with seeded random weights: for measuring speed and memory
without a download. What they say is gibberish; what they cost is not.

Owns which models there are and what their files hold. The blocks are made by `synth_weights`, the
vocabulary by `synth_vocabulary`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from draftproof.bench.synth_vocabulary import vocabulary_metadata
from draftproof.bench.synth_weights import Pieces, random_pieces
from draftproof.errors import InvalidRequestError
from draftproof.formats.gguf_writer import NewTensor, Progress, Value, write_gguf
from draftproof.models import ModelConfig, qwen3, qwen3moe
from draftproof.models.decoder import Shapes

F32, F16, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, BF16 = 0, 1, 2, 8, 12, 13, 14, 30
_INSTEAD = {Q4_K: 6, Q5_K: 7, Q6_K: 8}  # where 256 doesn't divide a row: Q5_0, Q5_1, Q8_0


@dataclass(frozen=True)
class Recipe:
    """Types of the tensors in a file, as llama.cpp's quantizer chooses them. sensitive: of about
    half of attn_v and ffn_down. head: of the LM head, or of an embedding that is the head too.
    file_type: general.file_type, a label."""

    base: int
    sensitive: int
    head: int
    file_type: int


RECIPES = {
    "q4_k_m": Recipe(Q4_K, Q6_K, Q6_K, 15),
    "q5_k_m": Recipe(Q5_K, Q6_K, Q6_K, 17),
    "q6_k": Recipe(Q6_K, Q6_K, Q6_K, 18),
    "q4_0": Recipe(Q4_0, Q4_0, Q6_K, 2),
    "q8_0": Recipe(Q8_0, Q8_0, Q8_0, 7),
    "f16": Recipe(F16, F16, F16, 1),
    "bf16": Recipe(BF16, BF16, BF16, 32),
}


@dataclass(frozen=True)
class SynthModel:
    """A model to imitate. extra: metadata beyond what every file of its architecture has, without
    the architecture's name before the key."""

    config: ModelConfig
    extra: dict[str, Value] = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        if self.config.num_experts:
            return qwen3moe.shapes(self.config)
        return qwen3.shapes(self.config)


def _model(
    name: str,
    layers: int,
    hidden: int,
    ff: int,
    heads: int,
    kv_heads: int,
    *,
    architecture: str = "qwen3",
    tied: bool = False,
    context: int = 40960,
    theta: float = 1e6,
    vocab: int = 151936,
    head_dim: int = 128,
    experts: tuple[int, int, int] = (0, 0, 0),
    extra: dict[str, Value] | None = None,
) -> SynthModel:
    config = ModelConfig(
        architecture=architecture,
        name=f"{name}, random weights",
        num_layers=layers,
        context_length=context,
        hidden_size=hidden,
        intermediate_size=ff,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        rope_theta=theta,
        vocab_size=vocab,
        tied=tied,
        num_experts=experts[0],
        experts_used=experts[1],
        expert_size=experts[2],
    )
    return SynthModel(config, extra or {})


def _vl(name: str, layers: int, hidden: int, ff: int, heads: int, *, tied: bool) -> SynthModel:
    """The text part of a Qwen3-VL."""
    extra: dict[str, Value] = {
        "rope.dimension_sections": np.array([24, 20, 20, 0], np.int32),
        "n_deepstack_layers": 3,
    }
    return _model(
        name, layers, hidden, ff, heads, 8, architecture="qwen3vl", tied=tied, context=262144,
        theta=5e6, extra=extra,
    )  # fmt: skip


MODELS = {
    "tiny": _model("tiny", 4, 256, 512, 4, 2, tied=True, context=2048, vocab=2048, head_dim=64),
    "tiny-moe": _model(
        "tiny-moe", 4, 256, 512, 4, 2, architecture="qwen3moe", context=2048, vocab=2048,
        head_dim=64, experts=(16, 4, 256),
    ),
    "qwen3-0.6b": _model("Qwen3-0.6B", 28, 1024, 3072, 16, 8, tied=True),
    "qwen3-1.7b": _model("Qwen3-1.7B", 28, 2048, 6144, 16, 8, tied=True),
    "qwen3-vl-2b": _vl("Qwen3-VL-2B", 28, 2048, 6144, 16, tied=True),
    "qwen3-8b": _model("Qwen3-8B", 36, 4096, 12288, 32, 8),
    "qwen3-vl-8b": _vl("Qwen3-VL-8B", 36, 4096, 12288, 32, tied=False),
    "qwen3-30b-a3b": _model(
        "Qwen3-30B-A3B", 48, 2048, 6144, 32, 4, architecture="qwen3moe", experts=(128, 8, 768)
    ),
}  # fmt: skip


def synthesise(
    name: str, path: Path, quant: str = "q4_k_m", seed: int = 0, progress: Progress | None = None
) -> int:
    """Writes the model `name` (of MODELS) to `path`, its linear weights as the recipe `quant` (of
    RECIPES) says, and returns the size in bytes. The same arguments give the same bytes.

    Raises InvalidRequestError: an unknown name or recipe, or what `write_gguf` refuses.
    """
    if name not in MODELS:
        raise InvalidRequestError(f"no model is called {name!r}: choose one of {', '.join(MODELS)}")
    if quant not in RECIPES:
        raise InvalidRequestError(f"--quant {quant!r} isn't one of {', '.join(RECIPES)}")
    if not 0 <= seed < 1 << 64:
        raise InvalidRequestError(f"--seed must be 0 to 2^64 - 1, got {seed}")
    model, recipe = MODELS[name], RECIPES[quant]
    tensors = [
        NewTensor(tensor, type_of(tensor, shape, model.config, recipe), shape)
        for tensor, shape in model.shapes.items()
    ]

    def pieces(tensor: NewTensor) -> Iterator[Pieces]:
        return random_pieces(tensor, _level(tensor, model.config), seed)

    return write_gguf(path, _metadata(model, recipe), tensors, pieces, progress)


def type_of(name: str, shape: tuple[int, ...], c: ModelConfig, recipe: Recipe) -> int:
    """The type of a tensor in a file of the recipe."""
    if len(shape) == 1 or ".ffn_gate_inp." in name:
        return F32
    kind = recipe.base
    if name == "output.weight" or (name == "token_embd.weight" and c.tied):
        kind = recipe.head
    elif ".attn_v." in name or ".ffn_down" in name:
        kind = recipe.sensitive if _has_more_bits(int(name.split(".")[1]), c.num_layers) else kind
    return _INSTEAD[kind] if shape[-1] % 256 and kind in _INSTEAD else kind


def _has_more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third of the others."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _level(tensor: NewTensor, c: ModelConfig) -> float:
    """The standard deviation of a matrix, or the mean of a norm. Outputs of linear layers get a
    deviation of about 1, scores and logits somewhat more, as in a model that has learned."""
    if len(tensor.shape) == 1:
        if tensor.name == "output_norm.weight" and c.tied:
            return 2.5 / (_EMBEDDING * float(np.sqrt(c.hidden_size)))
        return 1.5 if ".attn_q_norm." in tensor.name or ".attn_k_norm." in tensor.name else 1.0
    if tensor.name == "token_embd.weight":
        return _EMBEDDING
    gain = 2.5 if tensor.name == "output.weight" else 1.5 if ".ffn_gate" in tensor.name else 1.0
    return gain / float(np.sqrt(tensor.shape[-1]))


_EMBEDDING = 0.03


def _metadata(model: SynthModel, recipe: Recipe) -> dict[str, Value]:
    c = model.config
    values: dict[str, Value] = {
        "block_count": c.num_layers,
        "context_length": c.context_length,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "rope.freq_base": c.rope_theta,
        **model.extra,
    }
    if c.num_experts:
        values["expert_count"] = c.num_experts
        values["expert_used_count"] = c.experts_used
        values["expert_feed_forward_length"] = c.expert_size
    return {
        "general.architecture": c.architecture,
        "general.type": "model",
        "general.name": c.name,
        "general.file_type": recipe.file_type,
        "general.quantization_version": 2,
        **{f"{c.architecture}.{key}": value for key, value in values.items()},
        **vocabulary_metadata(c.vocab_size),
    }
