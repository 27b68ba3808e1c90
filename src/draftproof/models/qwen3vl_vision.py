"""The vision tower of Qwen3-VL: patches of one image to features, as rows for the text part.

Every row is a patch; a vector brings its pixels and then its position embedding. Four patches of a
square become one feature. Blocks use GELU's tanh formula, mergers the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.formats import GgufFile
from draftproof.models.program import ProgramBuilder
from draftproof.models.rotary import rotary_turns

Shapes = dict[str, tuple[int, ...]]

PROJECTOR = "qwen3vl_merger"
ROPE_THETA = 10000.0
CHANNELS = 3
FRAMES = 2  # of one patch; a still image is shown twice


@dataclass(frozen=True)
class VisionConfig:
    """Hyper-parameters of a tower.

    table_side: the learned positions are a square of that side. deepstack_layers: blocks behind
    which a feature is taken for DeepStack, ascending. mean, std: of each colour, for normalising.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    merge_size: int
    table_side: int
    output_size: int
    layer_norm_eps: float
    deepstack_layers: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_values(self) -> int:
        """Colour values of one patch."""
        return CHANNELS * FRAMES * self.patch_size**2

    @property
    def patches_per_token(self) -> int:
        return self.merge_size**2

    @property
    def feature_width(self) -> int:
        """Columns of a feature row: main feature, then one per DeepStack layer."""
        return self.output_size * (1 + len(self.deepstack_layers))

    @classmethod
    def from_gguf(cls, file: GgufFile) -> VisionConfig:
        """Reads the keys `clip.*` of an mmproj file. Raises ModelFileError: no such file, another
        projector, a value missing or out of range."""
        arch = file.str_value("general.architecture")
        if arch != "clip":
            raise file.error(f"is a {arch} model, not an mmproj file", "give the mmproj file")
        projector = file.str_value("clip.projector_type", default="")
        if projector != PROJECTOR:
            raise file.error(
                f"the projector {projector!r} isn't supported",
                f"supported: {PROJECTOR} (Qwen3-VL)",
            )
        key = "clip.vision."
        hidden = file.int_value(key + "embedding_length", 4, 1 << 16)
        heads = file.int_value(key + "attention.head_count", 1, 1024)
        if hidden % (4 * heads):
            raise file.error(f"{heads} heads can't share {hidden} values with rotation in 2-D")
        layers = file.int_value(key + "block_count", 1, 512)
        table = file.tensors.get("v.position_embd.weight")
        if table is None or len(table.shape) != 2:
            raise file.error("the tensor v.position_embd.weight is missing or no matrix")
        side = round(table.shape[0] ** 0.5)
        if side * side != table.shape[0]:
            raise file.error("the learned positions are no square")
        return cls(
            num_layers=layers,
            hidden_size=hidden,
            intermediate_size=file.int_value(key + "feed_forward_length", 1, 1 << 20),
            num_heads=heads,
            patch_size=file.int_value(key + "patch_size", 1, 64),
            merge_size=file.int_value(key + "spatial_merge_size", 1, 8, default=2),
            table_side=side,
            output_size=file.int_value(key + "projection_dim", 1, 1 << 16),
            layer_norm_eps=file.float_value(
                key + "attention.layer_norm_epsilon", 1e-12, 1.0, default=1e-6
            ),
            deepstack_layers=tuple(
                i for i in range(layers) if f"v.deepstack.{i}.fc1.weight" in file.tensors
            ),
            mean=_colours(file, key + "image_mean"),
            std=_colours(file, key + "image_std"),
        )


def _colours(file: GgufFile, key: str) -> tuple[float, ...]:
    values: Any = file.metadata.get(key, (0.5,) * CHANNELS)
    colours = tuple(float(v) for v in values)
    if len(colours) != CHANNELS or not all(0 < v < 2 for v in colours):
        raise file.error(f"{key} must hold three numbers between 0 and 2")
    return colours


