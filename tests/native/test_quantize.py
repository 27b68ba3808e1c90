"""The quantizer: as near to the floats as llama.cpp's, the same bytes always, nothing breaks it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from gguf.quants import quantize as gguf_quantize
from numpy.typing import NDArray

from draftproof import _native

Rows = NDArray[np.float32]
ROWS, WIDTH = 64, 1024
NAMES = ("Q8_0", "Q5_0", "Q4_K", "Q6_K")

# Weighted squared error of llama.cpp's quantizer (0.5.0, no importance matrix) relative to
# the weighted squares, on the rows of `rows`, in units of 1e-6.
LLAMA_CPP = {
    ("laplace", "Q8_0"): 44.412,
    ("laplace", "Q5_0"): 2823.869,
    ("laplace", "Q4_K"): 3809.399,
    ("laplace", "Q6_K"): 52.38,
    ("gauss", "Q8_0"): 28.966,
    ("gauss", "Q5_0"): 1818.412,
    ("gauss", "Q4_K"): 3430.567,
    ("gauss", "Q6_K"): 77.741,
}


def rows(kind: str, count: int = ROWS) -> Rows:
    rng = np.random.default_rng(8)
    size = (count, WIDTH)
    draw = rng.laplace(size=size) if kind == "laplace" else rng.standard_normal(size)
    return (draw * 0.02).astype(np.float32)


def quantized(x: Rows, name: str, threads: int = 1) -> NDArray[np.uint8]:
    return _native.quantize(x, 0, int(getattr(Type, name)), *x.shape, threads)


def values(data: NDArray[np.uint8], x: Rows, name: str) -> Rows:
    out: Rows = dequantize(data.reshape(len(x), -1), getattr(Type, name))
    return out


def weights(x: Rows, name: str) -> NDArray[Any]:
    """What llama.cpp weighs an error by when it has no importance matrix."""
    if name == "Q6_K":
        return x * x
    if name == "Q4_K":
        blocks = x.reshape(len(x), -1, 32)
        mean = np.sqrt(np.square(blocks).mean(-1, keepdims=True))
        return (mean + np.abs(blocks)).reshape(x.shape)
    return np.ones_like(x)


def relative_error(x: Rows, name: str) -> float:
    w = weights(x, name).astype(np.float64)
    miss = values(quantized(x, name), x, name).astype(np.float64) - x
    return float((w * miss * miss).sum() / (w * x.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["laplace", "gauss"])
def test_errors_are_at_most_those_of_llama_cpp(kind: str, name: str) -> None:
    assert relative_error(rows(kind), name) * 1e6 <= 1.0001 * LLAMA_CPP[kind, name]


def test_q8_0_is_the_public_packages(tmp_path: Any) -> None:
    x = rows("laplace")
    assert np.array_equal(quantized(x, "Q8_0"), gguf_quantize(x, Type.Q8_0).reshape(-1))


# sha256 of the bytes: equal on every machine and with every compiler.
DIGESTS = {
    "Q8_0": "f59c6b5d81ea6a57",
    "Q5_0": "4c93d85f7050283f",
    "Q4_K": "45853d3574d3ed9c",
    "Q6_K": "1c0f27e78efe1a9e",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_always_the_same(name: str) -> None:
    x = rows("laplace")
    assert hashlib.sha256(quantized(x, name).tobytes()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_threads_and_neighbours_change_no_byte(name: str) -> None:
    x = rows("gauss")
    alone = np.concatenate([quantized(row[None], name) for row in x])
    assert np.array_equal(alone, quantized(x, name))
    assert np.array_equal(alone, quantized(x, name, threads=3))


EDGES: dict[str, Callable[[], Rows]] = {
    "zeros": lambda: np.zeros((2, 256), np.float32),
    "constant": lambda: np.full((2, 256), -0.25, np.float32),
    "one value": lambda: np.eye(2, 256, dtype=np.float32),
    "denormal": lambda: np.full((2, 256), 1e-41, np.float32),
    "tiny": lambda: rows("gauss", 2)[:, :256] * np.float32(1e-30),
    "negative": lambda: -np.abs(rows("gauss", 2)[:, :256]),
    "steps": lambda: (np.arange(512, dtype=np.float32).reshape(2, 256) % 16) - 7,
    "spike": lambda: np.where(np.arange(512).reshape(2, 256) % 256 == 9, 6e4, 1e-3).astype("f4"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge", EDGES)
def test_edges_stay_within_a_step(edge: str, name: str) -> None:
    """A value is off by at most about one step of its block: its range over the levels."""
    x = EDGES[edge]()
    got = values(quantized(x, name), x, name)
    size = 256 if name.endswith("_K") else 32
    levels = {"Q8_0": 254, "Q5_0": 31, "Q4_K": 15, "Q6_K": 63}[name]
    blocks = x.reshape(-1, size)
    most, least = np.maximum(blocks.max(1), 0), np.minimum(blocks.min(1), 0)
    step = np.maximum(most - least, 2 * np.abs(blocks).max(1) if name != "Q4_K" else 0) / levels
    miss = np.abs(got.reshape(-1, size) - blocks).max(1)
    assert np.isfinite(got).all()
    assert (miss <= 1.5 * step + 1e-7).all()


@pytest.mark.parametrize("source", ["F16", "BF16"])
def test_sixteen_bit_sources_are_widened(source: str) -> None:
    x = rows("gauss", 4)
    raw = gguf_quantize(x, getattr(Type, source))
    wide: Rows = dequantize(raw, getattr(Type, source))
    direct = _native.quantize(raw, int(getattr(Type, source)), int(Type.Q4_K), *x.shape, 1)
    assert np.array_equal(direct, quantized(wide, "Q4_K"))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_types_are_the_public_packages(name: str) -> None:
    x = rows("laplace", 4)
    expected = gguf_quantize(x, getattr(Type, name)).reshape(-1).view(np.uint8)
    assert np.array_equal(quantized(x, name), expected)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    x = rows("gauss", 4)
    x[2, 100] = bad
    with pytest.raises(ValueError, match="row 2 has a value that isn't finite"):
        quantized(x, name)


def test_a_value_beyond_f16_is_refused() -> None:
    x = rows("gauss", 2)
    x[1, 0] = 1e6
    with pytest.raises(ValueError, match="row 1"):
        quantized(x, "F16")


def test_sizes_that_do_not_fit_are_refused() -> None:
    x = rows("gauss", 2)
    for args in [
        (x, 0, 12, 2, 1000),  # 256 doesn't divide the row
        (x, 0, 12, 3, 1024),  # more rows than data
        (x, 0, 12, 0, 1024),
        (x, 0, 12, -1, 1024),
        (x, 0, 2, 2, 1024),  # a type that isn't written
        (x, 12, 8, 2, 1024),  # a source that isn't floats
        (x, 0, 99, 2, 1024),
        (x, 0, 12, 2, 1 << 62),
        (x, 0, 12, 8, (1 << 62) + 256),
    ]:
        with pytest.raises(ValueError, match="quantize: "):
            _native.quantize(*args, 1)
