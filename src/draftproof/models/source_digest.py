"""sha256 of a model file, computed once per state of the file and remembered in the cache folder.

The fingerprint needs the bytes themselves: two fine-tunes may agree in every header field.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from draftproof import catalogue
from draftproof.models.source import ModelSource


class Digesting:
    """A digest that is computed while something else goes on: hashing reads the file from front to
    end, so the pages that the packing wants next are there already, and nothing is read twice."""

    def __init__(self, digest: Callable[[ModelSource], str], source: ModelSource) -> None:
        self._digest: str | None = None
        self._error: OSError | None = None
        # A daemon: a load that fails must not wait for it.
        self._thread = threading.Thread(target=self._run, args=(digest, source), daemon=True)
        self._thread.start()

    def _run(self, digest: Callable[[ModelSource], str], source: ModelSource) -> None:
        try:
            self._digest = digest(source)
        except OSError as error:
            self._error = error

    def result(self) -> str:
        """Waits for it. Raises the OSError of a file that can't be read."""
        self._thread.join()
        if self._digest is None:
            raise self._error or RuntimeError("the digest's thread ended without one")
        return self._digest


def source_digest(source: ModelSource) -> str:
    """Hex sha256 of all bytes that decide what the model computes."""
    if len(source.files) == 1:
        return file_digest(source.files[0])
    lines = [f"{path.name} {file_digest(path)}\n" for path in source.files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Hex sha256 of the file; remembered by place, size and time of change."""
    status = path.stat()
    state = f"{path.resolve()}\n{status.st_size} {status.st_mtime_ns} {status.st_ino}"
    note = catalogue.cache_dir() / "digests" / hashlib.sha256(state.encode()).hexdigest()[:32]
    try:
        known = note.read_text().strip()
        if len(known) == 64:
            return known
    except OSError:
        pass
    sha256 = hashlib.sha256()
    chunk = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as source:
        while n := source.readinto(chunk):
            sha256.update(chunk[:n])
    digest = sha256.hexdigest()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{os.getpid()}")
        partial.write_text(digest + "\n")
        partial.replace(note)
    except OSError:
        pass  # an unwritable cache costs a second next time, nothing else
    return digest
