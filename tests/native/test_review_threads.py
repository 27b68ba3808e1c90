"""Threads that the system refuses to start: an error, not the end of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = """
import resource
from draftproof._native import Weights
resource.setrlimit(resource.RLIMIT_AS, (1_000_000_000,) * 2)
try:
    Weights(1 << 20, 400)
except (RuntimeError, MemoryError, OSError, ValueError) as error:
    print("refused", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS bounds thread stacks on Linux")
def test_threads_that_cannot_start_are_an_error() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("refused")
