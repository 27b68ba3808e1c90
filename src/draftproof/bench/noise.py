"""Was the machine ours while we measured? Reads /proc; measures nothing itself.

A shared machine has other processes, a hypervisor that takes time away ("steal"), and modes in
which all memory is slower for minutes. A figure taken then isn't wrong, but it isn't the machine's:
results carry the reasons for doubt with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftproof.bench.metrics import median

MAX_OTHER_CPU = 0.05  # share of all CPUs' time that others may use
MAX_STEAL = 0.02
MAX_DRIFT = 1.10  # slowest ÷ fastest plain step (medians over parts of the run)

_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot or start, summed over CPUs. busy: everything but idle and waiting,
    steal: taken by the hypervisor, own: this process. wall: a clock."""

    busy: float
    steal: float
    own: float
    wall: float
    cpus: int


def cpu_times(stat: Path = _STAT) -> CpuTimes | None:
    """None where the system doesn't say. Fields of the first line: man 5 proc_stat."""
    try:
        lines = stat.read_text("ascii", "replace").splitlines()
        ticks = [int(word) for word in lines[0].split()[1:9]]
        user, nice, system, _, _, irq, softirq, steal = ticks
    except (OSError, ValueError, IndexError):
        return None
    second = os.sysconf("SC_CLK_TCK")
    cpus = sum(line.startswith("cpu") for line in lines) - 1
    own = os.times()
    return CpuTimes(
        busy=(user + nice + system + irq + softirq) / second,
        steal=steal / second,
        own=own.user + own.system,
        wall=time.monotonic(),
        cpus=max(cpus, 1),
    )


def load_reasons(before: CpuTimes | None, after: CpuTimes | None) -> list[str]:
    """Why figures taken between two readings deserve doubt; empty: no reason."""
    if before is None or after is None:
        return []
    capacity = (after.wall - before.wall) * after.cpus
    if capacity <= 0:
        return []
    reasons = []
    others = (after.busy - before.busy - (after.own - before.own)) / capacity
    if others > MAX_OTHER_CPU:
        reasons.append(f"other processes used {100 * others:.0f} % of the CPU time")
    steal = (after.steal - before.steal) / capacity
    if steal > MAX_STEAL:
        reasons.append(f"the hypervisor took {100 * steal:.0f} % of the CPU time")
    return reasons


def drift(plain_steps: Sequence[float], parts: int = 3) -> float:
    """Slowest ÷ fastest median over consecutive parts of the run; 1 for too few steps.

    Medians, so that single interruptions don't count; parts, so that a slow mode does."""
    size = len(plain_steps) // parts
    if size == 0:
        return 1.0
    medians = [median(plain_steps[i * size : (i + 1) * size]) for i in range(parts)]
    return max(medians) / min(medians) if min(medians) > 0 else 1.0


def drift_reasons(plain_steps: Sequence[float]) -> list[str]:
    """plain_steps: times of the same work in the order of measuring."""
    factor = drift(plain_steps)
    if factor <= MAX_DRIFT:
        return []
    return [f"the same step took between 1 and {factor:.2f} times as long: a slow mode, or load"]


class Watch:
    """Watches the load from its creation until `reasons` is asked."""

    def __init__(self) -> None:
        self._before = cpu_times()

    def reasons(self, plain_steps: Sequence[float] = ()) -> list[str]:
        return load_reasons(self._before, cpu_times()) + drift_reasons(plain_steps)
