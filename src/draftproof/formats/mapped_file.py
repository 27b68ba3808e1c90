"""One read-only file: opened with care, mapped into memory, handed out as views.

Owns the mapping. Knows no format.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from draftproof.errors import ModelFileError, ModelNotFoundError


def file_label(path: Path) -> str:
    """The file's name as it may stand in a one-line message."""
    return path.name if path.name.isprintable() and path.name else repr(str(path))


def open_regular(path: Path, wanted: str) -> tuple[int, int]:
    """(file descriptor, size) of a regular file; `wanted` says in messages what to give instead.

    Raises ModelNotFoundError if there is no such file, ModelFileError if it can't be opened or is
    something else.
    """
    label = file_label(path)
    try:
        # Without O_NONBLOCK opening a named pipe would wait for a writer forever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise ModelNotFoundError(f"{label}: no such file; check the path") from None
    except OSError as error:
        raise ModelFileError(
            f"{label}: can't be opened ({error.strerror}); check the rights of the file"
        ) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        kind = "is a directory" if stat.S_ISDIR(status.st_mode) else "isn't a regular file"
        raise ModelFileError(f"{label}: {kind}; give the path of {wanted}")
    return fd, status.st_size


class MappedFile:
    """The bytes of an open regular file. Views handed out stay valid after `close`, which then only
    drops this object's own hold on the mapping."""

    def __init__(self, fd: int, size: int, label: str) -> None:
        """Maps `fd`, which may be closed afterwards. Raises ModelFileError."""
        self._size = size
        self._label = label
        try:
            self._map: mmap.mmap | None = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFileError(
                f"{label}: can't be mapped into memory ({error}); check that nothing else writes"
                " the file and that memory isn't limited"
            ) from None

    def close(self) -> None:
        """Drop the mapping; it goes when the last view of it goes. May be called twice."""
        mapping, self._map = self._map, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                # Views are still held; they keep the mapping alive and free it when they go.
                return

    def view(self, offset: int, nbytes: int, what: str) -> memoryview:
        """Bytes offset .. offset + nbytes, which the caller knows to be inside; `what` names them.

        Raises ModelFileError if the file has become shorter since it was opened: touching a page
        past the end would kill the process. A file that shrinks while a view is in use can't be
        caught.
        """
        mapping = self._opened()
        size = mapping.size()
        if size < self._size:
            raise ModelFileError(
                f"{self._label}: became shorter after it was opened ({size} bytes, was"
                f" {self._size}), found at {what}; don't write to a model file in use; restore it"
                " and load it again"
            )
        return memoryview(mapping)[offset : offset + nbytes]

    def release(self, offset: int, nbytes: int) -> None:
        """Give the resident pages of a range back; a later `view` reads them from disk again."""
        start = offset - offset % mmap.PAGESIZE
        self._opened().madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)

    def _opened(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError("the file is closed")
        return self._map
