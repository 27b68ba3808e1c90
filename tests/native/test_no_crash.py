"""Calls that a careless caller could crash the process with: an error or a right answer instead.

Each runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

_PRELUDE = """
import numpy as np
from draftproof._native import KvCache, Player, Program, Weights

weights, kv = Weights(1 << 24), KvCache(1, 1, 16, "f32", 4)
program = Program(weights, kv)
x = program.buffer("x", 16)
table = weights.add_linear("t", 0, np.ones((5, 16), np.float32), 5, 16)
program.embed(x, table)

def finish(buffer, width):
    out = program.buffer("out", width, "logits")
    program.select_logit_rows(out, buffer)
    program.logits(out)

def play(player, rows=4):
    every = np.arange(rows, dtype=np.int32)
    zeros = np.zeros((rows + 63) // 64, np.int32)
    segments = np.array([[rows, 0, 0]], np.int32)
    player.forward(every * 0, np.zeros((rows, 3), np.int32), segments, zeros, every)
    return player.logits()

try:
"""
_EPILOGUE = """
except (ValueError, TypeError, MemoryError) as error:
    print(type(error).__name__)
else:
    print("fine")
"""


def outcome_of(code: str) -> str:
    """What a process says that runs the code: "fine", an error's name, or how it died."""
    body = "\n".join(f"    {line}" for line in code.strip().splitlines())
    run = subprocess.run(
        [sys.executable, "-c", _PRELUDE + body + _EPILOGUE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stdout.strip() if run.returncode == 0 else f"exit {run.returncode} {run.stderr}"


def once_crashed(code: str, reason: str, *allowed: str) -> Any:
    """A call that once ended the process, and why: `reason` is for the reader."""
    assert reason
    return pytest.param(code, allowed or ("ValueError",))


CALLS = {
    "many outputs": once_crashed(
        """
outs = [program.buffer("y", 5) for _ in range(40)]
program.linear(outs, x, [table] * 40)
finish(outs[-1], 5)
assert (play(Player(program, 4, 4, 2)) == 16).all()
""",
        "player.cpp: 4 sections per operation, but linear takes 1 + its number of weights",
        "fine",
        "ValueError",
    ),
    "recording after the player was made": once_crashed(
        """
finish(x, 16)
player = Player(program, 4, 4, 1)
y = program.buffer("y", 5)
program.linear([y], x, [table])
assert (play(player) == 1).all()
""",
        "player.cpp: base_ and strides_ are laid out once, the operations are read anew",
        "fine",
        "ValueError",
    ),
    "attention with two group sizes": once_crashed(
        """
wide = program.buffer("wide", 128)
program.linear([wide], x, [weights.add_linear("w", 0, np.ones((128, 16), np.float32), 128, 16)])
mixed, narrow = program.buffer("mixed", 128), program.buffer("narrow", 16)
program.attention(mixed, wide, x, x, 0)
program.attention(narrow, x, x, x, 0)
finish(mixed, 128)
assert np.isfinite(play(Player(program, 200, 200, 1), 200)).all()
""",
        "player.cpp: tiles are planned for one group size; the other overruns scores and partial",
        "fine",
        "ValueError",
    ),
    "a KV cache of 2^64 bytes": once_crashed(
        """
KvCache(4096, 4096, 1024, "f32", 1 << 21).copy_page(0, 5)
""",
        "kv_cache.cpp: total_bytes wraps around to 0",
        "ValueError",
        "MemoryError",
    ),
    "ten million packing threads": once_crashed(
        "Weights(1000, 10_000_000)", "weights.cpp doesn't check threads; std::terminate"
    ),
    "ten million threads": once_crashed(
        "finish(x, 16)\nPlayer(program, 4, 4, 10_000_000)",
        "player.cpp checks threads after pool_ has started them; std::terminate",
    ),
    "no packing threads": pytest.param("Weights(1000, -5)", ("fine", "ValueError")),
    "more memory than there is": pytest.param("Weights(1 << 62)", ("MemoryError",)),
    "calls in the wrong order": pytest.param(
        """
finish(x, 16)
player = Player(program, 4, 4, 2)
assert player.logits().shape == (0, 16)
z = lambda dtype: np.zeros(0, dtype)
f, u = np.float32, np.uint32
assert len(player.sample(z(f), z(np.int32), z(f), z(f), z(np.uint64), z(u), z(u), 16)) == 0
""",
        ("fine",),
    ),
    "a view outlives its player": pytest.param(
        """
import gc
finish(x, 16)
view = play(Player(program, 4, 4, 2))
del program, weights, kv
gc.collect()
assert (view == 1).all()
""",
        ("fine",),
    ),
    "weights added later": pytest.param(
        """
finish(x, 16)
player = Player(program, 4, 4, 2)
for _ in range(100):
    weights.add_vector("v", np.zeros(1000, np.float32))
assert (play(player) == 1).all()
""",
        ("fine",),
    ),
}


@pytest.mark.parametrize(("code", "allowed"), CALLS.values(), ids=CALLS)
def test_no_call_crashes(code: str, allowed: tuple[str, ...]) -> None:
    assert outcome_of(code) in allowed
