"""Where the real model files of the tests lie."""

from __future__ import annotations

import os
from pathlib import Path


def cached_model(name: str) -> Path | None:
    """The path of a model file in Draftproof's cache, None if it isn't there."""
    if cache := os.environ.get("DRAFTPROOF_CACHE"):
        root = Path(cache)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftproof"
    path = root / "models" / name
    return path if path.is_file() else None
