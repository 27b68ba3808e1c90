"""How much memory this process may still take. Reads the system; decides nothing."""

from __future__ import annotations

from pathlib import Path


def available_bytes() -> int | None:
    """The smaller of the machine's available memory and what the cgroup leaves; None if unknown."""
    known = [n for n in (_meminfo(), _cgroup()) if n is not None]
    return min(known) if known else None


def _meminfo() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup() -> int | None:
    root = Path("/sys/fs/cgroup")
    pairs = (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    )
    for limit, used in pairs:
        left = _left(limit, used)
        if left is not None:
            return left
    return None


def _left(limit: Path, used: Path) -> int | None:
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no such version of cgroups, or "max"
        return None
