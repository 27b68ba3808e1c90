"""What a model on disk is, and whether it fits into this machine's memory; no weight is read."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing
from dataclasses import dataclass

from draftproof.discovery.places import Place, shards_of
from draftproof.errors import DraftproofError
from draftproof.formats import GGML_TYPES
from draftproof.models import FAMILIES, open_model
from draftproof.models.kv_budget import OVERHEAD_BYTES, bytes_per_position
from draftproof.models.memory import available_bytes

USUAL_CONTEXT = 4096


@dataclass(frozen=True)
class Description:
    """size: bytes on disk. quantization: the type of most weights. needs: bytes of memory with a
    context of at most USUAL_CONTEXT; fits: whether so much is free, None = unknown. problem: why it
    can't be loaded, else ""."""

    place: Place
    size: int
    family: str = ""
    quantization: str = ""
    context: int = 0
    parameters: int = 0
    needs: int = 0
    fits: bool | None = None
    problem: str = ""


def describe(place: Place) -> Description:
    try:
        return _describe(place)
    except DraftproofError as error:
        return Description(place, _size(place), problem=str(error))


def _describe(place: Place) -> Description:
    with closing(open_model(place.path)) as source:
        model = source.config()
        weights: Counter[str] = Counter()
        stored = 0
        for tensor in source.tensors.values():
            weights[GGML_TYPES[tensor.ggml_type].name] += math.prod(tensor.shape)
            stored += tensor.nbytes
    positions = min(model.context_length, USUAL_CONTEXT)
    needs = stored + OVERHEAD_BYTES + positions * bytes_per_position(model, "f16")
    free = available_bytes()
    known = model.architecture in FAMILIES
    return Description(
        place,
        _size(place),
        family=model.architecture,
        quantization=weights.most_common(1)[0][0],
        context=model.context_length,
        parameters=weights.total(),
        needs=needs,
        fits=None if free is None else needs <= free,
        problem="" if known else f"{model.architecture} models aren't supported",
    )


def _size(place: Place) -> int:
    """Bytes of the model's own files; what is missing counts nothing."""
    path = place.path
    files = shards_of(path)
    if path.is_dir():
        files = [*path.glob("*.safetensors"), *path.glob("*.json")]
    return sum(file.stat().st_size for file in files if file.is_file())
