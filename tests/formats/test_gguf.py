"""Sound GGUF files: every value as written, real files as the reference package reads them."""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_builder import BOOL, F32, STRING, U32, GgufBuilder, array, scalar, small_model

from draftproof.errors import ModelFileError
from draftproof.formats import GGML_TYPES, GgufFile, TensorInfo, dequantize

Write = Callable[[bytes], Path]


def test_every_value_type_is_read_as_written(write: Write) -> None:
    with GgufFile.open(write(small_model().build())) as file:
        got = file.metadata
        scalars = {
            "general.architecture": "llama",
            "u8": 200,
            "i8": -100,
            "u16": 60000,
            "i16": -30000,
            "u32": 4_000_000_000,
            "i32": -2_000_000_000,
            "u64": 2**63 + 1,
            "i64": -(2**62),
            "f32": 0.5,
            "f64": 0.1,
            "yes": True,
            "no": False,
        }
        for key, value in scalars.items():
            assert got[key] == value, key
            assert type(got[key]) is type(value), key
        assert math.isnan(got["nan"])
        assert got["tokens"] == ["a", "é", "", "<|im_end|>", "\ufffd"]
        assert got["scores"].tolist() == [0.0, -1.5, 2.0]
        assert got["varying"].tolist() == [4, 2, 4]
        assert got["flags"].tolist() == [True, False, True]
        assert got["empty"].tolist() == []
        assert len(got) == len(small_model().keys)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_tensors_lie_where_they_were_written(write: Write, version: int, alignment: int) -> None:
    builder = small_model()
    builder.version = version
    builder.alignment = alignment
    builder.key("general.alignment", scalar(U32, alignment))
    path = write(builder.build())
    with GgufFile.open(path) as file:
        assert list(file.tensors) == [tensor.name for tensor in builder.tensors]
        for tensor in builder.tensors:
            info = file.tensors[str(tensor.name)]
            assert info.shape == tuple(reversed(tensor.ne))
            assert info.ggml_type == tensor.ggml_type
            assert info.nbytes == len(tensor.data)
            assert info.offset % alignment == 0
            view = file.data(info.name)
            assert view.readonly
            assert bytes(view) == tensor.data
            del view
            file.release(info.name)
            assert bytes(file.data(info.name)) == tensor.data


def test_a_file_without_tensors_is_sound(write: Write) -> None:
    builder = GgufBuilder().key("general.architecture", scalar(STRING, "llama"))
    with GgufFile.open(write(builder.header())) as file:
        assert file.tensors == {}
        assert file.str_value("general.architecture") == "llama"


def test_views_outlive_close_and_data_needs_an_open_file(write: Write) -> None:
    file = GgufFile.open(write(small_model().build()))
    view = file.data("token_embd.weight")
    file.close()
    file.close()
    assert np.frombuffer(view, "<f4").tolist() == list(range(12))
    with pytest.raises(ValueError, match="closed"):
        file.data("token_embd.weight")


def test_digest_is_of_header_and_size_not_of_data(write: Write) -> None:
    def digest(data: bytes) -> str:
        with GgufFile.open(write(data)) as file:
            return file.digest()

    data = small_model().build()
    header = len(small_model().header())
    reference = digest(data)
    assert digest(data[:-1] + bytes([data[-1] ^ 1])) == reference
    assert digest(data + b"\0") != reference
    at = data.index(b"llama")
    assert at < header
    assert digest(data[:at] + b"qwen2" + data[at + 5 :]) != reference


def test_getters_give_values_defaults_and_collapsed_arrays(write: Write) -> None:
    with GgufFile.open(write(small_model().build())) as file:
        assert file.int_value("u8", 0, 200) == 200
        assert file.int_value("heads", 1, 4) == 4
        assert file.int_value("missing", 1, 4, default=3) == 3
        assert file.float_value("f32", 0.5, 0.5) == 0.5
        assert file.float_value("u8", 0, 1000) == 200.0
        assert file.float_value("missing", 0, 1, default=0.25) == 0.25
        assert file.bool_value("no") is False
        assert file.bool_value("same_flags") is True
        assert file.bool_value("missing", default=False) is False
        assert file.str_value("missing", default="") == ""
        assert file.str_list("tokens")[1] == "é"
        assert file.str_list("empty") == []
        assert file.int_list("varying", 2, 4) == [4, 2, 4]
        assert file.int_list("missing", 0, 0, default=[]) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.int_value("missing", 0, 9), "'missing' is missing"),
        (lambda f: f.int_value("u8", 0, 199), "from 0 to 199 .is 200"),
        (lambda f: f.int_value("i8", 0, 199), "from 0 to 199 .is -100"),
        (lambda f: f.int_value("f32", 0, 9), "an integer .is 0.5"),
        (lambda f: f.int_value("yes", 0, 9), "an integer .is True"),
        (lambda f: f.int_value("tokens", 0, 9), "an integer .is an array of 5 values"),
        (lambda f: f.int_value("varying", 0, 9), "the same for all layers"),
        (lambda f: f.int_value("empty", 0, 9), "empty array"),
        (lambda f: f.float_value("nan", 0, 9), "finite number .is nan"),
        (lambda f: f.float_value("yes", 0, 9), "finite number .is True"),
        (lambda f: f.float_value("f64", 0.2, 9), "from 0.2 to 9 .is 0.1"),
        (lambda f: f.bool_value("u8"), "a boolean .is 200"),
        (lambda f: f.bool_value("flags"), "the same for all layers"),
        (lambda f: f.str_value("u8"), "a string .is 200"),
        (lambda f: f.str_list("scores"), "array of strings"),
        (lambda f: f.str_list("general.architecture"), "array of strings .is 'llama'"),
        (lambda f: f.int_list("scores", 0, 9), "array of integers"),
        (lambda f: f.int_list("tokens", 0, 9), "array of integers"),
        (lambda f: f.int_list("varying", 3, 9), "from 3 to 9 .is 2"),
        (lambda f: f.data("nothing"), "no tensor 'nothing'"),
    ],
)
def test_getters_refuse(write: Write, call: Callable[[GgufFile], object], message: str) -> None:
    with (
        GgufFile.open(write(small_model().build())) as file,
        pytest.raises(ModelFileError, match=message) as caught,
    ):
        call(file)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("bad.gguf: ")