def shapes(c: VisionConfig) -> Shapes:
    """GGUF tensor name -> shape; all must be in the file."""
    h, joined = c.hidden_size, c.hidden_size * c.patches_per_token
    kernel = (h, CHANNELS, c.patch_size, c.patch_size)
    out: Shapes = {
        "v.patch_embd.weight": kernel,
        "v.patch_embd.weight.1": kernel,
        "v.patch_embd.bias": (h,),
        "v.position_embd.weight": (c.table_side**2, h),
        "v.post_ln.weight": (h,),
        "v.post_ln.bias": (h,),
    }
    linears: dict[str, tuple[int, int]] = {
        "mm.0": (joined, joined),
        "mm.2": (c.output_size, joined),
    }
    for i in range(c.num_layers):
        b = f"v.blk.{i}."
        for name in ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"):
            out[b + name] = (h,)
        linears |= {
            b + "attn_qkv": (3 * h, h),
            b + "attn_out": (h, h),
            b + "ffn_up": (c.intermediate_size, h),
            b + "ffn_down": (h, c.intermediate_size),
        }
    for i in c.deepstack_layers:
        d = f"v.deepstack.{i}."
        out |= {d + "norm.weight": (joined,), d + "norm.bias": (joined,)}
        linears |= {d + "fc1": (joined, joined), d + "fc2": (c.output_size, joined)}
    for name, shape in linears.items():
        out |= {name + ".weight": shape, name + ".bias": shape[:1]}
    return out


def rotary(c: VisionConfig) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Turns and axes [head_dim / 2]: the first half of the frequencies turns by the patch's row
    (axis 1), the other half, the same frequencies, by its column (axis 2)."""
    turns = rotary_turns(ROPE_THETA, c.head_dim // 2)
    return np.tile(turns, 2), np.repeat(np.array([1, 2], np.uint8), len(turns))


def record(p: ProgramBuilder, c: VisionConfig) -> list[str]:
    """Records the tower; returns the buffers whose columns, side by side, are the features."""
    p.vectors("pixels", c.patch_values)
    p.linear(["x"], "pixels", ["v.patch_embd.weight"], biases=["v.patch_embd.bias"])
    p.add_vectors("x", column=c.patch_values)
    features = ["last_main"]
    for i in range(c.num_layers):
        _block(p, f"v.blk.{i}.")
        if i in c.deepstack_layers:
            d = f"v.deepstack.{i}."
            p.join_rows("last_joined", "x", c.patches_per_token)
            p.layer_norm("last_joined", "last_joined", d + "norm")
            features.append(f"last_deep{i}")
            _merge(p, features[-1], d + "fc1", d + "fc2")
    p.layer_norm("normed", "x", "v.post_ln")
    p.join_rows("last_joined", "normed", c.patches_per_token)
    _merge(p, "last_main", "mm.0", "mm.2")
    p.logits("last_main")
    return features


def _linear(p: ProgramBuilder, out: str, x: str, name: str, residual: str | None = None) -> None:
    p.linear([out], x, [name + ".weight"], biases=[name + ".bias"], residual=residual)


def _block(p: ProgramBuilder, b: str) -> None:
    p.layer_norm("normed", "x", b + "ln1")
    p.linear(
        ["q", "k", "v"],
        "normed",
        [f"{b}attn_{name}.weight" for name in "qkv"],
        biases=[f"{b}attn_{name}.bias" for name in "qkv"],
    )
    p.rope(["q", "k"])
    p.attention("normed", "q", "k", "v", layer=0, causal=False)
    _linear(p, "x", "normed", b + "attn_out", residual="x")
    p.layer_norm("normed", "x", b + "ln2")
    _linear(p, "hidden", "normed", b + "ffn_up")
    p.gelu("hidden", "tanh")
    _linear(p, "x", "hidden", b + "ffn_down", residual="x")


def _merge(p: ProgramBuilder, out: str, fc1: str, fc2: str) -> None:
    _linear(p, "last_hidden", "last_joined", fc1)
    p.gelu("last_hidden", "erf")
    _linear(p, out, "last_hidden", fc2)
