"""Where models lie on this machine: our own cache and those of other programs.

Owns the layouts of these caches. Looks at names and small manifests only; nothing here is ever
changed. What is damaged is passed over: another program's cache is not ours to complain about.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from draftproof import catalogue

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(r"(?:^|[-._])((?:UD-)?I?Q\d\w*|BF16|F16|F32|MXFP4\w*)(?=[-.]|$)", re.IGNORECASE)
_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """A model on disk. name: what `resolve` finds it by. path: a .gguf file (the first shard) or a
    folder. source: "draftproof", "huggingface", "lmstudio" or "ollama"."""

    name: str
    path: Path
    source: str


def all_places() -> list[Place]:
    """Every model that is found, ours first; of equal names the first counts."""
    found: dict[str, Place] = {}
    for scan in (own_cache, huggingface, lm_studio, ollama):
        for place in scan():
            found.setdefault(place.name.lower(), place)
    return list(found.values())


def own_cache() -> Iterator[Place]:
    """What lies in our models folder; the catalogue's files by their names there."""
    known = {entry.file: entry.name for entry in catalogue.CATALOGUE.values()}
    for path in _children(catalogue.models_dir()):
        if is_model_file(path) or (path / "config.json").is_file():
            name = known.get(path.name, path.name.removesuffix(".gguf"))
            yield Place(name, path, "draftproof")


def huggingface() -> Iterator[Place]:
    """`models--ORG--NAME/snapshots/COMMIT/...`: the commit in refs/main, else the newest."""
    for folder in _children(hub_cache()):
        parts = folder.name.split("--")
        if parts[0] != "models" or len(parts) < 2:
            continue
        snapshot = _snapshot(folder)
        if snapshot is not None:
            yield from models_in(snapshot, "/".join(parts[1:]), "huggingface")


def lm_studio() -> Iterator[Place]:
    """`PUBLISHER/REPOSITORY/*.gguf`."""
    for root in (Path("~/.lmstudio/models"), Path("~/.cache/lm-studio/models")):
        for publisher in _children(root.expanduser()):
            for repository in _children(publisher):
                name = f"{publisher.name}/{repository.name}"
                yield from models_in(repository, name, "lmstudio")


def ollama() -> Iterator[Place]:
    """Manifests of all registries; the model is a blob that a manifest names by its hash."""
    own = os.environ.get("OLLAMA_MODELS")
    roots = [Path(own)] if own else []
    roots += [Path("~/.ollama/models").expanduser(), Path("/usr/share/ollama/.ollama/models")]
    for root in roots:
        for path in sorted((root / "manifests").glob("*/*/*/*")):
            digest = _model_layer(path)
            if digest is None:
                continue
            registry, space, model, tag = path.relative_to(root / "manifests").parts
            name = f"{model}:{tag}" if space == "library" else f"{space}/{model}:{tag}"
            if registry != "registry.ollama.ai":
                name = f"{registry}/{name}"
            blob = root / "blobs" / f"sha256-{digest}"
            if blob.is_file():
                yield Place(name, blob, "ollama")


def hub_cache() -> Path:
    """Where huggingface-hub keeps its files, by its environment variables."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def models_in(folder: Path, name: str, source: str) -> Iterator[Place]:
    """The models of one repository's folder: itself, if it has safetensors, and GGUF files as
    NAME:QUANT."""
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        yield Place(name, folder, source)
    files = [*folder.glob("*.gguf"), *folder.glob("*/*.gguf")]
    for path in sorted(files):
        if is_model_file(path):
            yield Place(f"{name}:{quant_of(path.name)}", path, source)


def is_model_file(path: Path) -> bool:
    """Whether a path is such a file: no vision projector, no later shard."""
    return is_first_shard(path.name) and path.is_file()


def is_first_shard(file_name: str) -> bool:
    """Whether this is the name of a .gguf file that a model starts with."""
    name = file_name.lower()
    shard = _SHARD.fullmatch(name)
    return (
        name.endswith(".gguf")
        and not name.startswith("mmproj")
        and (shard is None or int(shard[2]) == 1)
    )


def quant_of(file_name: str) -> str:
    """The type in a GGUF file's name (`Q4_K_M`), else its whole name without the ending."""
    shard = _SHARD.fullmatch(file_name)
    stem = shard[1] if shard else file_name.removesuffix(".gguf")
    found = _QUANT.findall(stem)
    return str(found[-1]).upper() if found else stem


def shards_of(path: Path) -> list[Path]:
    """All files of the model that starts with `path`, whether they are there or not."""
    shard = _SHARD.fullmatch(path.name)
    if shard is None or int(shard[3]) > 9999:
        return [path]
    count = int(shard[3])
    return [path.with_name(f"{shard[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]


def _snapshot(folder: Path) -> Path | None:
    try:
        commit = (folder / "refs" / "main").read_text("ascii").strip()
        snapshot = folder / "snapshots" / commit
        if re.fullmatch(r"[0-9a-f]{7,64}", commit) and snapshot.is_dir():
            return snapshot
    except (OSError, UnicodeDecodeError):
        pass
    snapshots = [path for path in _children(folder / "snapshots") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def _model_layer(manifest: Path) -> str | None:
    """The sha256 of the weights that an Ollama manifest names."""
    try:
        if not manifest.is_file() or manifest.stat().st_size > _MANIFEST_BYTES:
            return None
        layers = json.loads(manifest.read_bytes())["layers"]
        for layer in layers:
            if layer["mediaType"] == "application/vnd.ollama.image.model":
                match = re.fullmatch(r"sha256:([0-9a-f]{64})", layer["digest"])
                return match[1] if match else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
