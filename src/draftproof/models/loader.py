"""A model file into a player that is ready to play. Owns the order of loading and what it may cost.

Nothing large is allocated before the whole header has been checked; tensors are packed one by one
and their source pages given back, so the peak is the packed weights plus one tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np

from draftproof import _native
from draftproof.config import EngineConfig, default_threads
from draftproof.errors import InvalidRequestError, ModelFileError, OutOfMemoryError
from draftproof.formats import GGML_TYPES, TensorInfo
from draftproof.models.config import ModelConfig
from draftproof.models.kv_budget import kv_budget
from draftproof.models.program import ProgramBuilder
from draftproof.models.rotary import rotary_turns
from draftproof.models.source import ModelSource
from draftproof.models.source_digest import Digesting
from draftproof.models.vision_tower import VisionTower, load_tower
from draftproof.outputs import ModelInfo
from draftproof.text import ChatTemplate, Tokenizer

Progress = Callable[[str, int, "int | None"], None]
"""(what is being done, bytes done, bytes in all or None)"""


@dataclass(frozen=True)
class LoadedModel:
    """player, kv: the native side. context: positions granted. fingerprint: equal fingerprints mean
    comparable bits (source digest, arithmetic version, numeric settings; never the ISA)."""

    player: _native.Player
    kv: _native.KvCache
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    config: ModelConfig
    context: int
    fingerprint: str
    weights_bytes: int
    load_ms: float
    info: ModelInfo
    vision: VisionTower | None = None

    def with_chat_template(self, source: str) -> LoadedModel:
        """The same model with another template. Raises ModelFileError if it isn't one."""
        own = self.chat_template
        template = ChatTemplate.from_source(
            source, bos_token=own.bos_token, eos_token=own.eos_token
        )
        return replace(self, chat_template=template, info=replace(self.info, chat_template=source))


def load(
    source: ModelSource,
    config: EngineConfig,
    families: dict[str, ModuleType],
    digest: Callable[[ModelSource], str],
    progress: Progress | None = None,
    mmproj: Path | None = None,
) -> LoadedModel:
    """Loads an open model. families: architecture -> module with shapes and record. mmproj: the
    file of its vision tower.

    Raises ModelFileError, OutOfMemoryError (what is needed and what there is), InvalidRequestError.
    """
    try:
        return _load(source, config, families, digest, progress, mmproj)
    except MemoryError:
        raise OutOfMemoryError(
            f"{source.path.name}: the system gives no more memory: use a smaller model or a lower"
            " --ctx"
        ) from None


def _load(
    source: ModelSource,
    config: EngineConfig,
    families: dict[str, ModuleType],
    digest: Callable[[ModelSource], str],
    progress: Progress | None,
    mmproj: Path | None,
) -> LoadedModel:
    start = time.perf_counter()
    _native.probe_arithmetic()
    _check_threads(config.threads)
    isa = _isa(config)
    model = source.config()
    family = _family(source, model, families)
    tensors = checked_tensors(source, family, model)
    tokenizer = source.tokenizer()
    template = source.chat_template(tokenizer)
    if tokenizer.vocab_size > model.vocab_size:
        raise source.error(
            f"{tokenizer.vocab_size} tokens, but only {model.vocab_size} embedding rows"
        )
    tower = None if mmproj is None else _tower(source, mmproj, model, config, isa)
    packed = sum(_packed_size(t) for t in tensors if len(t.shape) > 1)
    context, num_pages = kv_budget(source.path.name, config, model, packed)
    kv = _native.KvCache(
        model.num_layers, model.num_kv_heads, model.head_dim, config.kv_type, num_pages
    )
    digesting = Digesting(digest, source)
    weights = _native.Weights(packed, config.threads)
    ids = _pack(source, tensors, weights, progress)
    yarn = model.yarn
    divisors = yarn.divisors(model.rope_theta, model.head_dim) if yarn else model.rope_divisors
    turns = rotary_turns(model.rope_theta, model.head_dim, divisors)
    builder = ProgramBuilder(
        weights,
        kv,
        ids,
        hidden_size=model.hidden_size,
        head_dim=model.head_dim,
        eps=model.rms_norm_eps,
        turns=turns,
        magnitude=yarn.magnitude if yarn else 1.0,
        axes=family.rotary_axes(model) if model.rope_sections else None,
    )
    family.record(builder, model)
    player = _native.Player(
        builder.program, config.max_rows, config.max_logit_rows, config.threads, isa
    )
    fingerprint = _fingerprint(digesting.result(), config, tower)
    return LoadedModel(
        player,
        kv,
        tokenizer,
        template,
        model,
        context,
        fingerprint,
        weights.packed_bytes,
        (time.perf_counter() - start) * 1000,
        _info(source, model, tokenizer, template, config.kv_type, context, fingerprint),
        tower,
    )


def _tower(
    source: ModelSource, mmproj: Path, model: ModelConfig, config: EngineConfig, isa: str
) -> VisionTower:
    if not model.rope_sections:
        raise InvalidRequestError(
            f"{source.path.name} reads text only: leave out --mmproj, or load a vision model"
        )
    return load_tower(mmproj, model, config, isa)


