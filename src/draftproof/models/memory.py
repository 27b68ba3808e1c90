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
    """What the cgroups from this process's own up to the root still allow; None without a limit.

    Page cache that can be dropped (`inactive_file`) doesn't count as used. Reads version 2, and the
    memory controller of version 1.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    left = []
    for line in lines:
        _, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
        folder = root / path.lstrip("/")
        while True:
            left.append(_left(folder))
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    known = [n for n in left if n is not None]
    return min(known) if known else None


def _left(folder: Path) -> int | None:
    v2 = (folder / "memory.max").exists()
    names = (
        ("memory.max", "memory.current")
        if v2
        else (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        )
    )
    try:
        limit, used = (int((folder / name).read_text()) for name in names)
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        droppable = int(stat.get("inactive_file", 0))
    except (OSError, ValueError):  # no such controller, or "max"
        return None
    return max(0, limit - used + droppable)
