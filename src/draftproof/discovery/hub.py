"""Models of the Hugging Face hub by their id: `ORG/NAME`, or `ORG/NAME:QUANT` for GGUF files.

The only place that touches the network for a model's name, and only if no cache has it. Downloads
go through huggingface-hub (the extra `hub`) into its own cache, so other programs find them too,
and an interrupted download goes on where it stopped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from draftproof.discovery.places import is_first_shard, quant_of, shards_of
from draftproof.errors import ModelNotFoundError

Progress = Callable[[str, int, "int | None"], None]
DEFAULT_QUANT = "Q4_K_M"
_ID = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?::([\w.-]{1,64}))?")
_FOLDER_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "chat_template.json", "model.safetensors.index.json"),
)


def parse_id(name: str) -> tuple[str, str | None] | None:
    """(repository, quant or None) of a hub id; None for anything else."""
    match = _ID.fullmatch(name)
    if match is None or ".." in name or name.lower().endswith(".gguf"):
        return None
    return match[1], match[2]


def fetch(repository: str, quant: str | None, progress: Progress | None = None) -> Path:
    """Downloads a model: its folder, or the GGUF file (the first shard) of this type.

    Raises ModelNotFoundError: offline, no such repository or type, no huggingface-hub.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise ModelNotFoundError(
            f"{repository} is in no cache here, and HF_HUB_OFFLINE is set: unset it or give a path"
        )
    try:
        import huggingface_hub
    except ImportError:
        raise ModelNotFoundError(
            f"{repository} is in no cache here: pip install 'draftproof[hub]' to download it, or"
            " give a path"
        ) from None
    try:
        info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        files = choose_files(repository, [*sizes], quant)
        counter = _Counter(sum(sizes[name] for name in files), progress)
        for name in files:
            path = huggingface_hub.hf_hub_download(
                repository, name, revision=info.sha, tqdm_class=counter.bar_class()
            )
            counter.finish(sizes[name])
            if name == files[0]:
                first = Path(path)
    except ModelNotFoundError:
        raise
    except Exception as error:  # whatever the library and what is below it may raise
        raise ModelNotFoundError(f"can't fetch {repository}: {_reason(error)}") from error
    return first.parent if first.name == "config.json" else first


def choose_files(repository: str, names: Sequence[str], quant: str | None) -> list[str]:
    """Which files of a repository make the model: the one it is opened by comes first."""
    ggufs = sorted(name for name in names if is_first_shard(PurePosixPath(name).name))
    if quant is None and "config.json" in names and any(n.endswith(".safetensors") for n in names):
        weights = [n for n in names if "/" not in n and n.endswith(".safetensors")]
        return [n for n in _FOLDER_FILES if n in names] + sorted(weights)
    if not ggufs:
        raise ModelNotFoundError(
            f"{repository} has no .gguf file" + ("" if quant else " and no .safetensors model")
        )
    by_quant = {quant_of(PurePosixPath(name).name): name for name in reversed(ggufs)}
    wanted = (quant or DEFAULT_QUANT).upper()
    chosen = by_quant.get(wanted)
    if chosen is None and quant is not None:
        raise ModelNotFoundError(
            f"{repository} has no {quant}: it has {', '.join(sorted(by_quant))[:300]}"
        )
    chosen = chosen or ggufs[0]
    shards = [str(PurePosixPath(chosen).with_name(p.name)) for p in shards_of(Path(chosen))]
    missing = [name for name in shards if name not in names]
    if missing:
        raise ModelNotFoundError(f"{repository} lacks a part of the model: {missing[0]}")
    return shards


class _Counter:
    """Adds up the progress of one file after another."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._done = 0  # files that are finished
        self._progress = progress

    def finish(self, size: int) -> None:
        self._done += size
        self._report(0)

    def _report(self, current: int) -> None:
        if self._progress is not None:
            done = min(self._done + current, self._total)
            self._progress("downloading", done, self._total)

    def bar_class(self) -> Any:
        """A tqdm that draws nothing and reports here."""
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

        report = self._report

        class Bar(tqdm):  # type: ignore[misc,type-arg,unused-ignore]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.pop("name", None)  # huggingface-hub's own
                kwargs["disable"] = False
                super().__init__(*args, **kwargs)

            def display(self, *args: Any, **kwargs: Any) -> None:
                pass

            def close(self) -> None:
                self.disable = True

            def update(self, n: float | None = 1) -> bool | None:
                shown: bool | None = super().update(n)
                report(int(self.n))
                return shown

        return Bar


def _reason(error: Exception) -> str:
    """What went wrong, in a line that a user can act on."""
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return "its owners want you to accept their terms first, then set HF_TOKEN"
    if kind == "RepositoryNotFoundError":
        return "there is no such repository, or it is private (set HF_TOKEN)"
    if isinstance(error, ConnectionError) or "Connect" in kind or "Timeout" in kind:
        return "no network: the hub can't be reached; give a path to a model that is here"
    return f"{kind}: {' '.join(str(error).split())[:200]}"
