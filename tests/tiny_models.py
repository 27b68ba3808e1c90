"""Tiny random models as GGUF files: every architecture, every tensor type, with a vocabulary.

Owns sizes, seeds, the Hugging Face -> GGUF naming and the llama row permutation, as a converter
does them. Knows nothing of Draftproof: it writes with the public `gguf` package, so a misreading of
the format can't cancel out. Needs numpy and gguf only; torch comes in with tests/parity.

Typical use: `tiny.path("qwen3", "Q4_K")` from the fixture `tiny` of tests/conftest.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter

from tiny_blocks import MIXED, Array, Packed, Type, pack

# Small embeddings make a wrong epsilon visible: mean(x^2) = 1e-4 against 1e-6 or 1e-5.
EMBEDDING_STD = 0.01
LOGIT_STD = 2.5


@dataclass(frozen=True)
class TinySpec:
    """Sizes of one tiny model; `vocab` counts rows, the padding of the vocabulary included."""

    name: str
    arch: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    theta: float
    eps: float
    tied: bool
    layers: int = 3
    context: int = 2048
    experts: int = 0  # 0: none; else `ffn` is unused, as in real files
    experts_used: int = 0
    expert_ffn: int = 0
    renormalise: bool = True

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())


def _with_experts(
    name: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    experts: int,
    used: int,
    expert_ffn: int,
    renormalise: bool = True,
) -> TinySpec:
    return TinySpec(
        name, "qwen3moe", hidden, heads, kv_heads, head_dim, 6 * hidden, 307, 1e6, 1e-6, tied=True,
        experts=experts, experts_used=used, expert_ffn=expert_ffn, renormalise=renormalise,
    )  # fmt: skip


def _specs() -> dict[str, TinySpec]:
    base = [
        TinySpec("llama", "llama", 96, 6, 3, 16, 160, 299, 1e5, 1e-5, tied=True),
        TinySpec("qwen2", "qwen2", 224, 14, 2, 16, 288, 310, 1e6, 1e-6, tied=True),
        TinySpec("qwen3", "qwen3", 96, 6, 2, 32, 224, 307, 1e6, 1e-6, tied=True),
        _with_experts("qwen3moe", 96, 6, 2, 32, experts=11, used=3, expert_ffn=96),
        _with_experts("qwen3moe-raw", 96, 6, 2, 32, 11, 3, 96, renormalise=False),
        # 256 wide, so that K-quants fit every row.
        TinySpec("llama-wide", "llama", 256, 8, 4, 32, 512, 299, 1e5, 1e-5, tied=True),
        TinySpec("qwen2-wide", "qwen2", 256, 4, 2, 64, 768, 310, 1e6, 1e-6, tied=True),
        TinySpec("qwen3-wide", "qwen3", 256, 8, 2, 64, 512, 307, 1e6, 1e-6, tied=True),
        _with_experts("qwen3moe-wide", 256, 8, 2, 64, experts=8, used=4, expert_ffn=256),
    ]
    untied = [replace(s, name=f"{s.name}-untied", tied=False) for s in base]
    return {s.name: s for s in base + untied}


SPECS = _specs()
ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")

# --- weights, in the names and the row order of Hugging Face ------------------------------------


def hf_weights(spec: TinySpec) -> dict[str, Array]:
    """Random float32 weights [out, in] by their Hugging Face name, the same for every call.

    Scaled so that attention scores have a standard deviation of about 2.5 (far from uniform) and
    logits of about LOGIT_STD."""
    rng = np.random.default_rng(spec.seed)

    def linear(out: int, width: int, gain: float) -> Array:
        scaled: Array = rng.standard_normal((out, width), np.float32)
        scaled *= np.float32(gain / np.sqrt(width))
        return scaled

    def norm(width: int, level: float = 1.0) -> Array:
        spread: Array = 1 + np.float32(0.2) * rng.standard_normal(width, np.float32)
        spread *= np.float32(level)
        return spread

    h, q, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    embedding = np.float32(EMBEDDING_STD) * rng.standard_normal((spec.vocab, h), np.float32)
    tied_level = LOGIT_STD / (np.sqrt(h) * EMBEDDING_STD)
    weights: dict[str, Array] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": norm(h, tied_level if spec.tied else 1.0),
    }
    if not spec.tied:
        weights["lm_head.weight"] = linear(spec.vocab, h, LOGIT_STD)
    for i in range(spec.layers):
        p = f"model.layers.{i}."
        weights |= {
            p + "input_layernorm.weight": norm(h),
            p + "post_attention_layernorm.weight": norm(h),
            p + "self_attn.q_proj.weight": linear(q, h, 1.6),
            p + "self_attn.k_proj.weight": linear(kv, h, 1.6),
            p + "self_attn.v_proj.weight": linear(kv, h, 1.0),
            p + "self_attn.o_proj.weight": linear(h, q, 1.0),
        }
        if spec.experts:
            weights[p + "mlp.gate.weight"] = linear(spec.experts, h, 1.5)
        width = spec.expert_ffn if spec.experts else spec.ffn
        for mlp in [f"mlp.experts.{e}." for e in range(spec.experts)] or ["mlp."]:
            weights |= {
                p + mlp + "gate_proj.weight": linear(width, h, 1.5),
                p + mlp + "up_proj.weight": linear(width, h, 1.0),
                p + mlp + "down_proj.weight": linear(h, width, 1.0),
            }
        if spec.arch == "qwen2":
            for name, width in (("q", q), ("k", kv), ("v", kv)):
                bias = np.float32(0.4) * rng.standard_normal(width, np.float32)
                weights[p + f"self_attn.{name}_proj.bias"] = bias
        if spec.arch in ("qwen3", "qwen3moe"):
            weights[p + "self_attn.q_norm.weight"] = norm(spec.head_dim, 1.6)
            weights[p + "self_attn.k_norm.weight"] = norm(spec.head_dim, 1.6)
    return weights


# --- GGUF: names, permutation ------------------------------------------------------

_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_proj_exps": "ffn_gate_exps",
    "mlp.up_proj_exps": "ffn_up_exps",
    "mlp.down_proj_exps": "ffn_down_exps",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(hf_name: str) -> str:
    """The GGUF name of a Hugging Face tensor; KeyError if there is none."""
    if hf_name in _TOP_NAMES:
        return _TOP_NAMES[hf_name]
    _, _, layer, rest = hf_name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[module]}.{kind}"


def hf_name(gguf_name_: str) -> str:
    """The reverse of `gguf_name`."""
    for hf, gguf in _TOP_NAMES.items():
        if gguf == gguf_name_:
            return hf
    _, layer, module, kind = gguf_name_.split(".")
    module = {gguf: hf for hf, gguf in _LAYER_NAMES.items()}[module]
    return f"model.layers.{layer}.{module}.{kind}"


def stack_experts(weights: Mapping[str, Array]) -> dict[str, Array]:
    """`...mlp.experts.E.gate_proj.weight` [out, in] of all E -> one [experts, out, in] under
    `...mlp.gate_proj_exps.weight`; everything else as it is."""
    out: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name, w in weights.items():
        before, is_expert, after = name.partition("experts.")
        if is_expert:
            module = after.split(".")[1]
            stacks.setdefault(f"{before}{module}_exps.weight", []).append(w)
        else:
            out[name] = w
    return out | {name: np.stack(each) for name, each in stacks.items()}


def split_experts(name: str, stacked: Array) -> dict[str, Array]:
    """The reverse for one tensor."""
    before, _, module = name.removesuffix("_exps.weight").rpartition(".")
    return {f"{before}.experts.{e}.{module}.weight": w for e, w in enumerate(stacked)}


def permute(rows: Array, heads: int) -> Array:
    """Row order of q and k in `llama` GGUF files: row s*hd/2 + j of a head moves to row 2j + s."""
    half = rows.shape[0] // heads // 2
    split = rows.reshape(heads, 2, half, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def unpermute(rows: Array, heads: int) -> Array:
    """The reverse of `permute`: half-split order, as Hugging Face has it."""
    half = rows.shape[0] // heads // 2
    split = rows.reshape(heads, half, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def gguf_tensors(spec: TinySpec, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The float tensors of a GGUF file, q and k of `llama` permuted."""
    tensors = {gguf_name(name): w for name, w in stack_experts(weights).items()}
    if spec.arch == "llama":
        for i in range(spec.layers):
            for name, heads in (("attn_q", spec.heads), ("attn_k", spec.kv_heads)):
                key = f"blk.{i}.{name}.weight"
                tensors[key] = permute(tensors[key], heads)
    return tensors