def _info(
    source: ModelSource,
    model: ModelConfig,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    kv_type: str,
    context: int,
    fingerprint: str,
) -> ModelInfo:
    weights: Counter[str] = Counter()
    for tensor in source.tensors.values():
        weights[GGML_TYPES[tensor.ggml_type].name] += math.prod(tensor.shape)
    return ModelInfo(
        name=model.name,
        path=str(source.path),
        family=model.architecture,
        context=context,
        vocab_size=tokenizer.vocab_size,
        parameters=weights.total(),
        quantization=weights.most_common(1)[0][0],
        kv_type=kv_type,
        fingerprint=fingerprint,
        chat_template=template.source,
        generation_config=source.generation_config(),
    )


def _isa(config: EngineConfig) -> str:
    """The row of the dispatch table: the caller's wish, else DRAFTPROOF_ISA, else "" = the best."""
    wish, origin = config.isa, "isa"
    if not wish:
        wish, origin = os.environ.get("DRAFTPROOF_ISA", ""), "DRAFTPROOF_ISA"
    rows = _native.isa_rows()
    if wish and wish not in rows:
        raise InvalidRequestError(
            f"{origin} {wish!r} is not available on this machine: choose one of {', '.join(rows)}"
        )
    return wish


def _check_threads(threads: int) -> None:
    """Far more threads than cores are slower than one: every barrier waits for all of them."""
    cores = default_threads()
    most = max(16, 4 * cores)
    if threads > most:
        raise InvalidRequestError(
            f"threads must be at most {most} here ({cores} cores can be used), got {threads}"
        )


def _family(source: ModelSource, model: ModelConfig, families: dict[str, ModuleType]) -> ModuleType:
    arch = model.architecture
    if arch not in families:
        raise source.error(
            f"architecture {arch!r} isn't supported", f"supported: {', '.join(sorted(families))}"
        )
    return families[arch]


def checked_tensors(
    source: ModelSource, family: ModuleType, model: ModelConfig
) -> list[TensorInfo]:
    """Exactly the tensors that the hyper-parameters call for, in the source's order."""
    expected: dict[str, tuple[int, ...]] = family.shapes(model)
    for name, shape in expected.items():
        tensor = source.tensors.get(name)
        shown = source.shown(name)
        if tensor is None:
            raise source.error(f"the tensor {shown} is missing")
        if tensor.shape != shape:
            raise source.error(f"{shown} has the shape {tensor.shape}, {shape} is needed")
        kind = GGML_TYPES[tensor.ggml_type].name
        if len(shape) == 1 and tensor.ggml_type != 0:
            raise source.error(f"{shown} is {kind}, F32 is needed")
    for name in source.tensors:
        if name not in expected:
            raise source.error(
                f"{name} is no tensor of a {model.architecture} model as it is known here",
                "a newer converter may have written it: use an older file, or report it",
            )
    return [tensor for name, tensor in source.tensors.items() if name in expected]


def _packed_size(tensor: TensorInfo) -> int:
    out_features, in_features = tensor.shape[-2:]
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    return _native.Weights.packed_size(tensor.ggml_type, out_features, in_features, experts)


def _pack(
    source: ModelSource,
    tensors: list[TensorInfo],
    weights: _native.Weights,
    progress: Progress | None,
) -> dict[str, tuple[int, int]]:
    total = sum(tensor.nbytes for tensor in tensors)
    done = 0
    ids: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        name, rows = source.shown(tensor.name), tensor.shape[0]
        data = source.data(tensor.name)
        try:
            if len(tensor.shape) == 1:
                id = weights.add_vector(name, np.frombuffer(data, np.float32))
            elif len(tensor.shape) == 3:
                rows = tensor.shape[1]
                id = weights.add_experts(name, tensor.ggml_type, data, *tensor.shape)
            else:
                id = weights.add_linear(name, tensor.ggml_type, data, rows, tensor.shape[1])
        except ValueError as error:
            raise source.error(str(error)) from None
        except MemoryError:
            raise OutOfMemoryError(
                f"{source.path.name}: no memory left while packing {name}: use a smaller model"
            ) from None
        del data
        ids[tensor.name] = id, rows
        source.release(tensor.name)
        done += tensor.nbytes
        if progress is not None:
            progress("loading", done, total)
    return ids


def _fingerprint(digest: str, config: EngineConfig, tower: VisionTower | None) -> str:
    settings = {"kv_type": config.kv_type}
    if config.quantize is not None:
        settings["quantize"] = config.quantize
    if tower is not None:
        settings["mmproj"] = tower.digest
        settings["image_tokens"] = f"{config.image_min_tokens}..{config.image_max_tokens}"
    text = json.dumps([digest, _native.ARITHMETIC_VERSION, settings], sort_keys=True)
    return "dp-" + hashlib.sha256(text.encode()).hexdigest()[:16]


__all__ = ["LoadedModel", "ModelFileError", "Progress", "load"]
