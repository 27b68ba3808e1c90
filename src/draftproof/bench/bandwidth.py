"""How fast this process can read memory: the yardstick of every GB/s here.

Measures a plain read of one buffer far larger than the caches, shared between threads, by numpy
reductions (they release the GIL and are vectorised). Several reductions are tried and the fastest
counts, since the slower ones are bound by arithmetic. It is a lower bound of what the memory can
do: a kernel with better prefetching may come out above 1.0 of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.bench.metrics import gb_per_second, median

BUFFER_BYTES = 512 << 20
ROUNDS = 5

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_REDUCTIONS: tuple[tuple[str, type[np.generic], Callable[[NDArray[Any]], Any]], ...] = (
    ("maximum of int32", np.int32, np.max),
    ("maximum of float32", np.float32, np.max),
    ("sum of int64", np.int64, np.sum),
)


@dataclass(frozen=True)
class ReadBandwidth:
    """gb_per_second: median of the fastest reduction's rounds; best: its fastest round."""

    gb_per_second: float
    best: float
    reduction: str
    buffer_bytes: int
    threads: int


def last_level_cache_bytes(folder: Path = _CACHES) -> int:
    """Size of the largest cache of CPU 0; 32 MiB where the system doesn't say."""
    return max(map(_cache_bytes, folder.glob("index*/size")), default=0) or 32 << 20


def _cache_bytes(file: Path) -> int:
    try:
        text = file.read_text("ascii").strip()
        return int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)
    except (OSError, ValueError):
        return 0


def read_bandwidth(
    threads: int, buffer_bytes: int = BUFFER_BYTES, rounds: int = ROUNDS
) -> ReadBandwidth:
    """Takes about half a second at 30 GB/s, and `buffer_bytes` of memory meanwhile."""
    buffer = np.zeros(buffer_bytes, np.uint8)
    buffer[:] = 1  # real pages: untouched ones are all the same page of zeros
    best: ReadBandwidth | None = None
    with ThreadPoolExecutor(threads) as pool:
        for name, kind, reduce in _REDUCTIONS:
            parts = np.array_split(buffer.view(kind), threads)
            rates = [
                gb_per_second(buffer_bytes, _timed(pool, reduce, parts)) for _ in range(rounds)
            ]
            result = ReadBandwidth(median(rates[1:]), max(rates), name, buffer_bytes, threads)
            if best is None or result.gb_per_second > best.gb_per_second:
                best = result
    assert best is not None  # the table of reductions isn't empty
    return best


def _timed(
    pool: ThreadPoolExecutor,
    reduce: Callable[[NDArray[Any]], Any],
    parts: Sequence[NDArray[Any]],
) -> float:
    begin = time.perf_counter()
    list(pool.map(reduce, parts))
    return time.perf_counter() - begin
