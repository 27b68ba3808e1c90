"""`draftproof doctor`: what this machine offers and what Draftproof makes of it.

Only looks: loads no model, changes nothing. Works, and says so, where the C++ part is missing.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftproof import catalogue
from draftproof.cli.models import catalogue_rows
from draftproof.cli.terminal import print_json
from draftproof.config import default_threads

_CGROUP = Path("/sys/fs/cgroup")


def memory_limit(cgroup_root: Path = _CGROUP, own: str | None = None) -> int | None:
    """Bytes that the control group allows (cgroup-v2 `memory.max`), None = no limit."""
    found = [_read(folder / "memory.max") for folder in _cgroup_levels(cgroup_root, own)]
    return min((int(text) for text in found if text.isdigit()), default=None)


def _cgroup_levels(root: Path, own: str | None) -> list[Path]:
    """The folder of this process's group and all above it; in a container often the root alone."""
    if own is None:
        lines = _read(Path("/proc/self/cgroup")).splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = root / own.strip("/")
    return [folder, *(above for above in folder.parents if above.is_relative_to(root))]


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    values = {}
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name] = int(words[0]) * 1024
    return values


def cpu_name() -> str:
    """The model of the CPU, as the system names it."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# Every row that a build for this kind of machine has.
_ROWS = {
    "x86_64": ("scalar", "avx2", "avx512", "amx"),
    "aarch64": ("scalar", "neon", "neon_i8mm"),
}


def missing_rows(rows: Sequence[str]) -> list[str]:
    """What a build for this kind of machine has and this machine can't run."""
    return [row for row in _ROWS.get(platform.machine(), ()) if row not in rows]


def _kernels() -> dict[str, Any]:
    forced = os.environ.get("DRAFTPROOF_ISA", "")
    try:
        from draftproof import _native
    except ImportError as error:
        return {"built": False, "problem": str(error)}
    rows = list(_native.isa_rows())
    result: dict[str, Any] = {
        "built": True,
        "arithmetic_version": _native.ARITHMETIC_VERSION,
        "cpu_features": dict(_native.cpu_features()),
        "isa_rows": rows,
        "isa_rows_missing": missing_rows(rows),
        "isa": rows[-1],
        "isa_reason": "the best row that this machine can run",
    }
    if forced and forced in rows:
        result.update(isa=forced, isa_reason="forced by DRAFTPROOF_ISA")
    elif forced:
        result["problem"] = (
            f"DRAFTPROOF_ISA={forced} can't run here: loading a model will fail; "
            f"unset it or choose one of {', '.join(rows)}"
        )
    try:
        _native.probe_arithmetic()
    except RuntimeError as error:
        result["problem"] = str(error)
    return result


def _cores() -> dict[str, Any]:
    """The threads a model gets without --threads, and why so many."""
    allowed = len(os.sched_getaffinity(0))
    threads = default_threads()
    reason = "the cores that this process may run on"
    if threads < allowed:
        reason = f"the CPU quota of the control group, less than the {allowed} cores allowed"
    return {
        "machine": os.cpu_count(),
        "affinity": allowed,
        "threads": threads,
        "reason": reason,
    }


def report() -> dict[str, Any]:
    """Everything `doctor` knows, JSON-ready. Sizes in bytes."""
    memory = _meminfo()
    return {
        "version": version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "kernels": _kernels(),
        "cores": _cores(),
        "memory": {
            "total_bytes": memory.get("MemTotal"),
            "available_bytes": memory.get("MemAvailable"),
            "cgroup_limit_bytes": memory_limit(),
        },
        "cache_dir": str(catalogue.cache_dir()),
        "models": catalogue_rows(),
    }


def version() -> str:
    """Of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("draftproof")
    except PackageNotFoundError:
        return "not installed"


def _gigabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**30:.1f} GiB"


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    kernels, cores, memory = facts["kernels"], facts["cores"], facts["memory"]
    lines = [
        ("Draftproof", f"{facts['version']}, Python {facts['python']}, {facts['system']}"),
        ("CPU", facts["cpu"]),
    ]
    if kernels["built"]:
        features = [name for name, there in kernels["cpu_features"].items() if there]
        rows = " < ".join(kernels["isa_rows"])
        missing = kernels["isa_rows_missing"]
        absent = f"; not on this machine: {', '.join(missing)}" if missing else ""
        lines += [
            ("Features", " ".join(features) or "none that matter here"),
            ("Kernels", f"{kernels['isa']}: {kernels['isa_reason']} (rows: {rows}{absent})"),
            ("Arithmetic", f"version {kernels['arithmetic_version']}"),
        ]
    if "problem" in kernels:
        lines.append(("Problem", kernels["problem"]))
    limit = memory["cgroup_limit_bytes"]
    free = f"{_gigabytes(memory['available_bytes'])} free of {_gigabytes(memory['total_bytes'])}"
    lines += [
        ("Threads", f"{cores['threads']}: {cores['reason']} (machine: {cores['machine']})"),
        ("Memory", free + (f", limited to {_gigabytes(limit)}" if limit is not None else "")),
        ("Cache", facts["cache_dir"]),
    ]
    lines += [(f"  {row['name']}", row["state"]) for row in facts["models"]]
    return lines


def show_doctor(as_json: bool) -> int:
    """Prints the report; the exit code is 1 if something would keep a model from running."""
    facts = report()
    if as_json:
        print_json(facts)
    else:
        for name, value in _lines(facts):
            print(f"{name:<22}{value}")
        sys.stdout.flush()
    return 1 if "problem" in facts["kernels"] else 0
