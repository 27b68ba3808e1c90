"""Threads that the system refuses to start: an error, not the end of the process. Threads that
stayed behind when the process forked: nobody waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


_FORK = """
import os, sys
from programs import Bench
bench = Bench(16)
bench.show((bench.x, 16))
player = bench.player("scalar", 3)
pid = os.fork()
if pid == 0:
    bench._players.clear()
    del player
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


def test_a_forked_child_ends_without_the_threads() -> None:
    folder = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(folder.parent)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
