"""Bad arguments: ValueError or TypeError, and nothing has been computed.

Calls that might crash the process are in test_no_crash.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from blocks import TYPES, weight_bytes
from programs import Bench, arrays, bits, play

from draftproof._native import KvCache, Player, Program, Weights

WIDTH = 32


@pytest.fixture
def bench() -> Bench:
    bench = Bench(WIDTH, head_dim=16, pages=2, table=(0, np.zeros(20 * WIDTH, np.uint8), 5))
    bench.show((bench.x, WIDTH))
    return bench


def call_of(rows: int, **changed: Any) -> dict[str, Any]:
    call = arrays(rows) | {"tokens": np.zeros(rows, np.int32)} | {"vectors": None}
    return call | changed


def i32(*values: Any) -> Any:
    return np.array(values, np.int32)


BAD_BATCHES: dict[str, dict[str, Any]] = {
    "token = vocabulary": {"tokens": i32(0, 5, 0, 0)},
    "greatest token": {"tokens": i32(0, 2**31 - 1, 0, 0)},
    "vector without vectors": {"tokens": i32(-1, 0, 0, 0)},
    "vector out of range": {
        "tokens": i32(-3, 0, 0, 0),
        "vectors": np.zeros((2, WIDTH), np.float32),
    },
    "least token": {"tokens": i32(-(2**31), 0, 0, 0)},
    "fewer tokens": {"tokens": i32(0, 0, 0)},
    "no rows": {
        "tokens": i32(),
        "positions": np.zeros((0, 3), np.int32),
        "segments": np.zeros((0, 3), np.int32),
        "logit_rows": i32(),
    },
    "negative position": {"positions": np.full((4, 3), -1, np.int32)},
    "two axes": {"positions": np.zeros((4, 2), np.int32)},
    "fewer positions": {"positions": np.zeros((3, 3), np.int32)},
    "flat positions": {"positions": np.zeros(12, np.int32)},
    "no segments": {"segments": np.zeros((0, 3), np.int32)},
    "segments too short": {"segments": i32([3, 0, 0])},
    "segments too long": {"segments": i32([5, 0, 0])},
    "an empty segment": {"segments": i32([4, 0, 0], [0, 0, 0])},
    "a negative segment": {"segments": i32([5, 0, 0], [-1, 0, 0])},
    "segments that overflow": {"segments": i32([2**31 - 1, 0, 0], [2**31 - 1, 0, 0], [6, 0, 0])},
    "negative KV index": {"segments": i32([4, -1, 0])},
    "KV index behind the table": {"segments": i32([4, 61, 0])},
    "greatest KV index": {"segments": i32([4, 2**31 - 1, 0])},
    "negative table entry": {"segments": i32([4, 0, -1])},
    "table entry behind the end": {"segments": i32([4, 0, 1])},
    "greatest table entry": {"segments": i32([4, 0, 2**31 - 1])},
    "four columns": {"segments": np.zeros((1, 4), np.int32)},
    "no pages": {"block_tables": i32()},
    "page = number of pages": {"block_tables": i32(2)},
    "negative page": {"block_tables": i32(-1)},
    "a bad page that nobody uses": {"block_tables": i32(0, 99)},
    "descending marks": {"logit_rows": i32(3, 2)},
    "equal marks": {"logit_rows": i32(1, 1)},
    "mark = rows": {"logit_rows": i32(4)},
    "negative mark": {"logit_rows": i32(-1)},
    "too many marks": {"logit_rows": np.arange(161, dtype=np.int32)},
    "narrow vectors": {"vectors": np.zeros((1, WIDTH - 1), np.float32)},
    "text": {"tokens": "hello"},
    "none": {"segments": None},
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_batches(bench: Bench, name: str) -> None:
    player = bench.player("scalar", 2)
    play(player, np.ones((3, WIDTH), np.float32))
    before = player.counters(), bits(player.logits()).tolist()
    with pytest.raises((ValueError, TypeError)):
        player.forward(**call_of(4, **BAD_BATCHES[name]))
    assert (player.counters(), bits(player.logits()).tolist()) == before
    player.forward(**call_of(4))  # and it works on


def test_more_rows_than_the_player_has(bench: Bench) -> None:
    with pytest.raises(ValueError, match=r"rows must be 1 \.\. 160"):
        bench.player("scalar").forward(**call_of(161))


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": np.array([2**32, 0, 0, 0], np.int64)},
        {"tokens": np.array([1.7, 0, 0, 0])},
        {"positions": np.zeros((4, 3), np.int64)},
        {"segments": np.array([[4, 0, 0]], np.int64)},
        {"block_tables": np.zeros(1, np.uint8)},
        {"vectors": np.zeros((1, WIDTH))},
    ],
    ids=["int64 tokens", "float tokens", "positions", "segments", "tables", "float64 vectors"],
)
def test_dtypes(bench: Bench, changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        bench.player("scalar").forward(**call_of(4, **changed))


@pytest.mark.parametrize(
    "vectors", [np.zeros(WIDTH, np.float32), "abc", 3], ids=["flat", "text", "number"]
)
def test_vectors_of_another_kind(bench: Bench, vectors: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        bench.player("scalar").forward(**call_of(4, vectors=vectors))


def recording_errors() -> dict[str, Callable[[Bench, dict[str, int]], Any]]:
    """b: a bench; w: some buffers and weights of known shapes."""
    turns, axes = np.zeros(8, np.uint64), np.zeros(8, np.uint8)
    return {
        "no such buffer": lambda b, w: b.program.linear([99], b.x, [w["square"]]),
        "negative buffer": lambda b, w: b.program.linear([w["y"]], -1, [w["square"]]),
        "no such weight": lambda b, w: b.program.linear([w["y"]], b.x, [99]),
        "a vector as weight": lambda b, w: b.program.linear([w["y"]], b.x, [w["vector"]]),
        "a weight as vector": lambda b, w: b.program.rms_norm(w["y"], b.x, w["square"], 1e-6),
        "a weight as bias": lambda b, w: b.program.linear(
            [w["y"]], b.x, [w["square"]], [w["square"]]
        ),
        "another bias": lambda b, w: b.program.linear([w["y"]], b.x, [w["square"]], [w["short"]]),
        "two biases": lambda b, w: b.program.linear([w["y"]], b.x, [w["square"]], [-1, -1]),
        "no outs": lambda b, w: b.program.linear([], b.x, []),
        "in place": lambda b, w: b.program.linear([b.x], b.x, [w["square"]]),
        "narrow out": lambda b, w: b.program.linear([w["narrow"]], b.x, [w["square"]]),
        "out of marked rows": lambda b, w: b.program.linear([w["marked"]], b.x, [w["square"]]),
        "residual = input": lambda b, w: b.program.linear([w["y"]], b.x, [w["square"]], [], b.x),
        "narrow residual": lambda b, w: b.program.linear(
            [w["y"]], b.x, [w["square"]], [], w["narrow"]
        ),
        "swiglu in place": lambda b, w: b.program.swiglu_linear(b.x, b.x, w["square"], w["square"]),
        "swiglu of two shapes": lambda b, w: b.program.swiglu_linear(
            w["y"], b.x, w["square"], w["flat"]
        ),
        "norm of another width": lambda b, w: b.program.rms_norm(
            w["narrow"], b.x, w["vector"], 1e-6
        ),
        "norm that doesn't divide": lambda b, w: b.program.rms_norm(w["y"], b.x, w["short"], 1e-6),
        "eps 0": lambda b, w: b.program.rms_norm(w["y"], b.x, w["vector"], 0.0),
        "eps nan": lambda b, w: b.program.rms_norm(w["y"], b.x, w["vector"], float("nan")),
        "second embedding": lambda b, w: b.program.embed(w["y"], w["square"]),
        "rope: odd": lambda b, w: b.program.rope([b.x], 15, turns[:7], axes[:7]),
        "rope: frequencies": lambda b, w: b.program.rope([b.x], 16, turns[:7], axes),
        "rope: axes": lambda b, w: b.program.rope([b.x], 16, turns, axes[:7]),
        "rope: axis 3": lambda b, w: b.program.rope([b.x], 16, turns, axes + np.uint8(3)),
        "rope: no whole heads": lambda b, w: b.program.rope([w["narrow"]], 16, turns, axes),
        "rope: nothing": lambda b, w: b.program.rope([], 16, turns, axes),
        "attention: layer": lambda b, w: b.program.attention(w["y"], b.x, w["head"], w["head"], 1),
        "attention: layer -1": lambda b, w: b.program.attention(
            w["y"], b.x, w["head"], w["head"], -1
        ),
        "attention: k": lambda b, w: b.program.attention(w["y"], b.x, b.x, w["head"], 0),
        "attention: q": lambda b, w: b.program.attention(
            w["narrow"], w["narrow"], w["head"], w["head"], 0
        ),
        "attention: marked": lambda b, w: b.program.attention(
            w["marked"], b.x, w["head"], w["head"], 0
        ),
        "select: other width": lambda b, w: b.program.select_logit_rows(w["marked"], w["narrow"]),
        "select: to batch rows": lambda b, w: b.program.select_logit_rows(w["y"], b.x),
        "logits: batch rows": lambda b, w: b.program.logits(b.x),
        "buffer: width 0": lambda b, w: b.program.buffer("z", 0),
        "buffer: negative": lambda b, w: b.program.buffer("z", -1),
        "buffer: enormous": lambda b, w: b.program.buffer("z", 2**40),
        "buffer: space": lambda b, w: b.program.buffer("z", 4, "columns"),
    }


@pytest.mark.parametrize("name", recording_errors())
def test_recording(bench: Bench, name: str) -> None:
    made = {
        "y": bench.buffer(WIDTH),
        "narrow": bench.buffer(WIDTH - 2),
        "head": bench.buffer(16),
        "marked": bench.program.buffer("marked", WIDTH, "logits"),
        "square": bench.float_weight(np.eye(WIDTH, dtype=np.float32)),
        "flat": bench.float_weight(np.eye(WIDTH, dtype=np.float32)[:7]),
        "vector": bench.vector(np.ones(WIDTH, np.float32)),
        "short": bench.vector(np.ones(7, np.float32)),
    }
    with pytest.raises((ValueError, TypeError)):
        recording_errors()[name](bench, made)
    # Nothing was recorded: the program plays as before.
    x = np.ones((2, WIDTH), np.float32)
    assert np.array_equal(play(bench.player("scalar"), x), x)


@pytest.mark.parametrize(
    "made",
    [
        lambda p: Player(p, 0, 1, 1),
        lambda p: Player(p, 8, 9, 1),
        lambda p: Player(p, 8, 0, 1),
        lambda p: Player(p, 65537, 1, 1),
        lambda p: Player(p, -1, 1, 1),
        lambda p: Player(p, 8, 8, 0),
        lambda p: Player(p, 8, 8, -3),
        lambda p: Player(p, 8, 8, 1, "mmx"),
        lambda _: Player(None, 8, 8, 1),  # type: ignore[arg-type]
    ],
)
def test_players(bench: Bench, made: Callable[[Program], Player]) -> None:
    with pytest.raises((ValueError, TypeError)):
        made(bench.program)


def test_programs_that_are_not_finished() -> None:
    weights, kv = Weights(1 << 20), KvCache(1, 1, 16, "f32", 1)
    program = Program(weights, kv)
    with pytest.raises(ValueError, match="logits"):
        Player(program, 1, 1, 1)
    program.logits(program.buffer("out", 4, "logits"))
    with pytest.raises(ValueError, match="embedding"):
        Player(program, 1, 1, 1)


@pytest.mark.parametrize("sizes", [(0, 1, 16), (1, 0, 16), (1, 1, 0), (1, 1, 1025), (-1, 1, 16)])
def test_kv_sizes(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="KV cache"):
        KvCache(*sizes, "f32", 1)


def test_kv_calls() -> None:
    with pytest.raises(ValueError, match="kv_type"):
        KvCache(1, 1, 16, "f64", 1)
    with pytest.raises(ValueError, match="page"):
        KvCache(1, 1, 16, "f32", 0)
    kv = KvCache(1, 1, 16, "f32", 2)
    for pages, length in ((i32(0), 65), (i32(), 1), (i32(0), -1), (i32(2), 1), (i32(-1), 1)):
        with pytest.raises(ValueError, match="KV cache"):
            kv.digest(pages, length)
    for length in (2**62, 2**63 - 1):
        with pytest.raises(ValueError, match="KV cache"):
            kv.digest(i32(0), length)
    for src, dst in ((-1, 0), (0, 2), (2, 0), (0, -1)):
        with pytest.raises(ValueError, match="page"):
            kv.copy_page(src, dst)


@pytest.mark.parametrize("type_name", TYPES)
def test_weights(type_name: str) -> None:
    type_ = TYPES[type_name]
    weights = Weights(1 << 20)
    width = 4 if type_.is_float else 2 * type_.inputs
    data = weight_bytes(type_, "random", 3, width, 1)
    for out, in_ in ((4, width), (3, width + type_.inputs), (0, width), (3, 0), (-3, -width)):
        with pytest.raises(ValueError, match=r"bytes|rows and columns"):
            weights.add_linear("w", type_.ggml, data, out, in_)
    if not type_.is_float:
        with pytest.raises(ValueError, match="multiple of the block"):
            weights.add_linear("w", type_.ggml, data, 3, width - 1)
    # A scale or value that is not finite, with the name of the tensor.
    for offset in type_.halves + type_.mins or (0,):
        for last_two in ((0x00, 0x7C), (0x01, 0xFE)):
            spoilt = data.reshape(3, -1).copy()
            if type_.is_float:
                spoilt[1, : type_.bytes] = 0xFF
            elif type_name == "mxfp4":  # one byte, an exponent
                spoilt[1, type_.bytes] = 0xFF
            else:
                spoilt[1, type_.bytes + offset : type_.bytes + offset + 2] = last_two
            with pytest.raises(ValueError, match=r"'blk.7.w'.*not finite"):
                weights.add_linear("blk.7.w", type_.ggml, spoilt, 3, width)
    assert weights.packed_bytes == 0
    assert weights.add_linear("w", type_.ggml, data, 3, width) == 0


def test_more_weights() -> None:
    weights = Weights(256)
    with pytest.raises(MemoryError):
        weights.add_linear("w", 0, np.zeros((65, 64), np.float32), 65, 64)
    with pytest.raises(ValueError, match="can't be packed"):
        weights.add_linear("w", 99, np.zeros(4, np.uint8), 1, 1)
    with pytest.raises((ValueError, TypeError)):
        weights.add_linear("w", 0, "text", 1, 1)
    with pytest.raises(ValueError, match="contiguous"):
        weights.add_linear("w", 0, np.zeros((2, 8), np.float32)[:, ::2], 2, 4)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=r"'norm'.*index 2"):
            weights.add_vector("norm", np.array([1, 2, bad], np.float32))


@pytest.mark.parametrize("vocab", [0, -1, WIDTH + 1, 2**31 - 1, 2**40])
def test_sampling_vocabularies(bench: Bench, vocab: int) -> None:
    player = bench.player("scalar")
    play(player, np.ones((4, WIDTH), np.float32))
    zeros = np.zeros(4, np.float32)
    index = np.zeros(4, np.uint32)
    args: tuple[Any, ...]
    args = (zeros, i32(0, 0, 0, 0), zeros + 1, zeros, np.zeros(4, np.uint64), index, index)
    with pytest.raises((ValueError, TypeError)):
        player.sample(*args, vocab)
    assert player.sample(*args, WIDTH).tolist() == [0, 0, 0, 0]
    for i in range(len(args)):
        short: list[Any] = [a[:3] if i == j else a for j, a in enumerate(args)]
        with pytest.raises(ValueError, match="sample"):
            player.sample(*short, vocab_size=WIDTH)
