"""The mmproj file of a synthetic vision model: the true shapes of its tower, random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from draftproof.bench.synth_weights import Pieces, random_pieces
from draftproof.errors import InvalidRequestError
from draftproof.formats.gguf_writer import NewTensor, Progress, Value, write_gguf
from draftproof.models import qwen3vl_vision
from draftproof.models.qwen3vl_vision import VisionConfig

F32, F16 = 0, 1
_HALF = (0.5, 0.5, 0.5)
_SMALL = VisionConfig(
    num_layers=24,
    hidden_size=1024,
    intermediate_size=4096,
    num_heads=16,
    patch_size=16,
    merge_size=2,
    table_side=48,
    output_size=2048,
    layer_norm_eps=1e-6,
    deepstack_layers=(5, 11, 17),
    mean=_HALF,
    std=_HALF,
)
TOWERS = {
    "qwen3-vl-2b": _SMALL,
    "qwen3-vl-8b": replace(
        _SMALL,
        num_layers=27,
        hidden_size=1152,
        intermediate_size=4304,
        output_size=4096,
        deepstack_layers=(8, 16, 24),
    ),
}


def synthesise_tower(name: str, path: Path, seed: int = 0, progress: Progress | None = None) -> int:
    """Writes the tower of the model `name` to `path`, its linear weights as F16, and returns the
    size in bytes. The same arguments give the same bytes.

    Raises InvalidRequestError: a model without a tower, or what `write_gguf` refuses.
    """
    if name not in TOWERS:
        raise InvalidRequestError(
            f"--mmproj: {name} has no vision tower, only {' and '.join(TOWERS)} have one"
        )
    config = TOWERS[name]
    tensors = [
        NewTensor(tensor, _type_of(tensor, shape), shape)
        for tensor, shape in qwen3vl_vision.shapes(config).items()
    ]

    def pieces(tensor: NewTensor) -> Iterator[Pieces]:
        return random_pieces(tensor, _level(tensor), seed)

    return write_gguf(path, _metadata(name, config), tensors, pieces, progress)


def _type_of(name: str, shape: tuple[int, ...]) -> int:
    is_linear = len(shape) == 2 and name != "v.position_embd.weight"
    return F16 if is_linear else F32


def _level(tensor: NewTensor) -> float:
    if len(tensor.shape) == 1:
        return 1.0 if tensor.name.endswith("weight") else 0.1
    if tensor.name == "v.position_embd.weight":
        return 0.5
    inputs = int(np.prod(tensor.shape[1:]))
    return 1.0 / float(np.sqrt(inputs))


def _metadata(name: str, c: VisionConfig) -> dict[str, Value]:
    v = "clip.vision."
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": f"{name}, random weights",
        "general.file_type": 1,
        "clip.has_vision_encoder": True,
        "clip.projector_type": qwen3vl_vision.PROJECTOR,
        "clip.use_gelu": True,
        v + "image_size": c.table_side * c.patch_size,
        v + "patch_size": c.patch_size,
        v + "embedding_length": c.hidden_size,
        v + "feed_forward_length": c.intermediate_size,
        v + "block_count": c.num_layers,
        v + "projection_dim": c.output_size,
        v + "attention.head_count": c.num_heads,
        v + "attention.layer_norm_epsilon": c.layer_norm_eps,
        v + "image_mean": np.array(c.mean, np.float32),
        v + "image_std": np.array(c.std, np.float32),
        v + "spatial_merge_size": c.merge_size,
        v + "is_deepstack_layers": np.array([i in c.deepstack_layers for i in range(c.num_layers)]),
    }
