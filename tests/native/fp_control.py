"""The caller's floating-point environment, set and read by two instructions (x86-64).

Owns MXCSR of the calling thread, as a foreign library built with -ffast-math would set it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
from collections.abc import Callable, Iterator

DEFAULT = 0x1F80
FLUSH = 0x8040  # FTZ and DAZ
TOWARDS_ZERO = 0x6000
CONTROL_BITS = 0xFFC0  # without the sticky flags


def available() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def _function(code: bytes) -> Callable[[int], None]:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    call: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(start)
    _pages.append(page)
    return call


_pages: list[mmap.mmap] = []  # as long as the functions
if available():
    _load = _function(b"\x0f\xae\x17\xc3")  # ldmxcsr [rdi]; ret
    _store = _function(b"\x0f\xae\x1f\xc3")  # stmxcsr [rdi]; ret


def read() -> int:
    word = ctypes.c_uint32(0)
    _store(ctypes.addressof(word))
    return word.value


def write(value: int) -> None:
    word = ctypes.c_uint32(value)
    _load(ctypes.addressof(word))


@contextlib.contextmanager
def set_to(bits: int) -> Iterator[None]:
    """Default control bits plus these, inside the block."""
    before = read()
    write(DEFAULT | bits)
    try:
        yield
    finally:
        write(before)