def test_shrinking_after_open_is_an_error_not_a_crash(write: Write) -> None:
    path = write(small_model().build())
    with GgufFile.open(path) as file:
        os.truncate(path, 100)
        with pytest.raises(ModelFileError, match="became shorter after it was opened"):
            file.data("token_embd.weight")


def test_real_files_match_the_reference_package(real_file: Path) -> None:
    reference = gguf.GGUFReader(real_file)
    with GgufFile.open(real_file) as file:
        assert list(file.tensors.values()) == [
            TensorInfo(
                tensor.name,
                int(tensor.tensor_type),
                tuple(int(dim) for dim in reversed(tensor.shape)),
                int(tensor.data_offset),
                int(tensor.n_bytes),
            )
            for tensor in reference.tensors
        ]
        names = [key for key in reference.fields if not key.startswith("GGUF.")]
        assert list(file.metadata) == names
        for key in names:
            expected, got = reference.fields[key].contents(), file.metadata[key]
            assert (got.tolist() if isinstance(got, np.ndarray) else got) == expected, key
        name = min(file.tensors.values(), key=lambda info: info.nbytes).name
        raw = next(tensor.data for tensor in reference.tensors if tensor.name == name)
        assert bytes(file.data(name)) == raw.tobytes()


def test_real_headers_parse_fast(real_file: Path) -> None:
    times = []
    for _ in range(3):
        start = time.process_time()
        GgufFile.open(real_file).close()
        times.append(time.process_time() - start)
    assert min(times) < 0.5


def _resident_kib(mapped: Path) -> int:
    """Resident KiB of the process's mapping of a file."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0] and not line.split(" ", 1)[0].endswith(":"):
            inside = line.endswith(str(mapped))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_release_gives_resident_pages_back(write: Write) -> None:
    builder = GgufBuilder().tensor("big", [1 << 20], 0, bytes(4 << 20))
    path = write(builder.build())
    with GgufFile.open(path) as file:
        view = file.data("big")
        assert sum(view[::4096]) == 0
        assert _resident_kib(path) >= 4096
        file.release("big")
        assert _resident_kib(path) < 64


@pytest.mark.parametrize("ggml_type", GGML_TYPES, ids=lambda t: GGML_TYPES[t].name)
def test_dequantize_is_bit_equal_to_the_reference_package(ggml_type: int) -> None:
    kind = GGML_TYPES[ggml_type]
    rng = np.random.default_rng(ggml_type)
    rows, row_blocks = 96, 512 // kind.block_elems
    raw = rng.integers(0, 256, (rows, row_blocks * kind.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random bits make NaN scales, and the reference warns
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(ggml_type))
    got = dequantize(ggml_type, raw.tobytes(), (rows, 512))
    assert got.dtype == np.float32
    assert got.shape == (rows, 512)
    assert np.isfinite(expected).mean() > 0.8
    nan = np.isnan(expected)
    assert (np.isnan(got) == nan).all()
    assert (got.view(np.uint32)[~nan] == expected.astype(np.float32).view(np.uint32)[~nan]).all()


def test_type_table_matches_the_reference_package() -> None:
    for ggml_type, kind in GGML_TYPES.items():
        reference = gguf.GGMLQuantizationType(ggml_type)
        assert kind.name == reference.name
        assert (kind.block_elems, kind.block_bytes) == gguf.GGML_QUANT_SIZES[reference]


@pytest.mark.parametrize(
    ("ggml_type", "size", "shape", "message"),
    [
        (16, 66, (1, 256), "IQ2_XXS"),
        (8, 33, (1, 32), "33 bytes of Q8_0"),
        (8, 34, (2, 16), "34 bytes of Q8_0"),
        (0, 8, (3,), "8 bytes of F32"),
        (99, 8, (3,), "number 99"),
    ],
)
def test_dequantize_refuses(
    ggml_type: int, size: int, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dequantize(ggml_type, bytes(size), shape)


def test_a_large_vocabulary_parses_in_linear_time(write: Write) -> None:
    def cpu_seconds(count: int) -> float:
        tokens = struct.pack("<Q3s", 3, b"abc") * count
        value = struct.pack("<IIQ", 9, STRING, count) + tokens
        path = write(GgufBuilder().key("tokens", value).build())
        start = time.process_time()
        with GgufFile.open(path) as file:
            assert file.str_list("tokens") == ["abc"] * count
        return time.process_time() - start

    cpu_seconds(1000)
    assert cpu_seconds(600_000) < 1.0


def test_metadata_arrays_are_read_only(write: Write) -> None:
    builder = GgufBuilder().key("a", array(F32, [1.0])).key("b", array(BOOL, [1]))
    with GgufFile.open(write(builder.build())) as file:
        for key in "ab":
            with pytest.raises(ValueError, match="read-only"):
                file.metadata[key][0] = 0
