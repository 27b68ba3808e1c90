"""Broken and hostile GGUF files: each is one line that says what, where, and what to do."""

from __future__ import annotations

import os
import random
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import fuzz_gguf
import pytest
from gguf_builder import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U32,
    GgufBuilder,
    array,
    scalar,
    small_model,
    string,
)
from model_cache import cached_model

from draftproof.errors import ModelFileError, ModelNotFoundError
from draftproof.formats import GgufFile

Write = Callable[[bytes], Path]


def refused(path: Path | str) -> str:
    """The message of the ModelFileError that opening gives, checked for its form."""
    with pytest.raises(ModelFileError) as caught:
        GgufFile.open(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert re.fullmatch(r".+: .+; .+", message), message
    return message


def one_tensor(**changes: object) -> GgufBuilder:
    fields: dict[str, object] = {
        "name": "w",
        "ne": [32, 2],
        "ggml_type": 8,
        "data": bytes(68),
    } | changes
    return GgufBuilder().tensor(**fields)


def hostile_length(value: int) -> bytes:
    return struct.pack("<Q", value)


HEAD = b"GGUF" + struct.pack("<I", 3)
HUGE = [2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"G", "isn't a GGUF file"),
        (b"GGUF", "ends at byte 4"),
        (HEAD + bytes(15), "ends at byte 23"),
        (b"<!DOCTYPE html>\n<html>Sign in</html>", "looks like an HTML page; download the real"),
        (b"\n\n <html><body>404</body></html>", "looks like an HTML page"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><html/>", "looks like an HTML page"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n",
            "looks like a Git LFS pointer; download the real file",
        ),
        (b"PK\x03\x04" + bytes(99), r"isn't a GGUF file \(starts with b'PK"),
        (b"FUGG" + bytes(99), "isn't a GGUF file"),
        (bytes(4096), "starts with zero bytes"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "GGUF version 1 at byte 4"),
        (b"GGUF" + struct.pack("<I", 0) + bytes(16), "GGUF version 0 at byte 4"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(16), "GGUF version 4 at byte 4"),
    ],
)
def test_not_a_supported_gguf_file(write: Write, data: bytes, message: str) -> None:
    assert re.search(message, refused(write(data)))


def test_things_that_are_not_files(tmp_path: Path) -> None:
    assert "is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "isn't a regular file" in refused(tmp_path / "pipe.gguf")
    assert "isn't a regular file" in refused("/dev/null")
    for missing in (tmp_path / "none.gguf", tmp_path / "a\0b.gguf"):
        with pytest.raises(ModelNotFoundError, match="no such file"):
            GgufFile.open(missing)
    (tmp_path / "plain").write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match="no such file"):
        GgufFile.open(tmp_path / "plain" / "below.gguf")
    assert "isn't a GGUF file" in refused(tmp_path / "plain")