def _type_in_mix(name: str, layer_is_even: bool) -> str:
    sensitive = "attn_v" in name or "ffn_down" in name
    return "Q6_K" if name == "output.weight" or (sensitive and layer_is_even) else "Q4_K"


def packed_tensors(spec: TinySpec, type_name: str) -> dict[str, Array | Packed]:
    """All tensors of a model file: linear weights in the type named, norms and biases float32."""
    rng = np.random.default_rng(spec.seed + 1)
    tensors: dict[str, Array | Packed] = {}
    for name, w in gguf_tensors(spec, hf_weights(spec)).items():
        if w.ndim == 1 or "ffn_gate_inp" in name:  # as converters do with norms and routers
            tensors[name] = w
            continue
        layer_is_even = name.startswith("blk.") and int(name.split(".")[1]) % 2 == 0
        kind = _type_in_mix(name, layer_is_even) if type_name == MIXED else type_name
        tensors[name] = pack(rng, w, kind)
    return tensors


# --- vocabulary and metadata ---------------------------------------------------------------------

# Pairs in order of rank.
# fmt: off
MERGES = (
    "Ġ t", "h e", "Ġt he", "i n", "e r", "Ġ a", "o n", "r e", "s t", "n d", "Ġa nd", "o r", "in g",
    "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "e n", "Ġ =", "l l", "( )", ": Ċ", "d e",
)
# fmt: on
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<tool_call>",)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyVocabulary:
    """`tokens` and `types` have one entry per row of the embedding; the last ones are padding."""

    tokens: list[str]
    types: list[int]
    merges: list[str]

    def id(self, token: str) -> int:
        return self.tokens.index(token)


