"""A Hugging Face folder (config.json, tokenizer.json, *.safetensors) as a source of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ModelFileError
from draftproof.formats import TensorInfo
from draftproof.formats.json_file import JsonFile, read_text
from draftproof.formats.mapped_file import file_label
from draftproof.formats.safetensors import DTYPES, SafeTensor, SafetensorsFile
from draftproof.formats.shards import open_shards
from draftproof.models.config import ModelConfig
from draftproof.models.gguf_metadata import SAMPLING_KEYS
from draftproof.models.hf_config import config_from_hf
from draftproof.models.hf_names import gguf_name, hf_name
from draftproof.text import ChatTemplate, Tokenizer, Vocabulary
from draftproof.text.tokenizer import replace_surrogates
from draftproof.text.tokenizer_json import vocabulary_from_json

_TEXTS = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True)
class _Part:
    """A tensor on disk: the whole of one of ours, or one expert of it."""

    file: SafetensorsFile
    tensor: SafeTensor


class FolderSource:
    """See ModelSource."""

    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: Path) -> None:
        """Opens the folder and reads everything but the weights.

        Raises ModelNotFoundError (a file is missing), ModelFileError (a file is unsound).
        """
        self.path = path
        self._config = JsonFile.read(path / "config.json")
        self._generation = self._optional("generation_config.json")
        self._tokenizer_config = self._optional("tokenizer_config.json")
        holder = open_shards(path)
        self._shards = list({id(file): file for file in holder.values()}.values())
        try:
            self._model = config_from_hf(
                self._config, _model_name(path), has_head="lm_head.weight" in holder
            )
            self._parts = self._collect(holder)
            self.tensors = {name: self._info(name) for name in self._in_file_order()}
        except BaseException:
            self.close()
            raise
        texts = [path / name for name in _TEXTS if (path / name).exists()]
        self.files = (*texts, *sorted(file.path for file in self._shards))

    def config(self) -> ModelConfig:
        return self._model

    def vocabulary(self) -> Vocabulary:
        file = JsonFile.read(self.path / "tokenizer.json")
        eos = _special_token(self._tokenizer_config, "eos_token")
        added = file.values.get("added_tokens") or []
        ids = [
            entry["id"]
            for entry in (added if isinstance(added, list) else [])
            if isinstance(entry, dict)
            and entry.get("content") == eos
            and type(entry.get("id")) is int
        ]
        ids += [id for source in (self._generation, self._config) for id in _end_ids(source)]
        return vocabulary_from_json(file.values, list(dict.fromkeys(ids)))

    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.vocabulary())

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate:
        bos, eos = (_special_token(self._tokenizer_config, f"{n}_token") for n in ("bos", "eos"))
        return ChatTemplate.of_model(self.template_source(), tokenizer, bos, eos)

    def generation_config(self) -> dict[str, Any]:
        file = self._generation
        if file is None:
            return {}
        known = [key for key in SAMPLING_KEYS if file.has(key)]
        return {
            key: file.int_value(key, 0, 1 << 24)
            if key == "top_k"
            else file.float_value(key, 0, 1e6)
            for key in known
        }

    def data(self, name: str) -> memoryview:
        parts = self._parts[name]
        views = [part.file.data(part.tensor.name) for part in parts]
        dtype = parts[0].tensor.dtype
        if len(self.tensors[name].shape) == 1:
            return _to_float32(views[0], dtype)
        if len(views) == 1:
            return views[0]
        return np.concatenate([np.frombuffer(view, np.uint8) for view in views]).data

    def release(self, name: str) -> None:
        for part in self._parts[name]:
            part.file.release(part.tensor.name)

    def shown(self, name: str) -> str:
        return hf_name(name)

    def error(self, what: str, hint: str = "get the folder anew") -> ModelFileError:
        return ModelFileError(f"{file_label(self.path)}: {what}; {hint}")

    def close(self) -> None:
        for file in self._shards:
            file.close()

    def _optional(self, name: str) -> JsonFile | None:
        return JsonFile.read(self.path / name) if (self.path / name).exists() else None

    def _collect(self, holder: Mapping[str, SafetensorsFile]) -> dict[str, list[_Part]]:
        """GGUF name -> its parts on disk, experts in order. A name that isn't known stays as it is,
        so that the loader refuses it."""
        found: dict[str, dict[int | None, _Part]] = {}
        for name, file in holder.items():
            if name.endswith(".rotary_emb.inv_freq"):  # a table that old exports kept
                continue
            if name == "lm_head.weight" and self._model.tied:  # a copy of the embedding
                continue
            ours, expert = gguf_name(name) or (name, None)
            found.setdefault(ours, {})[expert] = _Part(file, file.tensors[name])
        parts = {}
        for name, by_expert in found.items():
            wanted = [None] if None in by_expert else list(range(len(by_expert)))
            if {*by_expert} != {*wanted}:
                raise self.error(f"the experts of {hf_name(name)} aren't complete")
            parts[name] = [by_expert[i] for i in wanted]
            first = parts[name][0].tensor
            for part in parts[name]:
                if (part.tensor.dtype, part.tensor.shape) != (first.dtype, first.shape):
                    raise self.error(f"the experts of {hf_name(name)} differ in shape or type")
        return parts

    def _info(self, name: str) -> TensorInfo:
        parts = self._parts[name]
        first = parts[0].tensor
        ggml_type = DTYPES[first.dtype][1]
        if ggml_type is None or not first.shape:
            raise self.error(
                f"the tensor {hf_name(name)} has the type {first.dtype}, which isn't supported",
                "get the BF16, F16 or F32 weights",
            )
        shape = (
            first.shape
            if gguf_name(first.name) in (None, (name, None))
            else (len(parts), *first.shape)
        )
        if len(shape) == 1:
            return TensorInfo(name, 0, shape, first.offset, 4 * shape[0])
        nbytes = sum(part.tensor.nbytes for part in parts)
        return TensorInfo(name, ggml_type, shape, first.offset, nbytes)

    def _in_file_order(self) -> list[str]:
        def place(name: str) -> tuple[str, int]:
            part = self._parts[name][0]
            return part.file.path.name, part.tensor.offset

        return sorted(self._parts, key=place)

    def template_source(self) -> str | None:
        """Hugging Face's order: chat_template.jinja, chat_template.json, tokenizer_config.json."""
        path = self.path / "chat_template.jinja"
        if path.exists():
            return read_text(path, _TEMPLATE_BYTES).decode("utf-8", "replace")
        for file in (self._optional("chat_template.json"), self._tokenizer_config):
            if file is None or not file.has("chat_template"):
                continue
            value = file.values["chat_template"]
            if isinstance(value, list):  # several templates by name
                named = [t for t in value if isinstance(t, dict) and t.get("name") == "default"]
                value = named[0].get("template") if named else None
            if not isinstance(value, str):
                raise file.error("chat_template", "is neither a template nor a list of them")
            return replace_surrogates(value)
        return None


def _to_float32(data: memoryview, dtype: str) -> memoryview:
    """A vector widened exactly."""
    if dtype == "BF16":
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)
        return memoryview(wide)
    narrow: NDArray[Any] = np.frombuffer(data, np.float16 if dtype == "F16" else np.float32)
    widened: memoryview = narrow.astype(np.float32).data
    return widened


def _end_ids(file: JsonFile | None) -> list[int]:
    """eos_token_id of a config: missing, an id, or a list of them."""
    value = None if file is None else file.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if file is not None and not all(type(id) is int and 0 <= id < 1 << 24 for id in ids):
        raise file.error("eos_token_id", "isn't a token id or a list of them")
    return ids


def _special_token(file: JsonFile | None, key: str) -> str:
    """A token of tokenizer_config.json, given as text or as an object; "" if there is none."""
    value = None if file is None else file.values.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if file is not None and not isinstance(value, str | None):
        raise file.error(key, "isn't a token")
    return value or ""


def _model_name(path: Path) -> str:
    """The folder's name; inside the Hugging Face cache, that of the repository."""
    resolved = path.absolute()
    repository = resolved.parent.parent.name
    if resolved.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rsplit("--", 1)[-1]
    return resolved.name
