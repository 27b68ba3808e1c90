"""What `write_gguf` writes, read back by the public `gguf` package and by our own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from draftproof.errors import InvalidRequestError
from draftproof.formats import GgufFile
from draftproof.formats.gguf_writer import NewTensor, Value, write_gguf

METADATA: dict[str, Value] = {
    "general.architecture": "qwen3",
    "a.bool": True,
    "a.int": 7,
    "a.large": 2**40,
    "a.float": 0.5,
    "a.text": "Grüße",
    "a.texts": ["a", "", "ü"],
    "a.i32": np.array([-1, 2], np.int32),
    "a.u16": np.uint16(9),
    "a.f64": np.float64(0.1),
}
MATRIX = NewTensor("blk.0.attn_q.weight", 2, (3, 64))  # Q4_0: 3 x 2 blocks of 18 bytes
VECTOR = NewTensor("output_norm.weight", 0, (5,))
EXPERTS = NewTensor("blk.0.ffn_up_exps.weight", 1, (2, 3, 4))


def bytes_of(tensor: NewTensor) -> np.ndarray[Any, Any]:
    return np.random.default_rng(tensor.nbytes).integers(0, 256, tensor.nbytes, dtype=np.uint8)


def in_pieces(tensor: NewTensor) -> Iterator[Any]:
    """As an array, bytes and a memoryview."""
    data = bytes_of(tensor)
    yield data[:8].view(np.uint16)
    yield data[8:9].tobytes()
    yield memoryview(data[9:])


def test_both_readers_agree(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    seen: list[tuple[str, int, int | None]] = []
    tensors = [VECTOR, MATRIX, EXPERTS]
    size = write_gguf(path, METADATA, tensors, in_pieces, lambda *step: seen.append(step))
    assert size == path.stat().st_size
    assert [done for _, done, _ in seen][-1] == size == seen[0][2]
    public = GGUFReader(path)
    with GgufFile.open(path) as own:
        assert own.int_value("a.int", 0, 9) == own.int_value("a.u16", 0, 9) - 2 == 7
        assert own.int_list("a.i32", -9, 9) == [-1, 2]
        assert own.str_list("a.texts") == METADATA["a.texts"]
        for key, value in METADATA.items():
            field = public.get_field(key)
            assert field is not None
            shown = field.contents()
            wanted = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            assert shown == wanted, key
        for tensor, read in zip(tensors, public.tensors, strict=True):
            assert read.name == tensor.name
            assert tuple(int(n) for n in read.shape[::-1]) == tensor.shape
            data = own.data(tensor.name)
            assert bytes(data) == bytes_of(tensor).tobytes() == read.data.tobytes()
            assert own.tensors[tensor.name].shape == tensor.shape
            data.release()


def test_nothing_appears_unless_it_is_complete(tmp_path: Path) -> None:
    def too_few(tensor: NewTensor) -> list[bytes]:
        return [bytes(tensor.nbytes - 1)]

    with pytest.raises(ValueError, match=r"19 bytes were given, its shape needs 20"):
        write_gguf(tmp_path / "x.gguf", METADATA, [VECTOR], too_few)
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gguf"
    path.write_text("mine")
    with pytest.raises(InvalidRequestError, match="exists already"):
        write_gguf(path, METADATA, [VECTOR], in_pieces)
    assert path.read_text() == "mine"
    with pytest.raises(InvalidRequestError, match="is no folder"):
        write_gguf(tmp_path / "no" / "x.gguf", METADATA, [VECTOR], in_pieces)
    huge = NewTensor("token_embd.weight", 0, (2**31 - 1, 2**20))
    with pytest.raises(InvalidRequestError, match="GB are free on that disk"):
        write_gguf(tmp_path / "y.gguf", METADATA, [huge], in_pieces)
    assert list(tmp_path.iterdir()) == [path]


def test_rows_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="rows of 33"):
        _ = NewTensor("x", 2, (3, 33)).nbytes
