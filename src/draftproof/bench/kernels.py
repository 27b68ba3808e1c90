"""The linear kernels by themselves: how close to memory speed, per weight type, shape and m.

A case is a native Program of many linear layers of one real shape, one after the other, together
far larger than the caches: every step reads all of them from memory, as a model's step does.
(One huge layer would measure something else: an output row of hundreds of thousands of values no
longer fits beside the weights.) Weights are random blocks; time doesn't depend on their values.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof import _native
from draftproof.bench.bandwidth import ReadBandwidth, last_level_cache_bytes
from draftproof.bench.metrics import gb_per_second, median, ratio
from draftproof.errors import InvalidRequestError
from draftproof.formats import GGML_TYPES

DEFAULT_ROWS = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_SHAPES = ("1536x8960", "8960x1536")  # gate/up and down of Qwen2.5-1.5B
DEFAULT_ROUNDS = 7
MAX_TOTAL_BYTES = 512 << 20

# Byte offsets of a block's float16 scales (ggml-common.h): random bits there may not be finite.
_SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Shape:
    """A linear layer: inputs -> outputs."""

    inputs: int
    outputs: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """'1536x8960'. InvalidRequestError for anything else."""
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text.strip().lower())
        if match is None:
            raise InvalidRequestError(
                f"--shape must be INxOUT such as {DEFAULT_SHAPES[0]}, got {text!r:.40}"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.inputs}x{self.outputs}"


@dataclass(frozen=True)
class RowResult:
    """m rows in one step over all layers of the case. share: of the read bandwidth of this run.
    verify_cost: V(m). rows_per_second: rows through one such layer."""

    m: int
    seconds: float
    gb_per_second: float
    share: float
    verify_cost: float
    rows_per_second: float


@dataclass(frozen=True)
class CaseResult:
    """layer_bytes: packed bytes that one layer reads. plain_seconds: all one-row steps in order."""

    type: str
    shape: str
    layers: int
    layer_bytes: int
    isa: str
    threads: int
    rows: tuple[RowResult, ...]
    plain_seconds: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        result = asdict(self)
        del result["plain_seconds"]
        return result


def packable_types() -> dict[str, int]:
    """Name -> ggml type of every weight type that this build packs and this file can make up."""
    names = {}
    for number, kind in GGML_TYPES.items():
        if kind.name in _SCALES or kind.name in _FLOATS:
            try:
                _native.Weights.packed_size(number, 64, kind.block_elems)
            except ValueError:
                continue
            names[kind.name] = number
    return names


def check_case(kind: str, shape: Shape) -> int:
    """The ggml type of `kind`. InvalidRequestError: unknown, or the shape has no whole blocks."""
    known = packable_types()
    number = known.get(kind.upper())
    if number is None:
        raise InvalidRequestError(f"--type must be one of {', '.join(known)}, got {kind!r:.40}")
    block = GGML_TYPES[number].block_elems
    if shape.inputs % block:
        raise InvalidRequestError(
            f"--shape {shape}: {kind} needs inputs in multiples of {block}, got {shape.inputs}"
        )
    return number


class KernelCase:
    """One type and shape, ready to be stepped. total_bytes: packed weights at least."""

    def __init__(
        self, kind: str, shape: Shape, max_m: int, threads: int, isa: str, total_bytes: int
    ) -> None:
        number = check_case(kind, shape)
        self.kind, self.shape = kind.upper(), shape
        self.layer_bytes = _native.Weights.packed_size(number, shape.outputs, shape.inputs)
        self.layers = max(1, -(-total_bytes // self.layer_bytes))
        table = np.zeros((64, shape.inputs), np.float32)  # rows come as vectors: nobody looks here
        arena = _native.Weights.packed_size(0, 64, shape.inputs) + self.layers * self.layer_bytes
        weights = _native.Weights(arena, threads)
        embedding = weights.add_linear("embedding", 0, table.tobytes(), 64, shape.inputs)
        data = random_blocks(self.kind, shape)
        ids = [
            weights.add_linear(f"w{i}", number, data, shape.outputs, shape.inputs)
            for i in range(self.layers)
        ]
        kv = _native.KvCache(1, 1, 16, "f16", 1)
        program = _native.Program(weights, kv)
        x = program.buffer("x", shape.inputs)
        y = program.buffer("y", shape.outputs)
        last = program.buffer("last", shape.inputs, "logits")
        program.embed(x, embedding)
        for weight in ids:
            program.linear([y], x, [weight])
        program.select_logit_rows(last, x)
        program.logits(last)
        self._player = _native.Player(program, max_m, 1, threads, isa)
        rng = np.random.default_rng(1)
        self._vectors: NDArray[np.float32] = rng.standard_normal(
            (max_m, shape.inputs), dtype=np.float32
        )
        self._pages: NDArray[np.int32] = np.zeros(1, np.int32)
        self._no_logits: NDArray[np.int32] = np.zeros(1, np.int32)

    @property
    def isa(self) -> str:
        return self._player.isa

    @property
    def threads(self) -> int:
        return self._player.threads

    def step(self, m: int) -> None:
        """m rows through all layers."""
        self._player.forward(
            -1 - np.arange(m, dtype=np.int32),
            np.zeros((m, 3), np.int32),
            np.array([[m, 0, 0]], np.int32),
            self._pages,
            self._no_logits,
            self._vectors[:m],
        )


def random_blocks(kind: str, shape: Shape) -> NDArray[np.uint8]:
    """Valid blocks of a layer [outputs, inputs] as bytes."""
    rng = np.random.default_rng(0)
    count = shape.inputs * shape.outputs
    if kind in _FLOATS:
        values = np.resize(rng.standard_normal(1 << 16, dtype=np.float32) * 0.02, count)
        if kind == "F16":
            return values.astype(np.float16).view(np.uint8)
        if kind == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.view(np.uint8)
    number = next(n for n, t in GGML_TYPES.items() if t.name == kind)
    block = GGML_TYPES[number]
    few = rng.integers(0, 256, (1 << 12, block.block_bytes), dtype=np.uint8)
    if kind == "MXFP4":
        few[:, 0] = 120  # 2^(e - 128)
    for offset in _SCALES[kind]:
        few[:, offset : offset + 2] = np.array([0.01], np.float16).view(np.uint8)
    return np.resize(few, (count // block.block_elems, block.block_bytes)).reshape(-1)


def measure_case(
    case: KernelCase,
    ms: Sequence[int],
    rounds: int,
    bandwidth: ReadBandwidth,
    clock: Callable[[], float] = time.perf_counter,
) -> CaseResult:
    """Medians of `rounds` interleaved rounds over all m; 1 is measured even if not in `ms`."""
    order = sorted({1, *ms})
    times: dict[int, list[float]] = {m: [] for m in order}
    for m in order:
        case.step(m)  # warm-up: pages, threads, kernels
    for _ in range(rounds):
        for m in order:
            begin = clock()
            case.step(m)
            times[m].append(clock() - begin)
    plain = median(times[1])
    nbytes = case.layers * case.layer_bytes
    rows = tuple(_row(m, times, plain, nbytes, case.layers, bandwidth) for m in order)
    return CaseResult(
        type=case.kind,
        shape=str(case.shape),
        layers=case.layers,
        layer_bytes=case.layer_bytes,
        isa=case.isa,
        threads=case.threads,
        rows=rows,
        plain_seconds=tuple(times[1]),
    )


def _row(
    m: int,
    times: Mapping[int, Sequence[float]],
    plain: float,
    nbytes: int,
    layers: int,
    bandwidth: ReadBandwidth,
) -> RowResult:
    seconds = median(times[m])
    rate = gb_per_second(nbytes, seconds)
    return RowResult(
        m=m,
        seconds=seconds,
        gb_per_second=rate,
        share=ratio(rate, bandwidth.gb_per_second),
        verify_cost=ratio(seconds, plain),
        rows_per_second=ratio(m * layers, seconds),
    )


def default_total_bytes() -> int:
    """Eight times the last-level cache, at most 512 MiB."""
    return min(8 * last_level_cache_bytes(), MAX_TOTAL_BYTES)
