"""The rows of the dispatch table, for tests: which there are, and which this machine lacks."""

from __future__ import annotations

import importlib
import platform
from typing import Any

# Every row that any build may have, by machine; which are there, the native side says.
KNOWN_ROWS = {
    "x86_64": ("scalar", "avx2", "avx512", "amx"),
    "aarch64": ("scalar", "neon", "neon_i8mm"),
}


def native() -> Any | None:
    """The extension, or None where it hasn't been built: tests that need it then fail to import."""
    try:
        return importlib.import_module("draftproof._native")
    except ImportError:
        return None


def isa_rows() -> list[str]:
    """Rows of the dispatch table on this machine, slowest first."""
    extension = native()
    return list(extension.isa_rows()) if extension is not None else ["scalar"]


def missing_rows() -> list[str]:
    rows = isa_rows()
    return [row for row in KNOWN_ROWS.get(platform.machine(), ()) if row not in rows]
