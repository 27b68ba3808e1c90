"""Split GGUF models: any shard opens all of them, and shards that don't make one model are one
clear line, with nothing large allocated before."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_builder import BOOL, I32, STRING, U16, U32, GgufBuilder, array, scalar

from draftproof.config import EngineConfig
from draftproof.errors import ModelFileError, ModelNotFoundError
from draftproof.formats import GgufFile
from draftproof.formats.gguf_shards import MAX_SHARDS
from draftproof.models import load_model
from parity.logits import all_logits
from tiny_models import TinyModels

COUNT = 3


def shard(no: int, tensors: dict[str, float], total: int, count: int = COUNT) -> GgufBuilder:
    builder = GgufBuilder()
    if no == 0:
        builder.key("general.architecture", scalar(STRING, "llama"))
    builder.key("split.no", scalar(U16, no)).key("split.count", scalar(U16, count))
    builder.key("split.tensors.count", scalar(I32, total))
    for name, value in tensors.items():
        builder.tensor(name, [4], 0, struct.pack("<4f", *[value] * 4))
    return builder


def shards() -> list[GgufBuilder]:
    return [shard(0, {"a": 1, "b": 2}, 4), shard(1, {"c": 3}, 4), shard(2, {"d": 4}, 4)]


def name_of(no: int, count: int = COUNT) -> str:
    return f"m-{no + 1:05}-of-{count:05}.gguf"


def write_all(folder: Path, builders: list[GgufBuilder]) -> list[Path]:
    paths = [folder / name_of(no, len(builders)) for no in range(len(builders))]
    for path, builder in zip(paths, builders, strict=True):
        path.write_bytes(builder.build())
    return paths


def refusal(path: Path, error: type[Exception] = ModelFileError) -> str:
    with pytest.raises(error) as refused:
        GgufFile.open(path)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("given", range(COUNT))
def test_any_shard_opens_all(tmp_path: Path, given: int) -> None:
    paths = write_all(tmp_path, shards())
    with GgufFile.open(paths[given]) as file:
        assert file.str_value("general.architecture") == "llama"
        assert list(file.tensors) == ["a", "b", "c", "d"]
        assert file.files == tuple(paths)
        values = [np.frombuffer(file.data(name), "<f4").tolist() for name in file.tensors]
        assert values == [[float(v)] * 4 for v in (1, 2, 3, 4)]
        for name in file.tensors:
            file.release(name)
        digest = file.digest()
    with GgufFile.open(paths[0]) as file:
        assert file.digest() == digest


def test_one_shard_of_one_and_a_plain_file(tmp_path: Path) -> None:
    (path,) = write_all(tmp_path, [shard(0, {"a": 1}, 1, count=1)])
    with GgufFile.open(path) as file:
        assert file.files == (path,)
    # A name alone makes no shard.
    plain = tmp_path / name_of(1)
    plain.write_bytes(GgufBuilder().key("general.architecture", scalar(STRING, "llama")).build())
    with GgufFile.open(plain) as file:
        assert file.files == (plain,)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_shard_is_named(tmp_path: Path, missing: int) -> None:
    paths = write_all(tmp_path, shards())
    paths[missing].unlink()
    message = refusal(paths[0], ModelNotFoundError)
    assert message == (
        f"{paths[0].name}: 1 of its 3 shards are missing ({paths[missing].name}); download all of"
        " them into one folder"
    )
    os.symlink(tmp_path / "gone", paths[missing])  # as a half-finished download leaves it
    assert paths[missing].name in refusal(paths[0], ModelNotFoundError)


def test_a_shard_without_a_shards_name(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    path.write_bytes(shards()[0].build())
    assert "is one of 3 shards, but isn't named as such" in refusal(path)


Change = Callable[[list[GgufBuilder]], Any]


def _replace(at: int, builder: GgufBuilder) -> Change:
    return lambda all_: all_.__setitem__(at, builder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_replace(1, shard(2, {"c": 3}, 4)), "m-00002-of-00003.gguf: says that it isn't shard 2"),
        (_replace(2, shard(2, {"d": 4}, 4, count=5)), "says that it isn't shard 3 of 3"),
        (_replace(2, GgufBuilder().tensor("d", [1], 0, bytes(4))), "says that it isn't shard 3"),
        (_replace(1, shard(1, {"a": 3}, 4)), "the tensor 'a' is in m-00001-of-00003.gguf too"),
        (_replace(1, shard(1, {}, 4)), "says 4 tensors, but the 3 shards hold 3"),
        (_replace(1, GgufBuilder(magic=b"GGML")), "m-00002-of-00003.gguf: isn't a GGUF file"),
    ],
)
def test_shards_that_are_no_model(tmp_path: Path, change: Change, message: str) -> None:
    builders = shards()
    change(builders)
    assert message in refusal(write_all(tmp_path, builders)[0])


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_a_shard_that_ends_early(tmp_path: Path, cut: int) -> None:
    paths = write_all(tmp_path, shards())
    paths[2].write_bytes(paths[2].read_bytes()[:cut])
    assert paths[2].name in refusal(paths[0])


@pytest.mark.parametrize(
    "value",
    [
        scalar(U16, 65535),
        scalar(U32, MAX_SHARDS + 1),
        scalar(I32, -1),
        scalar(STRING, "3"),
        scalar(BOOL, 1),
        array(U16, [3]),
    ],
)
def test_hostile_counts(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / name_of(0)
    path.write_bytes(GgufBuilder().key("split.count", value).build())
    assert "'split.count' must be an integer from 0 to 1024" in refusal(path)


def test_the_name_gives_the_folder_never_the_metadata(tmp_path: Path) -> None:
    """A line break in the name, or a count that isn't the name's, leads nowhere."""
    path = tmp_path / "a\nb-00001-of-00003.gguf"
    path.write_bytes(shards()[0].build())
    assert "3 of" not in refusal(path, ModelNotFoundError).replace("of its 3", "")
    other = tmp_path / name_of(0, 9)
    other.write_bytes(shards()[0].build())
    assert "isn't named as such" in refusal(other)


def test_a_split_model_computes_the_same_bits(tmp_path: Path, tiny: TinyModels) -> None:
    whole = tiny.path("qwen3", "Q8_0")
    parts = split(whole, tmp_path)
    config = EngineConfig(ctx=512, threads=1)
    prompt = (np.arange(20, dtype=np.int32) * 13) % 300
    expected = all_logits(load_model(whole, config), prompt, 7)
    prints = set()
    for path in parts:
        loaded = load_model(path, config)
        assert all_logits(loaded, prompt, 7).tobytes() == expected.tobytes()
        prints.add(loaded.fingerprint)
    assert len(prints) == 1


def split(whole: Path, folder: Path) -> list[Path]:
    """Three shards: the first with all metadata and two tensors, the others with half of the rest
    each."""
    raw = whole.read_bytes()
    with GgufFile.open(whole) as file:
        tensors = list(file.tensors.values())
        data = {t.name: bytes(file.data(t.name)) for t in tensors}
    # The keys as they stand in the file, behind the 24 bytes of its start.
    first = raw.index(struct.pack("<Q", len(tensors[0].name)) + tensors[0].name.encode())
    keys = raw[24:first]
    key_count = struct.unpack_from("<Q", raw, 16)[0]
    paths = []
    for no, part in enumerate([tensors[:2], tensors[2::2], tensors[3::2]]):
        builder = shard(no, {}, len(tensors))
        for t in part:
            builder.tensor(t.name, list(reversed(t.shape)), t.ggml_type, data[t.name])
        built = builder.build()
        if no == 0:
            del builder.keys[0]  # the architecture is among the others
            builder.key_count = key_count + len(builder.keys)
            header = builder.header()
            own = builder.keys[-1][1]
            at = header.index(own, 24) + len(own)
            header = header[:at] + keys + header[at:]
            built = header + bytes(-len(header) % 32)
            built += b"".join(data[t.name] + bytes(-len(data[t.name]) % 32) for t in part)
        paths.append(folder / name_of(no))
        paths[-1].write_bytes(built)
    return paths
