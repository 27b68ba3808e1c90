"""V(m): the time of an m-row step divided by the time of a 1-row step, on this machine, for this
model. Measured once as a prior, then learned from every real step.

Owns the estimate and its file. Doesn't know what is drafted, nor why a step has m rows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from draftproof._native import KvCache, Player

GRID = (1, 2, 4, 8, 16, 32, 64)
REPETITIONS = 3
MAX_SECONDS = 3.0
MAX_PLAIN_STEPS = 40
NOISY_SPREAD = 1.25  # slowest / fastest repetition of a grid point above which nothing is certain
STALE_BEYOND = 1.25  # plain step now / then: beyond it an earlier measurement is done again
MAX_ROWS = GRID[-1]

# Before anything is measured: a 2-core x86 machine with a 4-bit model of 1.5 billion weights.
TYPICAL_COSTS = {1: 1.0, 2: 1.06, 4: 1.2, 8: 1.6, 16: 2.5, 32: 4.4, 64: 8.2}

_FORMAT = 1
_BUCKETS = 5  # contexts below 512, 2048, 8192, 32768, and longer ones
_SHORTEST_STEP, _LONGEST_STEP = 1e-8, 1e4  # seconds; anything else is a broken clock
# What is believed of a surprise, log(seconds / expected), in variances of logarithms.
_NOISE = 0.02  # of one step
_DRIFT = 0.003  # of the machine's speed, per step
_MOST_DRIFT = 0.3
_DOUBT = 0.02  # of the machine's speed once something has changed, per step without a plain one
_SHAPE = 0.1  # of the prior V(m) against the true one
_OUTLIER = math.log(1.5)  # a surprise beyond it counts as no more, unless the next one agrees
_UNSURE_AFTER = 100  # steps of several rows with no plain step between them
_UNSURE_BEYOND = 0.15  # logarithm of a plain step's time, moved by steps of several rows
_FORGET = 0.998  # what an observation still weighs one step later: half after 350 steps
_MAX_WEIGHT = 8.0  # of all observations at one m
_PRIOR_WEIGHT = 0.25  # of the prior, in observations
_NEIGHBOUR = 0.5  # what an observation at m says about m + 1, falling to nothing at m * 4 and m / 4


@dataclass(frozen=True)
class Measurement:
    """A seed grid. plain_seconds: a 1-row step. costs: m -> V(m), V(1) = 1, ascending in both.
    spread: slowest / fastest repetition, the worst of all grid points."""

    plain_seconds: float
    costs: Mapping[int, float]
    spread: float = 1.0

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY_SPREAD

    def to_dict(self) -> dict[str, Any]:
        return {
            "plain_step_ms": 1000 * self.plain_seconds,
            "verify_cost": {str(m): cost for m, cost in self.costs.items()},
            "spread": self.spread,
            "noisy": self.noisy,
        }


def measure(
    player: Player,
    kv: KvCache,
    *,
    vocab_size: int,
    pages: Sequence[int] | None = None,
    grid: Sequence[int] = GRID,
    repetitions: int = REPETITIONS,
    clock: Callable[[], float] = time.perf_counter,
    known: Measurement | None = None,
) -> Measurement:
    """Plays `repetitions` rounds of m-row steps, m in `grid`, on scratch pages: what they held is
    lost. pages: enough for 64 positions; None = the first ones. known: an earlier measurement,
    returned if a plain step still takes as long, because V(m) changes with the memory's speed.

    Takes at most max(MAX_SECONDS, MAX_PLAIN_STEPS plain steps): grid points beyond that are left
    out. A median of each point is kept.
    """
    wanted = sorted({1, *grid})
    needed = -(-wanted[-1] // kv.page_positions)
    table = np.asarray(range(needed) if pages is None else pages, np.int32)
    if len(table) < needed:
        raise ValueError(f"{wanted[-1]} rows need {needed} scratch pages, got {len(table)}")

    def seconds(m: int) -> float:
        start = clock()
        _play(player, m, table, vocab_size)
        return clock() - start

    seconds(1)  # wakes the threads and touches the pages
    plain = seconds(1)
    if known is not None:
        now = statistics.median((plain, seconds(1), seconds(1)))
        if 1 / STALE_BEYOND < now / known.plain_seconds < STALE_BEYOND:
            return known
    budget = max(MAX_SECONDS, MAX_PLAIN_STEPS * plain)
    times: dict[int, list[float]] = {1: [plain]}
    last, spent = plain, 2 * plain
    for m in wanted[1:]:
        # A step of m rows takes at most twice one of m / 2: known before it is tried.
        expected = last * m / max(times)
        if spent + (repetitions - 1) * (spent - plain) + repetitions * expected > budget:
            break
        last = seconds(m)
        spent += last
        times[m] = [last]
    for _ in range(repetitions - 1):
        for m, taken in times.items():
            taken.append(seconds(m))
    medians = {m: statistics.median(taken) for m, taken in times.items()}
    spread = max(max(taken) / max(min(taken), 1e-9) for taken in times.values())
    plain = max(medians[1], 1e-9)
    costs: dict[int, float] = {}
    highest = 1.0
    for m, median in medians.items():
        highest = max(highest, median / plain)
        costs[m] = highest
    return Measurement(plain, costs, spread)


def _play(player: Player, m: int, pages: NDArray[np.int32], vocab_size: int) -> None:
    """One greedy step of m rows at positions 0..m-1, sampler included, as a verify step has it."""
    rows = np.arange(m, dtype=np.int32)
    positions = np.repeat(rows[:, None], 3, axis=1)
    segments = np.array([[m, 0, 0]], np.int32)
    player.forward(rows % np.int32(vocab_size), positions, segments, pages, rows)
    zeros = np.zeros(m, np.float32)
    index = rows.astype(np.uint32)
    player.sample(
        zeros,
        np.zeros(m, np.int32),
        np.ones(m, np.float32),
        zeros,
        np.zeros(m, np.uint64),
        index,
        np.zeros(m, np.uint32),
        vocab_size,
    )


# --- the file ------------------------------------------------------------------------------------


def cache_path(folder: Path, fingerprint: str, isa: str, threads: int) -> Path:
    """Where the measurement of this model (its fingerprint), machine, ISA and thread count lies."""
    key = json.dumps([_FORMAT, fingerprint, cpu_name(), os.cpu_count(), isa, threads])
    return folder / "verify_cost" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def cpu_name() -> str:
    """The CPU's model name, or what the system calls its kind."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            for line in info:
                if line.lower().startswith(("model name", "cpu part")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def measured_or_cached(
    path: Path,
    measured: Callable[[Measurement | None], Measurement],
    warn: Callable[[str], None],
) -> Measurement:
    """What `measured` makes of the file's measurement (None: there is none), written to the file if
    it is another. warn: gets one line where the file can't be written: then it is measured again
    next time."""
    known = load(path)
    measurement = measured(known)
    if measurement is known:
        return measurement
    try:
        save(path, measurement)
    except OSError as error:
        warn(
            f"can't write the measured verify cost to {path.parent} ({error.strerror or error}): "
            "it will be measured again at the next start"
        )
    return measurement


def save(path: Path, measurement: Measurement) -> None:
    """Writes the file whole or not at all. OSError where the folder can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(measurement.to_dict()) + "\n", "utf-8")
    partial.replace(path)


def load(path: Path) -> Measurement | None:
    """None where there is no file or it isn't one of ours: then it is measured anew."""
    try:
        value = json.loads(path.read_text("utf-8"))
        plain = float(value["plain_step_ms"]) / 1000
        costs = {int(m): float(cost) for m, cost in value["verify_cost"].items()}
        spread = float(value["spread"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    rising = list(costs.values())
    good = (
        len(costs) > 1
        and list(costs) == sorted(costs)
        and set(costs) <= set(range(1, MAX_ROWS + 1))
        and costs.get(1) == 1.0
        and rising == sorted(rising)
        and all(math.isfinite(x) for x in (plain, spread, *rising))
        and plain > 0
        and spread >= 1
    )
    return Measurement(plain, costs, spread) if good else None


# --- the estimate --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Bucket:
    """What real steps of one range of contexts have shown. plain: seconds of a 1-row step, 0 =
    unknown, with its variance at step plain_stamp. surprise[m]: log(V(m) / prior V(m)) as last
    seen, weight[m]: its weight in observations at step stamp[m]. table[m]: V(m), made when asked
    for."""

    plain: float = 0.0
    variance: float = _MOST_DRIFT
    plain_stamp: int = 0
    surprise: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_ROWS + 1))
    weight: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_ROWS + 1))
    stamp: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_ROWS + 1))
    table: list[float] | None = None


