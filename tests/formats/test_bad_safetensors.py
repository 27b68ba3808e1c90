"""Broken and hostile .safetensors files: each is one line, and nothing large is allocated first."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import fuzz_safetensors
import pytest

from draftproof.errors import ModelFileError, ModelNotFoundError
from draftproof.formats.safetensors import SafetensorsFile
from tiny_folders import write_folder
from tiny_models import SPECS


def entry(begin: int, end: int, shape: Any = (1,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def test_a_sound_file(tmp_path: Path) -> None:
    header = {"__metadata__": {"a": "b"}, "y": entry(4, 12, (2, 1)), "x": entry(0, 4)}
    path = write(tmp_path / "m.safetensors", header, bytes(range(12)))
    with SafetensorsFile.open(path) as file:
        assert {name: t.shape for name, t in file.tensors.items()} == {"x": (1,), "y": (2, 1)}
        assert bytes(file.data("x")) == bytes(range(4))
        assert bytes(file.data("y")) == bytes(range(4, 12))


BAD: dict[str, tuple[Any, bytes, int | None, str]] = {
    "length beyond the file": ({}, b"", 1 << 62, "the header needs"),
    "length beyond the limit": ({}, b"", (1 << 63) + 5, "the header needs"),
    "not JSON": (b"{'a': 1}", b"", None, "isn't JSON"),
    "not an object": (b"[]", b"", None, "isn't a JSON object"),
    "not UTF-8": (b'{"\xff": 1}', b"", None, "isn't UTF-8"),
    "nested": (b'{"a":' + b"[" * 200_000, b"", None, "nested too deep"),
    "a long number": (b'{"a": ' + b"9" * 10_000 + b"}", b"", None, "the header: "),
    "infinity": (b'{"a": Infinity}', b"", None, "isn't a JSON number"),
    "no fields": ({"a": {}}, b"", None, "has no dtype, shape and data_offsets"),
    "a list for a tensor": ({"a": []}, b"", None, "has no dtype, shape and data_offsets"),
    "unknown dtype": ({"a": entry(0, 4, (1,), "F4")}, bytes(4), None, "unknown dtype"),
    "a number for a dtype": ({"a": entry(0, 4, (1,), 4)}, bytes(4), None, "unknown dtype"),
    "negative dimension": ({"a": entry(0, 4, (-1,))}, bytes(4), None, "impossible shape"),
    "huge dimension": ({"a": entry(0, 4, (1 << 62,))}, bytes(4), None, "impossible shape"),
    "true for a dimension": ({"a": entry(0, 4, (True,))}, bytes(4), None, "impossible shape"),
    "a product that wraps": (
        {"a": entry(0, 4, [1 << 30] * 8)}, bytes(4), None, "its shape",
    ),
    "too many dimensions": ({"a": entry(0, 4, [1] * 9)}, bytes(4), None, "at most 8 dimensions"),
    "size against shape": ({"a": entry(0, 4, (2,))}, bytes(4), None, "needs 8"),
    "offsets turned round": ({"a": entry(4, 0)}, bytes(4), None, "impossible data_offsets"),
    "negative offset": ({"a": entry(-4, 0)}, bytes(4), None, "impossible data_offsets"),
    "an offset too large": ({"a": entry(2**64, 2**65)}, bytes(4), None, "impossible data_offsets"),
    "overlap": ({"a": entry(0, 4), "b": entry(2, 6)}, bytes(8), None, "overlap at byte"),
    "a hole": ({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12), None, "nothing describes"),
    "a hole at the start": ({"a": entry(4, 8)}, bytes(8), None, "nothing describes"),
    "beyond the file": ({"a": entry(0, 4)}, bytes(3), None, "but the file ends at"),
    "bytes behind": ({"a": entry(0, 4)}, bytes(5), None, "1 bytes behind the last tensor"),
    "an empty name": ({"": entry(0, 4)}, bytes(4), None, "is empty, too long or not text"),
    "a long name": ({"a" * 1000: entry(0, 4)}, bytes(4), None, "too long"),
    "a name of half a character": (b'{"\\ud800": {}}', b"", None, "not text"),
    "too many tensors": ({f"t{i}": [] for i in range(70_000)}, b"", None, "more than the limit"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused(case: str, tmp_path: Path) -> None:
    header, data, length, said = BAD[case]
    path = write(tmp_path / "m.safetensors", header, data, length)
    with pytest.raises(ModelFileError) as caught:
        SafetensorsFile.open(path)
    message = str(caught.value)
    assert said in message
    assert message.startswith("m.safetensors: ")
    assert "\n" not in message
    assert len(message) < 400


def test_nothing_is_allocated_for_a_promise(tmp_path: Path) -> None:
    """A header that claims to be as large as the sparse file it is in."""
    path = write(tmp_path / "m.safetensors", b"", length=(40 << 30) - 8)
    os.truncate(path, 40 << 30)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match="is longer than"):
        SafetensorsFile.open(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        SafetensorsFile.open(tmp_path / "x.safetensors")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="isn't a regular file"):
        SafetensorsFile.open(tmp_path / "pipe")


def test_a_file_that_shrinks_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"a": entry(0, 8000, (2000,))}, bytes(8000))
    with SafetensorsFile.open(path) as file:
        os.truncate(path, 100)
        with pytest.raises(ModelFileError, match="became shorter after it was opened"):
            file.data("a")


# --- the fuzzer -----------------------------------------------------------------------------------


def test_fuzzed_folders(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"], shards=2)
    result = fuzz_safetensors.fuzz(folder, seed=3, seconds=2.5)
    assert result.refused > 50
    assert result.accepted > 5
    assert len(result.messages) > 20


def test_the_fuzzer_notices_other_exceptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    real = fuzz_safetensors.check

    def broken(path: Path) -> str:
        if real(path):
            raise OverflowError("int too large")
        return ""

    monkeypatch.setattr(fuzz_safetensors, "check", broken)
    with pytest.raises(AssertionError, match="OverflowError"):
        fuzz_safetensors.fuzz(folder, seed=1, seconds=5)


def test_mutations_are_reproducible(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    data = (folder / "model.safetensors").read_bytes()
    cases = [fuzz_safetensors.mutate("m.safetensors", data, random.Random(i)) for i in range(40)]
    again = [fuzz_safetensors.mutate("m.safetensors", data, random.Random(i)) for i in range(40)]
    assert cases == again
    assert len(set(cases)) > 30


def test_an_end_token_whose_id_is_a_list(tmp_path: Path) -> None:
    """Found by the fuzzer."""
    folder = write_folder(tmp_path / "m", SPECS["qwen3"])
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for token in tokenizer["added_tokens"]:
        token["id"] = [token["id"]]
    path.write_text(json.dumps(tokenizer))
    assert "added_tokens[0] has no sound id" in fuzz_safetensors.check(folder)


def test_a_shard_name_too_long_for_the_system(tmp_path: Path) -> None:
    """Found by the fuzzer."""
    folder = write_folder(tmp_path / "m", SPECS["qwen3"], shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = "a" * 300 + ".safetensors"
    path.write_text(json.dumps(index))
    assert "doesn't name a .safetensors file" in fuzz_safetensors.check(folder)
