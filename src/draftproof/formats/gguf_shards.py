"""The files of one GGUF model: a single one, or all shards of a model that was split.

Owns which files belong together (llama.cpp's gguf-split: `<name>-00001-of-00003.gguf`, the keys
`split.*`, all other metadata in the first) and that together they hold every tensor once.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import ModelFileError, ModelNotFoundError
from draftproof.formats.gguf_header import (
    DAMAGED,
    MAX_TENSORS,
    GgufHeader,
    read_header,
    show_name,
)
from draftproof.formats.mapped_file import MappedFile, file_label, open_regular

MAX_SHARDS = 1024
_NAME = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class Shard:
    """One open file, its header checked. Close `mapped`."""

    path: Path
    header: GgufHeader
    mapped: MappedFile

    def error(self, what: str, hint: str = DAMAGED) -> ModelFileError:
        return ModelFileError(f"{file_label(self.path)}: {what}; {hint}")

    def number(self, key: str, lo: int, hi: int, default: int | None = None) -> int:
        value = self.header.metadata.get(key, default)
        if type(value) is not int or not lo <= value <= hi:
            raise self.error(f"metadata key {key!r} must be an integer from {lo} to {hi}")
        return value


def open_shards(path: Path) -> tuple[Shard, ...]:
    """The file `path`, or if it is a shard, any of them, all shards in order.

    Raises ModelNotFoundError (no such file, or another shard is missing: names it) and
    ModelFileError (a file that isn't sound, or shards that don't belong together).
    """
    given = _open(path)
    opened = [given]
    try:
        count = given.number("split.count", 0, MAX_SHARDS, default=1)
        if count <= 1:
            return (given,)
        paths = _paths(given, count)
        missing = [p for p in paths if not os.path.exists(p)]
        if missing:
            raise ModelNotFoundError(
                f"{file_label(path)}: {len(missing)} of its {count} shards are missing"
                f" ({file_label(missing[0])}); download all of them into one folder"
            )
        shards: list[Shard] = []
        for p in paths:
            shard = given if p == path else _open(p)
            if shard is not given:
                opened.append(shard)
            _check_place(shard, len(shards), count)
            shards.append(shard)
        _check_tensors(shards)
        return tuple(shards)
    except BaseException:
        for shard in opened:
            shard.mapped.close()
        raise


def _open(path: Path) -> Shard:
    fd, size = open_regular(path, "a .gguf file")
    try:
        header = read_header(fd, size, file_label(path))
        return Shard(path, header, MappedFile(fd, size, file_label(path)))
    finally:
        os.close(fd)


def _paths(given: Shard, count: int) -> list[Path]:
    """The paths of all shards, made of the given one's: metadata can't reach other folders."""
    name = _NAME.fullmatch(given.path.name)
    if name is None or int(name["count"]) != count or not 1 <= int(name["number"]) <= count:
        raise given.error(
            f"is one of {count} shards, but isn't named as such",
            f"give all of them their names back, NAME-00001-of-{count:05}.gguf and so on",
        )
    return [
        given.path.with_name(f"{name['name']}-{i:05}-of-{count:05}.gguf")
        for i in range(1, count + 1)
    ]


def _check_place(shard: Shard, place: int, count: int) -> None:
    wrong_count = shard.number("split.count", 0, MAX_SHARDS, default=1) != count
    if wrong_count or shard.number("split.no", 0, MAX_SHARDS) != place:
        raise shard.error(
            f"says that it isn't shard {place + 1} of {count}",
            "shards of different models, or files with swapped names: download them again",
        )


def _check_tensors(shards: list[Shard]) -> None:
    holder: dict[str, Shard] = {}
    for shard in shards:
        for name in shard.header.tensors:
            if name in holder:
                raise shard.error(
                    f"the tensor {show_name(name)} is in {file_label(holder[name].path)} too"
                )
            holder[name] = shard
        if len(holder) > MAX_TENSORS:
            raise shard.error(f"together the shards have more than {MAX_TENSORS} tensors")
    said = shards[0].number("split.tensors.count", 0, MAX_TENSORS, default=len(holder))
    if said != len(holder):
        raise shards[0].error(
            f"says {said} tensors, but the {len(shards)} shards hold {len(holder)}"
        )
