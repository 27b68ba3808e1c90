"""A model folder into a GGUF file: the same weights, or quantized ones, for this engine and
others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from draftproof.errors import InvalidRequestError
from draftproof.formats.gguf_writer import NewTensor, Progress, Value, write_gguf
from draftproof.models.folder_source import FolderSource
from draftproof.models.gguf_metadata import (
    SAMPLING_KEYS,
    linear_rope_factor,
    settings,
    vocabulary_keys,
)
from draftproof.models.loader import checked_tensors
from draftproof.models.quantized_source import QuantizedSource
from draftproof.models.recipe import RECIPES

_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class Converted:
    """What was written. size in bytes."""

    path: Path
    size: int
    tensors: int


def convert(
    folder: Path,
    target: Path,
    recipe: str,
    threads: int,
    families: Mapping[str, ModuleType],
    progress: Progress | None = None,
) -> Converted:
    """Writes the model in `folder` to the GGUF file `target`. recipe: a key of RECIPES.

    Raises ModelNotFoundError, ModelFileError (the folder), InvalidRequestError (the target).
    """
    if not folder.is_dir():
        raise InvalidRequestError(f"{folder} isn't a folder: give one with config.json in it")
    with closing(FolderSource(folder)) as source:
        model = source.config()
        family = families.get(model.architecture)
        if family is None:
            raise source.error(f"{model.architecture} models aren't supported")
        quantized = QuantizedSource(source, recipe, threads)
        by_name = {tensor.name: tensor for tensor in checked_tensors(quantized, family, model)}
        tensors = [
            NewTensor(name, by_name[name].ggml_type, shape)
            for name, shape in family.shapes(model).items()
        ]
        metadata: dict[str, Value] = {**settings(model, RECIPES[recipe][1]), **_texts(source)}
        factors: np.ndarray[Any, np.dtype[np.float32]] | None = None
        if model.rope_divisors is not None and linear_rope_factor(model) is None:
            factors = np.array(model.rope_divisors, np.float32)
            tensors.insert(0, NewTensor(_ROPE_FACTORS, 0, factors.shape))

        def pieces(tensor: NewTensor) -> Iterable[Any]:
            name = tensor.name
            if name == _ROPE_FACTORS:
                return [factors]
            out = quantized.data(name)
            if family.PERMUTED and name.endswith(("attn_q.weight", "attn_k.weight")):
                out = adjacent_rows(out, tensor.shape[0], model.head_dim)
            return [out]

        size = write_gguf(target, metadata, tensors, pieces, progress)
    return Converted(target, size, len(tensors))


def _texts(source: FolderSource) -> dict[str, Any]:
    vocabulary, model = source.vocabulary(), source.config()
    if len(vocabulary.tokens) > model.vocab_size:
        raise source.error(
            f"{len(vocabulary.tokens)} tokens, but only {model.vocab_size} embedding rows"
        )
    # A tokenizer is built and a template compiled, so that a file that can't answer isn't written.
    tokenizer = source.tokenizer()
    template = source.chat_template(tokenizer)
    out = vocabulary_keys(vocabulary, model.vocab_size)
    if template.bos_token in vocabulary.tokens:
        out["tokenizer.ggml.bos_token_id"] = np.uint32(vocabulary.tokens.index(template.bos_token))
    if source.template_source() is not None:
        out["tokenizer.chat_template"] = template.source
    for name, value in source.generation_config().items():
        key, kind = SAMPLING_KEYS[name]
        out[key] = kind(value)
    return out


def adjacent_rows(data: memoryview, rows: int, head_dim: int) -> memoryview:
    """The row order of q and k in `llama` files: row s*head_dim/2+j of a head becomes row 2j+s."""
    heads = np.frombuffer(data, np.uint8).reshape(rows // head_dim, 2, head_dim // 2, -1)
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(-1).data
