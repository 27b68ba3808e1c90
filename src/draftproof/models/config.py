"""What a decoder is made of, read from a file's metadata and checked before anything is allocated.

Owns the hyper-parameters and their ranges. Knows no tensors and no operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftproof.formats import GgufFile, dequantize
from draftproof.models.rotary import Yarn


@dataclass(frozen=True)
class ModelConfig:
    """Hyper-parameters of a decoder-only model.

    head_dim is a value of its own: num_heads * head_dim need not be hidden_size.
    rope_theta: base of the rotary frequencies theta^(-2j / head_dim).
    """

    architecture: str
    name: str
    num_layers: int
    context_length: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int  # rows of the embedding; a tokenizer may use fewer ids
    tied: bool  # the embedding is also the LM head
    num_experts: int = 0  # 0: one MLP per layer
    experts_used: int = 0  # per row
    expert_size: int = 0  # width of one expert
    renormalise_experts: bool = True  # the probabilities of a row's experts are made to sum to 1
    rope_divisors: tuple[float, ...] | None = None  # per rotary pair: its frequency is divided by
    yarn: Yarn | None = None  # instead of rope_divisors
    rope_sections: tuple[int, ...] = ()  # frequencies of time, row and column; () = text only
    deepstack_layers: int = 0  # layers behind which features of an image are added

    @classmethod
    def from_gguf(cls, file: GgufFile) -> ModelConfig:
        """Reads the keys `<architecture>.*` (GGUF specification, ggml docs/gguf.md).

        Raises ModelFileError: a key is missing, of the wrong type or out of range, heads don't
        divide, or the file asks for a rotary scaling that isn't built.
        """
        arch = file.str_value("general.architecture")
        if arch == "clip":
            raise file.error(
                "is an mmproj file: the vision tower of a model, not a model",
                "give the model's file, and this one with --mmproj",
            )
        key = arch + "."
        hidden = file.int_value(key + "embedding_length", 1, 1 << 16)
        heads = file.int_value(key + "attention.head_count", 1, 1024)
        kv_heads = file.int_value(key + "attention.head_count_kv", 1, 1024, default=heads)
        if heads % kv_heads or heads // kv_heads > 64:
            raise file.error(f"{heads} query heads can't share {kv_heads} KV heads")
        head_dim = file.int_value(
            key + "attention.key_length", 2, 1024, default=hidden // heads or 2
        )
        if head_dim % 2:
            raise file.error(f"head_dim {head_dim} is odd")
        for name in ("attention.value_length", "rope.dimension_count"):
            if file.int_value(key + name, 1, 1 << 16, default=head_dim) != head_dim:
                raise file.error(
                    f"{key}{name} differs from head_dim {head_dim}",
                    "this kind of model isn't supported",
                )
        experts, used, expert_size = _experts(file, key)
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise file.error("the tensor token_embd.weight is missing or no matrix")
        return cls(
            architecture=arch,
            name=file.str_value("general.name", default=file.path.stem),
            num_layers=file.int_value(key + "block_count", 1, 512),
            context_length=file.int_value(key + "context_length", 2, 1 << 24),
            hidden_size=hidden,
            intermediate_size=file.int_value(
                key + "feed_forward_length", 1, 1 << 20, default=expert_size or None
            ),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=file.float_value(key + "attention.layer_norm_rms_epsilon", 1e-12, 1.0),
            rope_theta=file.float_value(key + "rope.freq_base", 1.0, 1e12, default=10000.0),
            vocab_size=embedding.shape[0],
            tied="output.weight" not in file.tensors,
            num_experts=experts,
            experts_used=used,
            expert_size=expert_size,
            renormalise_experts=file.bool_value(key + "expert_weights_norm", default=True),
            rope_divisors=_rope_divisors(file, key, head_dim // 2),
            yarn=_yarn(file, key),
            rope_sections=_rope_sections(file, key, head_dim),
            deepstack_layers=file.int_value(key + "n_deepstack_layers", 0, 64, default=0),
        )


def _experts(file: GgufFile, key: str) -> tuple[int, int, int]:
    """Experts, how many of them a row uses, and their width; zeros where there are none."""
    least = 1 if key.endswith("moe.") else 0
    experts = file.int_value(key + "expert_count", least, 1024, default=0)
    if experts == 0:
        return 0, 0, 0
    used = file.int_value(key + "expert_used_count", 1, min(experts, 64))
    # The keys of other kinds of experts, and what they are where a file doesn't say.
    if file.int_value(key + "expert_gating_func", 0, 1 << 16, default=1) not in (0, 1):
        raise file.error("its experts aren't chosen by softmax", "this kind isn't supported")
    if file.float_value(key + "expert_weights_scale", -1e9, 1e9, default=1.0) not in (0.0, 1.0):
        raise file.error("its experts' weights are scaled", "this kind isn't supported")
    width = file.int_value(key + "expert_feed_forward_length", 1, 1 << 20)
    return experts, used, width


def _rope_sections(file: GgufFile, key: str, head_dim: int) -> tuple[int, ...]:
    """Of a model with positions in three dimensions; () for others."""
    if "vl" not in key:
        return ()
    sections = tuple(file.int_list(key + "rope.dimension_sections", 0, 512))[:3]
    if len(sections) < 3 or sum(sections) != head_dim // 2 or max(sections[1:]) > sections[0]:
        raise file.error(
            f"the rotary sections {list(sections)} don't fill {head_dim // 2} frequencies"
        )
    return sections


def _rope_divisors(file: GgufFile, key: str, pairs: int) -> tuple[float, ...] | None:
    """Scaling that slows the rotation: linear by one factor, llama-3 by a tensor of factors.

    Any other scaling than these and YaRN is refused: ignored, it gives fluent nonsense beyond the
    training length.
    """
    kind = file.str_value(key + "rope.scaling.type", default="none")
    factor = file.float_value(key + "rope.scaling.factor", 0.0, 1e6, default=1.0)
    scaled = kind != "none" and factor not in {0.0, 1.0}
    if scaled and kind not in ("linear", "yarn"):
        raise file.error(
            f"rotary scaling {kind!r} (factor {factor:g}) isn't supported",
            "use a file without rope scaling",
        )
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return (factor,) * pairs if scaled and kind == "linear" else None
    if scaled:
        raise file.error(f"has both a {kind} rotary scaling and rope_freqs.weight")
    if tensor.shape != (pairs,) or tensor.ggml_type != 0:
        raise file.error("rope_freqs.weight must be F32 with one value per rotary pair")
    data = file.data(tensor.name)
    values = tuple(float(x) for x in dequantize(tensor.ggml_type, data, tensor.shape))
    if not all(math.isfinite(x) and x > 0 for x in values):
        raise file.error("rope_freqs.weight has a value that is not positive and finite")
    return values


def _yarn(file: GgufFile, key: str) -> Yarn | None:
    """The settings of YaRN, with llama.cpp's defaults."""
    trained = file.int_value(key + "context_length", 2, 1 << 24)
    key += "rope.scaling."
    if file.str_value(key + "type", default="none") != "yarn":
        return None
    factor = file.float_value(key + "factor", 0.0, 1e6, default=1.0)
    if factor in {0.0, 1.0}:
        return None
    if factor < 1:
        raise file.error(f"{key}factor is {factor:g}, YaRN needs at least 1")
    for name, usual in (
        ("attn_factor", 1.0),
        ("yarn_attn_factor", 1.0),
        ("yarn_ext_factor", 1.0),
        ("yarn_log_multiplier", 0.0),
    ):
        value = file.float_value(key + name, -1e9, 1e9, default=usual)
        if value not in (usual, *((-1.0,) if name == "yarn_ext_factor" else ())):
            raise file.error(f"{key}{name} is {value:g}", "this kind of YaRN isn't supported")
    fast = file.float_value(key + "yarn_beta_fast", 1e-6, 1e6, default=32.0)
    slow = file.float_value(key + "yarn_beta_slow", 1e-6, 1e6, default=1.0)
    if slow >= fast:
        raise file.error(f"{key}yarn_beta_fast must be greater than yarn_beta_slow")
    trained = file.int_value(key + "original_context_length", 2, 1 << 24, default=trained)
    return Yarn(factor, trained, fast, slow)