class VerifyCost:
    """V(m) by context, learned from real steps; `measurement` is the prior (None: TYPICAL_COSTS).

    A step that takes another time than expected speaks of the machine's speed, which drifts, and of
    V(m), which the prior may have wrong; both are moved by their shares of the doubt (two scalar
    Kalman filters). So a machine that turns slow is noticed even while every step drafts. What was
    seen at m also moves its neighbours, and fades with the steps that follow.
    """

    def __init__(self, measurement: Measurement | None = None) -> None:
        self.use(measurement)

    def use(self, measurement: Measurement | None) -> None:
        """Takes another prior and forgets what was learned."""
        self.measurement = measurement
        costs = TYPICAL_COSTS if measurement is None else measurement.costs
        self._prior = np.array([0.0, *(_interpolate(costs, m) for m in range(1, MAX_ROWS + 1))])
        self._buckets = [_Bucket() for _ in range(_BUCKETS)]
        self._steps = 0
        self._last = 0.0  # surprise
        self._since_plain = 0  # steps of several rows
        self._was_change = False
        self._drifted = 0.0  # log of what steps of several rows made of the plain step's time

    def cost(self, m: int, context: int = 0) -> float:
        """V(m) >= 1 for m >= 1 rows at `context` positions, V(1) = 1."""
        table = self.table(context)
        if m <= MAX_ROWS:
            return table[m]
        slope = (table[MAX_ROWS] - table[MAX_ROWS // 2]) / (MAX_ROWS // 2)
        return table[MAX_ROWS] + slope * (m - MAX_ROWS)

    def table(self, context: int = 0) -> list[float]:
        """[m] -> V(m), m in 1..64; not to be changed. For many questions at once."""
        bucket = self._buckets[_bucket(context)]
        if bucket.table is None:
            bucket.table = self._estimate(bucket)
        return bucket.table

    def observe(self, m: int, context: int, seconds: float) -> None:
        """A real step of m rows of one sequence took `seconds`."""
        if not _SHORTEST_STEP < seconds < _LONGEST_STEP or not 1 <= m <= MAX_ROWS:
            return
        self._steps += 1
        bucket = self._buckets[_bucket(context)]
        if not bucket.plain:
            self._begin(bucket, context, seconds if m == 1 else 0.0)
            if not bucket.plain:
                return
        drifted = bucket.variance + _DRIFT * (self._steps - bucket.plain_stamp)
        bucket.variance = min(drifted, _MOST_DRIFT)
        bucket.plain_stamp = self._steps
        cost = self.cost(m, context)
        surprise = math.log(seconds / (bucket.plain * cost))
        is_change = abs(surprise) > _OUTLIER < abs(self._last) and surprise * self._last > 0
        self._last = surprise
        if m == 1 and self.is_unsure:
            bucket.variance = _MOST_DRIFT  # this step was asked for: it is believed
        elif is_change:
            # The machine or V(m)? The longer ago the last plain step, the likelier the former.
            doubt_of_plain = min(_MOST_DRIFT, _DOUBT * self._since_plain)
            bucket.variance = max(bucket.variance, doubt_of_plain)
            bucket.weight *= 0.25
        else:
            surprise = max(-_OUTLIER, min(_OUTLIER, surprise))
        self._since_plain = 0 if m == 1 else self._since_plain + 1
        self._was_change = is_change and m > 1
        weight = float(bucket.weight[m]) * _FORGET ** (self._steps - float(bucket.stamp[m]))
        doubt = _SHAPE / (weight + 1.0) if m > 1 else 0.0
        total = bucket.variance + doubt + _NOISE
        share = bucket.variance / total
        bucket.plain *= math.exp(share * surprise)
        bucket.variance *= 1.0 - share
        self._drifted = self._drifted + share * surprise if m > 1 else 0.0
        if m > 1:
            seen = math.log(cost / self._prior[m]) + doubt / total * surprise
            bucket.surprise[m] = seen
            bucket.weight[m] = min(weight + 1.0, _MAX_WEIGHT)
            bucket.stamp[m] = self._steps
            bucket.table = None

    @property
    def is_unsure(self) -> bool:
        """Whether a plain step is needed to tell a slow machine from dear verify steps."""
        drifted = abs(self._drifted) > _UNSURE_BEYOND
        return drifted or self._was_change or self._since_plain >= _UNSURE_AFTER

    def _begin(self, bucket: _Bucket, context: int, seconds: float) -> None:
        """The first step in a range of contexts: what the nearest one knows is a start."""
        bucket.plain = self.plain_seconds(context) or seconds
        i = _bucket(context)
        known = [(abs(i - j), j) for j, other in enumerate(self._buckets) if other.weight.any()]
        if known:
            other = self._buckets[min(known)[1]]
            bucket.surprise[:] = other.surprise
            bucket.weight[:] = other.weight
            bucket.stamp[:] = other.stamp
            bucket.table = None

    def plain_seconds(self, context: int = 0) -> float:
        """A 1-row step at `context` positions; 0 as long as nothing is known."""
        i = _bucket(context)
        if self._buckets[i].plain:
            return self._buckets[i].plain
        known = [(abs(i - j), j) for j, bucket in enumerate(self._buckets) if bucket.plain]
        if known:
            return self._buckets[min(known)[1]].plain
        return self.measurement.plain_seconds if self.measurement is not None else 0.0

    def to_dict(self, context: int = 0) -> dict[str, Any]:
        """The estimate as it stands, at the grid points."""
        table = self.table(context)
        return {
            "plain_step_ms": 1000 * self.plain_seconds(context),
            "verify_cost": {str(m): table[m] for m in GRID},
            "measured": self.measurement is not None,
            "noisy": self.measurement is not None and self.measurement.noisy,
        }

    def _estimate(self, bucket: _Bucket) -> list[float]:
        weight = bucket.weight * _FORGET ** (self._steps - bucket.stamp)
        near = _NEARNESS @ (weight * bucket.surprise)
        surprise = near / (_NEARNESS @ weight + _PRIOR_WEIGHT)
        # Not forced to rise: seven rows may well cost more than eight, which fill a kernel's tile.
        table = np.maximum(self._prior * np.exp(surprise), 1.0)
        table[1] = 1.0
        costs: list[float] = table.tolist()
        return costs


def _bucket(context: int) -> int:
    return min(max(0, ((context >> 9).bit_length() + 1) // 2), _BUCKETS - 1)


def _interpolate(costs: Mapping[int, float], m: int) -> float:
    """Linear between the points, and beyond the last one as between the last two."""
    points = list(costs.items())
    for (a, low), (b, high) in itertools.pairwise(points):
        if m <= b or b == points[-1][0]:
            return low + (high - low) * (m - a) / (b - a)
    return 1.0


def _nearness() -> NDArray[np.float64]:
    """[m, j]: how much an observation at j says about m: 1 at j itself, less with the distance."""
    places = np.log2(np.maximum(np.arange(MAX_ROWS + 1), 1))
    distance = np.abs(places[:, None] - places[None, :])
    return np.where(distance == 0, 1.0, np.maximum(0.0, _NEIGHBOUR * (1.0 - distance / 2)))


_NEARNESS = _nearness()
