"""Writes small GGUF files for tests, sound or broken on purpose. Shares no code with the reader."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<B",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: object) -> bytes:
    """A value with its type in front."""
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return struct.pack("<I", kind) + string(value)
    return struct.pack("<I", kind) + struct.pack(_FORMATS[kind], value)


def array(kind: int, values: list[object]) -> bytes:
    """An array of scalars of one kind with its types and length in front."""
    body = b"".join(scalar(kind, value)[4:] for value in values)
    return struct.pack("<IIQ", ARRAY, kind, len(values)) + body


@dataclass
class Tensor:
    """`ne` in file order; `offset` None puts the tensor behind the one before it."""

    name: str | bytes
    ne: list[int]
    ggml_type: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None


@dataclass
class GgufBuilder:
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    key_count: int | None = None
    tensor_count: int | None = None

    def key(self, name: str | bytes, value: bytes) -> GgufBuilder:
        self.keys.append((name, value))
        return self

    def tensor(self, *args: object, **kwargs: object) -> GgufBuilder:
        self.tensors.append(Tensor(*args, **kwargs))  # type: ignore[arg-type]
        return self

    def header(self) -> bytes:
        """Everything up to the end of the tensor infos."""
        out = self.magic + struct.pack(
            "<IQQ",
            self.version,
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.keys) if self.key_count is None else self.key_count,
        )
        for name, value in self.keys:
            out += string(name) + value
        cursor = 0
        for tensor in self.tensors:
            offset = cursor if tensor.offset is None else tensor.offset
            cursor = offset + self._padded(len(tensor.data))
            n_dims = len(tensor.ne) if tensor.n_dims is None else tensor.n_dims
            out += string(tensor.name) + struct.pack("<I", n_dims)
            out += struct.pack(f"<{len(tensor.ne)}Q", *tensor.ne)
            out += struct.pack("<IQ", tensor.ggml_type, offset)
        return out

    def build(self) -> bytes:
        out = self.header()
        out += bytes(self._padded(len(out)) - len(out))
        for tensor in self.tensors:
            out += tensor.data + bytes(self._padded(len(tensor.data)) - len(tensor.data))
        return out

    def _padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment


def small_model() -> GgufBuilder:
    """A sound file with every value type, four tensors, and data that is easy to recognise."""
    builder = GgufBuilder()
    builder.key("general.architecture", scalar(STRING, "llama"))
    builder.key("u8", scalar(U8, 200)).key("i8", scalar(I8, -100))
    builder.key("u16", scalar(U16, 60000)).key("i16", scalar(I16, -30000))
    builder.key("u32", scalar(U32, 4_000_000_000)).key("i32", scalar(I32, -2_000_000_000))
    builder.key("u64", scalar(U64, 2**63 + 1)).key("i64", scalar(I64, -(2**62)))
    builder.key("f32", scalar(F32, 0.5)).key("f64", scalar(F64, 0.1))
    builder.key("yes", scalar(BOOL, 1)).key("no", scalar(BOOL, 0))
    builder.key("nan", scalar(F32, float("nan")))
    builder.key("tokens", array(STRING, ["a", "é", "", "<|im_end|>", b"\xe4\xb8"]))
    builder.key("scores", array(F32, [0.0, -1.5, 2.0]))
    builder.key("heads", array(U32, [4, 4, 4])).key("varying", array(I32, [4, 2, 4]))
    builder.key("flags", array(BOOL, [1, 0, 1])).key("same_flags", array(BOOL, [1, 1]))
    builder.key("empty", array(U32, []))
    builder.tensor("token_embd.weight", [4, 3], 0, struct.pack("<12f", *range(12)))
    builder.tensor("blk.0.attn_q.weight", [32, 2], 8, bytes(range(68)))
    builder.tensor("norm.weight", [3], 1, b"\x00\x3c" * 3)
    builder.tensor("cube.weight", [256, 2, 3], 14, bytes(i % 251 for i in range(1260)))
    return builder
