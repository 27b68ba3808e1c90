"""The operations of a vision tower: bits of the written arithmetic, on every row of the dispatch
table, with any number of rows and threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
import row_twin
from blocks import F32_TYPE, activations
from programs import Bench, bits, play, play_flagged

from draftproof import _native
from draftproof._native import KvCache, Player, Program, Weights

ROWS = (1, 2, 5, 7, 8, 9, 16, 17, 33)
THREADS = (1, 2, 3)
SEED = 21


@pytest.mark.parametrize("width", [1, 15, 16, 17, 72, 1152, 4608])
def test_layer_norm_is_the_twin(width: int, isa: str) -> None:
    rng = np.random.default_rng(width)
    bench = Bench(width)
    w, b = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
    out = bench.buffer(width)
    bench.program.layer_norm(out, bench.x, bench.vector(w), bench.vector(b), 1e-6)
    bench.show((out, width))
    x = activations("normal", 33, width, SEED) + np.float32(0.7)
    with np.errstate(over="ignore"):
        expected = np.stack([row_twin.layer_norm(row, w, b, 1e-6) for row in x])
    for rows in ROWS:
        got = play(bench.player(isa, THREADS[rows % 3]), x[:rows])
        assert np.array_equal(bits(got), bits(expected[:rows]))
    if width > 16:  # the twin means what it says
        d = x.astype(float) - x.astype(float).mean(1, keepdims=True)
        true = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-6) * w + b
        np.testing.assert_allclose(expected, true, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("formula", ["tanh", "erf"])
@pytest.mark.parametrize("width", [1, 16, 50, 4096])
def test_gelu_is_the_twin(formula: str, width: int, isa: str) -> None:
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((17, width)) * 3).astype(np.float32)
    edges = [0.0, -0.0, 1.25, -1.25, 8.0, -8.0, 60.0, -60.0, 1e20, -1e20, 1e-38, 1e-42]
    x.reshape(-1)[: len(edges)] = edges[: x.size]
    bench = Bench(width)
    bench.program.gelu(bench.x, formula)
    bench.show((bench.x, width))
    twin = row_twin.gelu_tanh if formula == "tanh" else row_twin.gelu_erf
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = twin(x)
    for rows in (1, 2, 17):
        got = play(bench.player(isa, THREADS[rows % 3]), x[:rows])
        assert np.array_equal(bits(got), bits(expected[:rows]))
    for value, y in zip(x.reshape(-1)[:4000], expected.reshape(-1)[:4000], strict=True):
        v = float(value)
        if abs(v) < 1e6:
            cubic = math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)
            factor = math.tanh(cubic) if formula == "tanh" else math.erf(v / math.sqrt(2))
            assert abs(0.5 * v * (1 + factor) - float(y)) < 5e-7 * max(1.0, abs(v))


@pytest.mark.parametrize("head_dim", [16, 72])
def test_bidirectional_attention_sees_its_whole_segment_and_no_other(
    head_dim: int, isa: str
) -> None:
    """Two images in one call: each row sees all of its own; the bits are those of each alone, and
    of the twin."""
    heads, sizes = 3, (530, 60)
    width = heads * head_dim
    bench = Bench(3 * width, kv_heads=heads, head_dim=head_dim, pages=11)
    bench._max_rows = 600
    q, k, v = (bench.cut(i * width, width) for i in range(3))
    out = bench.buffer(width)
    bench.program.attention(out, q, k, v, 0, causal=False)
    bench.show((out, width))
    x = activations("normal", sum(sizes), 3 * width, SEED)
    pages = np.array([4, 2, 0, 1, 3, 5, 6, 7, 8, 10], np.int32)
    segments = [(sizes[0], 0, 0), (sizes[1], 0, 9)]
    both = play(bench.player(isa, 2), x, segments=segments, pages=pages)
    first = play(bench.player(isa, 3), x[: sizes[0]], pages=np.arange(9, dtype=np.int32))
    second = play(bench.player(isa, 1), x[sizes[0] :], pages=pages[9:])
    assert np.array_equal(bits(both), bits(np.concatenate([first, second])))
    starts = (0, sizes[0])
    for start, size, row in ((starts[0], sizes[0], 0), (starts[0], sizes[0], 529), (530, 60, 17)):
        for head in range(heads):
            at = slice(head * head_dim, (head + 1) * head_dim)
            own = x[start : start + size]
            parts = [own[:, i * width : (i + 1) * width][:, at] for i in range(3)]
            expected = row_twin.attend(parts[0][row], parts[1], parts[2])
            assert np.array_equal(bits(both[start + row, at]), bits(expected))


def test_a_program_attends_one_way() -> None:
    bench = Bench(16)
    out = bench.buffer(16)
    bench.program.attention(out, bench.x, bench.x, bench.x, 0)
    with pytest.raises(ValueError, match="causal or not"):
        bench.program.attention(out, bench.x, bench.x, bench.x, 0, causal=False)


def _mixed(isa: str) -> tuple[Player, NDArrayF]:
    """x = embedding or vector; + columns 8..15 where a vector stands; marked rows joined by two."""
    kv, weights = KvCache(1, 1, 16, "f32", 1), Weights(1 << 20)
    program = Program(weights, kv)
    x = program.buffer("x", 8)
    table = np.arange(24, dtype=np.float32).reshape(3, 8)
    program.embed(x, weights.add_linear("t", F32_TYPE, table, 3, 8))
    program.add_vectors(x, 8)
    joined = program.buffer("joined", 16, "logits")
    program.join_rows(joined, x)
    program.logits(joined)
    assert program.vector_width == 16
    return Player(program, 8, 4, 2, isa), table


NDArrayF = np.ndarray


def _forward(player: Player, tokens: list[int], marked: list[int], vectors: NDArrayF) -> NDArrayF:
    rows = len(tokens)
    player.forward(
        np.array(tokens, np.int32),
        np.zeros((rows, 3), np.int32),
        np.array([[rows, 0, 0]], np.int32),
        np.zeros(1, np.int32),
        np.array(marked, np.int32),
        vectors,
    )
    return player.logits().copy()


def test_vectors_are_added_to_their_own_rows_only(isa: str) -> None:
    player, table = _mixed(isa)
    v = np.random.default_rng(3).standard_normal((2, 16)).astype(np.float32)
    out = _forward(player, [1, -2, -1, 2], [1, 3], v)
    rows = [table[1], v[1, :8] + v[1, 8:], v[0, :8] + v[0, 8:], table[2]]
    assert np.array_equal(bits(out), bits(np.concatenate(rows).reshape(2, 16)))
    with pytest.raises(ValueError, match="vector_width"):
        _forward(player, [-1], [], v[:, :8].copy())
    with pytest.raises(ValueError, match="too few rows before it"):
        _forward(player, [1, 2], [0], v)


def test_values_shows_marked_buffers_only(isa: str) -> None:
    player, _ = _mixed(isa)
    out = _forward(player, [0, 1, 2, 0], [1, 3], np.zeros((1, 16), np.float32))
    assert np.array_equal(bits(player.values(1)), bits(out))
    for wrong in (0, 2, -1):
        with pytest.raises(ValueError, match="no buffer of marked rows"):
            player.values(wrong)


def test_a_program_without_embedding_takes_vectors_only(isa: str) -> None:
    bench_width = 24
    kv, weights = KvCache(1, 1, 16, "f32", 1), Weights(1 << 20)
    program = Program(weights, kv)
    x = program.buffer("x", 16)
    program.vectors(x, 8)
    shown = program.buffer("shown", 16, "logits")
    program.select_logit_rows(shown, x)
    program.logits(shown)
    player = Player(program, 8, 8, 1, isa)
    v = np.random.default_rng(5).standard_normal((3, bench_width)).astype(np.float32)
    assert np.array_equal(bits(_forward(player, [-1, -2, -3], [0, 1, 2], v)), bits(v[:, 8:]))
    with pytest.raises(ValueError, match="out of range"):
        _forward(player, [0], [0], v)


def test_mix_rows_is_its_definition() -> None:
    rng = np.random.default_rng(9)
    table = rng.standard_normal((9, 37)).astype(np.float32)
    table[0, :4] = 1e-40  # denormals count
    indices = rng.integers(0, 9, (21, 4)).astype(np.int32)
    weights = rng.random((21, 4)).astype(np.float32)
    out = np.full((21, 40), 7, np.float32)
    _native.mix_rows(table, indices, weights, out, 3)
    w, t = weights[:, :, None], table[indices]
    expected = ((w[:, 0] * t[:, 0] + w[:, 1] * t[:, 1]) + w[:, 2] * t[:, 2]) + w[:, 3] * t[:, 3]
    assert np.array_equal(bits(out[:, 3:]), bits(expected))
    assert (out[:, :3] == 7).all()
    indices[4, 2] = 9
    with pytest.raises(ValueError, match="outside the table"):
        _native.mix_rows(table, indices, weights, out, 3)
    with pytest.raises(ValueError, match="behind the column"):
        _native.mix_rows(table, np.zeros((21, 4), np.int32), weights, out, 4)


def test_a_value_that_is_not_finite_is_flagged(isa: str) -> None:
    bench = Bench(48, kv_heads=1, head_dim=16, pages=1)
    q, k, v = (bench.cut(i * 16, 16) for i in range(3))
    out = bench.buffer(16)
    bench.program.attention(out, q, k, v, 0, causal=False)
    bench.show((out, 16))
    x = activations("normal", 4, 48, SEED)
    x[2, 20] = np.inf
    _, flags = play_flagged(bench.player(isa), x)
    assert flags[2]