def test_a_file_name_cannot_break_the_line(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines\x1b[31m.gguf"
    path.write_bytes(b"x")
    assert "two\\nlines\\x1b" in refused(path)


def test_every_truncation_is_refused(write: Write) -> None:
    builder = small_model()
    data = builder.build()
    # The padding behind the last tensor carries nothing, so a file may end before it.
    end = len(data) - (-len(builder.tensors[-1].data) % builder.alignment)
    GgufFile.open(write(data[:end])).close()
    for length in range(end):
        message = refused(write(data[:length]))
        assert length < 24 or "download it again" in message, message


@pytest.mark.parametrize("value", [10**5, *HUGE])
def test_counts_past_the_end(write: Write, value: int) -> None:
    keys, tensors = small_model(), small_model()
    keys.key_count = value
    tensors.tensor_count = value
    assert re.search(
        f"metadata keys at byte 16 is {value}, more than fits", refused(write(keys.build()))
    )
    assert re.search(
        f"tensors at byte 8 is {value}, more than fits", refused(write(tensors.build()))
    )


@pytest.mark.parametrize("value", HUGE)
def test_hostile_lengths(write: Write, value: int) -> None:
    length = hostile_length(value)
    key = HEAD + struct.pack("<QQ", 0, 1) + length + bytes(64)
    assert "a metadata key at byte 24" in refused(write(key))
    text = GgufBuilder().key("k", struct.pack("<I", STRING) + length + bytes(64))
    assert "metadata key 'k' at byte 37" in refused(write(text.build()))
    for kind in (STRING, F32, BOOL):
        values = GgufBuilder().key("k", struct.pack("<II", ARRAY, kind) + length + bytes(64))
        assert "metadata key 'k' at byte 49" in refused(write(values.build()))
    inner = GgufBuilder().key(
        "k", struct.pack("<IIQ", ARRAY, STRING, 2) + string("a") + length + bytes(64)
    )
    assert "metadata key 'k' at byte 58" in refused(write(inner.build()))
    name = HEAD + struct.pack("<QQ", 1, 0) + length + bytes(64)
    assert "a tensor name at byte 24" in refused(write(name))
    dims = one_tensor(ne=[32, value])
    assert f"tensor 'w' at byte 33 has the impossible dimensions [32, {value}]" in refused(
        write(dims.build())
    )
    offset = one_tensor(offset=value & ~31)
    assert "tensor 'w' lies at bytes" in refused(write(offset.build()))


def test_large_claims_allocate_little(tmp_path: Path) -> None:
    # A sparse file makes its length useless as a bound: own limits must hold.
    path = tmp_path / "sparse.gguf"
    heads = [
        GgufBuilder().key("k", struct.pack("<IIQ", ARRAY, F32, 2**32)).header(),
        GgufBuilder().key("k", struct.pack("<IIQ", ARRAY, STRING, 2**32)).header(),
        GgufBuilder().key("k", struct.pack("<IQ", STRING, 2**32)).header(),
        HEAD + struct.pack("<QQ", 2**30, 0),
        HEAD + struct.pack("<QQ", 0, 2**30),
    ]
    for head in heads:
        path.write_bytes(head)
        os.truncate(path, 2**40)
        tracemalloc.start()
        refused(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (GgufBuilder().key("", scalar(U32, 1)), "a metadata key at byte 24 is 0 bytes long"),
        (GgufBuilder().key("k" * 65537, scalar(U32, 1)), "is 65537 bytes long"),
        (GgufBuilder().key(b"\xff\xfe", scalar(U32, 1)), "key at byte 24 isn't valid UTF-8"),
        (
            GgufBuilder().key("twice", scalar(U32, 1)).key("twice", scalar(U32, 1)),
            "'twice' at byte 45 appears twice",
        ),
        (GgufBuilder().key("k", struct.pack("<I", 13)), "unknown value type 13"),
        (GgufBuilder().key("k", struct.pack("<I", 2**32 - 1)), "value type 4294967295"),
        (GgufBuilder().key("k", struct.pack("<IIQ", ARRAY, ARRAY, 1)), "value type 9"),
        (GgufBuilder().key("k", struct.pack("<IIQ", ARRAY, 13, 1)), "value type 13"),
        (GgufBuilder().key("k", scalar(BOOL, 2)), "boolean that is neither 0 nor 1"),
        (GgufBuilder().key("k", array(BOOL, [0, 1, 255])), "neither 0 nor 1"),
        (GgufBuilder().key("a\nb", scalar(BOOL, 2)), r"'a\\nb'"),
        (one_tensor(name=""), "a tensor name at byte 24 is 0 bytes long"),
        (one_tensor(name="n" * 64), "64 bytes long, expected 1 to 63"),
        (one_tensor(name=b"\xc3\x28"), "tensor name at byte 24 isn't valid UTF-8"),
        (one_tensor(n_dims=0), "'w' at byte 33 has 0 dimensions"),
        (one_tensor(n_dims=5), "has 5 dimensions, expected 1 to 4"),
        (one_tensor(n_dims=2**32 - 1), "has 4294967295 dimensions"),
        (one_tensor(ne=[32, 0]), "impossible dimensions"),
        (one_tensor(ne=[2**31 - 32] * 4), "tensor 'w' lies at bytes"),
        (one_tensor(ne=[33, 2]), "rows of 33 elements, not a multiple of the 32 of its type Q8_0"),
        (one_tensor(ggml_type=16), r"unsupported type IQ2_XXS \(16\); get another quantization"),
        (one_tensor(ggml_type=4), r"unsupported type Q4_2 \(4\)"),
        (one_tensor(ggml_type=40), r"unsupported type NVFP4 \(40\)"),
        (one_tensor(ggml_type=77), "'w' at byte 53 has the unsupported type number 77"),
        (one_tensor(offset=16), "offset 16, not a multiple of the alignment 32"),
        (one_tensor(offset=32), "tensor 'w' lies at bytes 128 to 196"),
        (
            one_tensor().tensor("w", [32], 8, bytes(34)),
            "tensor 'w' at byte 65 appears twice",
        ),
        (
            one_tensor().tensor("v", [32], 8, bytes(34), offset=64),
            "tensors 'w' and 'v' overlap at byte",
        ),
        (
            one_tensor().tensor("v", [32], 8, bytes(34), offset=0),
            "overlap at byte",
        ),
    ],
)
def test_broken_records(write: Write, builder: GgufBuilder, message: str) -> None:
    assert re.search(message, refused(write(builder.build())))


@pytest.mark.parametrize("alignment", [0, 1, 4, 33, 48, 2**21, 2**31])
def test_alignment_is_a_sane_power_of_two(write: Write, alignment: int) -> None:
    builder = one_tensor().key("general.alignment", scalar(U32, alignment))
    assert "'general.alignment' must be a power of two" in refused(write(builder.build()))


def test_alignment_is_a_number(write: Write) -> None:
    for value in (scalar(STRING, "32"), scalar(BOOL, 1), scalar(F32, 32.0), array(U32, [32])):
        builder = one_tensor().key("general.alignment", value)
        assert "'general.alignment' must be" in refused(write(builder.build()))


def test_own_limits_on_large_but_consistent_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.gguf"
    path.write_bytes(GgufBuilder().key("k", array(STRING, ["a"] * 100)).header())
    monkeypatch.setattr("draftproof.formats.gguf_header.MAX_STRINGS", 100)
    GgufFile.open(path).close()
    monkeypatch.setattr("draftproof.formats.gguf_header.MAX_STRINGS", 99)
    assert "100 strings, more than the limit of 99" in refused(path)
    monkeypatch.setattr("draftproof.formats.gguf_header.MAX_STRINGS", 1 << 22)
    monkeypatch.setattr("draftproof.formats.gguf_header.MAX_HEADER_BYTES", 600)
    assert "header longer than 600 bytes" in refused(path)
    monkeypatch.setattr("draftproof.formats.gguf_header.MAX_HEADER_BYTES", 1 << 20)
    monkeypatch.setattr("draftproof.formats.gguf_header.MAX_STRING_BYTES", 99)
    path.write_bytes(GgufBuilder().key("k", scalar(STRING, "a" * 100)).header())
    assert "a string of 100 bytes, more than the limit of 99" in refused(path)
    path.write_bytes(GgufBuilder().key("k", scalar(STRING, "a" * 99)).header())
    GgufFile.open(path).close()
    monkeypatch.setattr("draftproof.formats.gguf_header.MAX_KEYS", 0)
    assert "metadata keys at byte 16 is 1, more than the limit of 0" in refused(path)


def test_a_file_that_shrinks_while_the_header_is_read(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(small_model().build())
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: b"")
    assert "became shorter" in refused(path)

    def broken_disk(fd: int, count: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken_disk)
    assert "can't be read at byte 0 (Input/output error)" in refused(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission(write: Write) -> None:
    path = write(small_model().build())
    path.chmod(0)
    assert "can't be opened (Permission denied)" in refused(path)


def test_fuzz_small_file(tmp_path: Path) -> None:
    data = small_model().build()
    header = len(small_model().header())
    result = fuzz_gguf.fuzz(data[:header], len(data), tmp_path, seed=1, seconds=2.5)
    assert result.refused > 100
    assert result.accepted > 10


def test_fuzz_real_header(tmp_path: Path) -> None:
    path = cached_model(fuzz_gguf.REAL_MODEL)
    if path is None:
        pytest.skip(f"{fuzz_gguf.REAL_MODEL} is not in the cache")
    header, size = fuzz_gguf.real_header(path)
    result = fuzz_gguf.fuzz(header, size, tmp_path, seed=2, seconds=2.5)
    assert result.refused + result.accepted > 10


def test_the_fuzzer_notices_other_exceptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_open(path: Path) -> GgufFile:
        raise OverflowError("int too large")

    monkeypatch.setattr(GgufFile, "open", broken_open)
    header = small_model().header()
    with pytest.raises(AssertionError, match="OverflowError"):
        fuzz_gguf.fuzz(header, len(header), tmp_path, seed=1, seconds=1)


def test_mutations_are_reproducible() -> None:
    header = small_model().header()
    fields = fuzz_gguf.field_offsets(header)
    first = [fuzz_gguf.mutate(header, 9999, fields, random.Random(i)) for i in range(50)]
    again = [fuzz_gguf.mutate(header, 9999, fields, random.Random(i)) for i in range(50)]
    assert first == again
    assert len(set(first)) > 40