def byte_alphabet() -> list[str]:
    """The printable character that stands for each of the 256 bytes in byte-level BPE."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def vocabulary(spec: TinySpec) -> TinyVocabulary:
    """Bytes, merges, control tokens (first for llama, as in SmolLM2; else last), padding."""
    merges = list(MERGES)
    text = byte_alphabet() + [m.replace(" ", "") for m in merges]
    control = [(t, 3) for t in CONTROL]
    normal = [(t, 1) for t in text]
    entries = control + normal if spec.arch == "llama" else normal + control
    entries += [(t, 4) for t in USER_DEFINED]
    entries += [(f"[PAD{i}]", 5) for i in range(len(entries), spec.vocab)]
    if len(entries) != spec.vocab:
        raise ValueError(f"{spec.name}: vocab {spec.vocab} is smaller than {len(entries)} tokens")
    return TinyVocabulary([t for t, _ in entries], [k for _, k in entries], merges)


U32, F32, STR, BOOL = (
    GGUFValueType.UINT32,
    GGUFValueType.FLOAT32,
    GGUFValueType.STRING,
    GGUFValueType.BOOL,
)
Metadata = dict[str, tuple[Any, GGUFValueType]]


def metadata(spec: TinySpec) -> Metadata:
    """Key -> (value, type), as a converter writes them (`general.architecture` is apart)."""
    a, vocab = spec.arch, vocabulary(spec)
    meta: Metadata = {
        "general.name": (f"tiny {spec.name}", STR),
        f"{a}.block_count": (spec.layers, U32),
        f"{a}.context_length": (spec.context, U32),
        f"{a}.embedding_length": (spec.hidden, U32),
        f"{a}.feed_forward_length": (spec.ffn, U32),
        f"{a}.attention.head_count": (spec.heads, U32),
        f"{a}.attention.head_count_kv": (spec.kv_heads, U32),
        f"{a}.attention.layer_norm_rms_epsilon": (spec.eps, F32),
        f"{a}.rope.freq_base": (spec.theta, F32),
        "tokenizer.ggml.model": ("gpt2", STR),
        "tokenizer.ggml.pre": ("smollm" if a == "llama" else "qwen2", STR),
        "tokenizer.ggml.tokens": (vocab.tokens, GGUFValueType.ARRAY),
        "tokenizer.ggml.token_type": (vocab.types, GGUFValueType.ARRAY),
        "tokenizer.ggml.merges": (vocab.merges, GGUFValueType.ARRAY),
        "tokenizer.ggml.eos_token_id": (vocab.id("<|im_end|>"), U32),
        "tokenizer.ggml.bos_token_id": (vocab.id("<|endoftext|>"), U32),
        "tokenizer.ggml.padding_token_id": (vocab.id("<|endoftext|>"), U32),
        "tokenizer.ggml.add_bos_token": (False, BOOL),
        "tokenizer.chat_template": (CHAT_TEMPLATE, STR),
    }
    if a == "llama":
        meta[f"{a}.rope.dimension_count"] = (spec.head_dim, U32)
        meta[f"{a}.vocab_size"] = (spec.vocab, U32)
    if spec.experts:
        meta[f"{a}.expert_count"] = (spec.experts, U32)
        meta[f"{a}.expert_used_count"] = (spec.experts_used, U32)
        meta[f"{a}.expert_feed_forward_length"] = (spec.expert_ffn, U32)
        if not spec.renormalise:
            meta[f"{a}.expert_weights_norm"] = (False, BOOL)
    if a.startswith("qwen3") or spec.head_dim * spec.heads != spec.hidden:
        meta[f"{a}.attention.key_length"] = (spec.head_dim, U32)
        meta[f"{a}.attention.value_length"] = (spec.head_dim, U32)
    return meta


def write_gguf(
    path: Path, arch: str, meta: Metadata, tensors: Mapping[str, Array | Packed]
) -> None:
    """Writes a GGUF v3 file; `meta` and `tensors` may have been spoilt by a test on purpose."""
    writer = GGUFWriter(path, arch)
    for key, (value, type_) in meta.items():
        writer.add_key_value(key, value, type_)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Packed):
            writer.add_tensor(name, tensor)
        elif tensor.type in (Type.F32, Type.F16):
            dtype = np.float32 if tensor.type is Type.F32 else np.float16
            writer.add_tensor(name, tensor.data.view(dtype))
        else:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TinyModels:
    """Writes each tiny model once into `folder` and remembers it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str, type_name: str = "F32") -> Path:
        """The file of SPECS[name], linear weights in `type_name` (of TENSOR_TYPES, or MIXED)."""
        path = self._folder / f"{name}.{type_name}.gguf"
        if not path.exists():
            spec = SPECS[name]
            write_gguf(path, spec.arch, metadata(spec), packed_tensors(spec, type_name))
        return path
