"""The scalar row is the written arithmetic: equal, bit for bit, to independent numpy twins.

The other rows are compared with it elsewhere, and here once more."""

from __future__ import annotations

import math
from fractions import Fraction

import linear_twin
import numpy as np
import plans
import pytest
import row_twin
import sampler_twin
from blocks import ACT_KINDS, TYPES, WEIGHT_KINDS, activations, weight_bytes
from numpy.typing import NDArray
from programs import Bench, Rows, bits, play

from draftproof.models.rotary import rotary_turns

SEED = 23


def differ(a: Rows, b: Rows) -> str:
    wrong = np.flatnonzero(bits(a).ravel() != bits(b).ravel())
    i = int(wrong[0]) if len(wrong) else 0
    return f"{len(wrong)} of {a.size} differ, first at {i}: {a.ravel()[i]!r} {b.ravel()[i]!r}"


def assert_bits(got: Rows, twin: Rows, note: object = "") -> None:
    assert got.shape == twin.shape
    assert np.array_equal(bits(got), bits(twin)), f"{note} {differ(got, twin)}"


@pytest.mark.parametrize("weights", WEIGHT_KINDS)
@pytest.mark.parametrize("type_name", plans.TYPE_NAMES)
def test_linear(type_name: str, weights: str) -> None:
    type_, out, blocks = TYPES[type_name], 19, 3
    width = 45 if type_.is_float else blocks * type_.inputs
    data = weight_bytes(type_, weights, out, width, SEED)
    bench = Bench(width)
    y = bench.buffer(out)
    bench.program.linear([y], bench.x, [bench.weight(type_.ggml, data, out, width)])
    bench.show((y, out))
    for acts in ACT_KINDS:
        x = activations(acts, 5, width, SEED)
        twin = linear_twin.linear(type_, data, out, x)
        for isa in plans.ISAS:
            assert_bits(play(bench.player(isa), x), twin, (isa, acts))


def test_linear_adds_the_bias_then_the_residual() -> None:
    type_, out, width = TYPES["q4_k"], 18, 256
    data = weight_bytes(type_, "random", out, width, SEED)
    rng = np.random.default_rng(SEED)
    bias = rng.standard_normal(out).astype(np.float32) * np.float32(3)
    bench = Bench(width + out)
    x, residual, y = bench.cut(0, width), bench.cut(width, out), bench.buffer(out)
    weight = bench.weight(type_.ggml, data, out, width)
    bench.program.linear([y], x, [weight], [bench.vector(bias)], residual)
    bench.show((y, out))
    rows = activations("normal", 6, width + out, SEED)
    twin = linear_twin.linear(type_, data, out, rows[:, :width])
    twin = (twin + bias) + rows[:, width:]
    assert_bits(play(bench.player("scalar"), rows), twin)


def test_a_long_row_is_one_chain() -> None:
    """Rows are quantized in parts of 2,048; sums go on across them."""
    for type_name, width in (("q4_k", 2560), ("q8_0", 4128)):
        type_, out = TYPES[type_name], 3
        data = weight_bytes(type_, "random", out, width, SEED)
        bench = Bench(width)
        y = bench.buffer(out)
        bench.program.linear([y], bench.x, [bench.weight(type_.ggml, data, out, width)])
        bench.show((y, out))
        x = activations("normal", 3, width, SEED)
        twin = linear_twin.linear(type_, data, out, x)
        for isa in plans.ISAS:
            assert_bits(play(bench.player(isa, 3), x), twin, isa)


def test_a_swapped_step_would_be_seen() -> None:
    """The twin tells the written order from the likely mistakes: unfused, or d_w * d_x first."""
    type_, out, width = TYPES["q8_0"], 16, 320
    data = weight_bytes(type_, "random", out, width, SEED)
    x = activations("normal", 4, width, SEED)
    right = linear_twin.linear(type_, data, out, x)
    w = linear_twin.decode(type_, data, out, width)
    d_x, q_x = linear_twin.quantize(x, 32)
    unfused = np.zeros_like(right)
    scales_first = np.zeros_like(right)
    for b in range(width // 32):
        isum = np.einsum("oi,ri->ro", w.q[:, b], q_x[:, b]).astype(np.float32)
        unfused = unfused + d_x[:, b, None] * (w.d[None, :, b] * isum)
        scale = d_x[:, b, None] * w.d[None, :, b]
        scales_first = sampler_twin.exact_fma(scale, isum, scales_first)
    assert not np.array_equal(bits(right), bits(unfused))
    assert not np.array_equal(bits(right), bits(scales_first))
    assert np.allclose(right, unfused, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("width", "n"), [(1, 1), (16, 16), (37, 37), (96, 16), (130, 65)])
@pytest.mark.parametrize("acts", ACT_KINDS)
def test_rms_norm(width: int, n: int, acts: str) -> None:
    bench = Bench(width)
    weight = np.random.default_rng(SEED).standard_normal(n).astype(np.float32)
    y = bench.buffer(width)
    bench.program.rms_norm(y, bench.x, bench.vector(weight), 1e-6)
    bench.show((y, width))
    x = activations(acts, 7, width, SEED)
    if acts == "huge":  # squares must stay finite
        x = x * np.float32(1e-3)
    with np.errstate(under="ignore"):
        twin = np.stack(
            [
                np.concatenate([row_twin.rms_norm(g, weight, 1e-6) for g in row.reshape(-1, n)])
                for row in x
            ]
        )
    for isa in plans.ISAS:
        assert_bits(play(bench.player(isa), x), twin, isa)


def swiglu_of(g: Rows, u: Rows, isa: str) -> Rows:
    """silu(g) * u [n] by the operation itself: gate and up are unit matrices."""
    n = len(g)
    bench = Bench(2 * n)
    unit = np.zeros((2, n, 2 * n), np.float32)
    unit[0, np.arange(n), np.arange(n)] = 1
    unit[1, np.arange(n), n + np.arange(n)] = 1
    y = bench.buffer(n)
    bench.program.swiglu_linear(y, bench.x, *(bench.float_weight(m) for m in unit))
    bench.show((y, n))
    out: Rows = play(bench.player(isa), np.concatenate([g, u])[None])[0]
    return out


def edge_values() -> Rows:
    """Where exp clamps, turns to zero, and rounds its argument to another power of two."""
    edges = [0.0, 69.0, 88.0, 88.5, 104.0, 1e4, 1e-30, 1e-40, 2.0**-149]
    edges += [k * math.log(2) / 2 for k in range(1, 16)]
    single = np.array(edges, np.float32)
    near = [single, np.nextafter(single, np.float32(9e9)), np.nextafter(single, np.float32(-1))]
    return np.concatenate([*near, *(-x for x in near)])


def test_swiglu_and_exp() -> None:
    rng = np.random.default_rng(SEED)
    g = np.concatenate([edge_values(), (rng.standard_normal(150) * 30).astype(np.float32)])
    u = rng.standard_normal(len(g)).astype(np.float32)
    g = g + np.float32(0)  # unit matrices turn -0 into +0
    with np.errstate(under="ignore"):
        twin = row_twin.swiglu(g, u)
    for isa in plans.ISAS:
        assert_bits(swiglu_of(g, u, isa), twin, isa)


def test_exp_twin_is_exp() -> None:
    """The twin itself against exact fractions of math: within 1.01 units in the last place."""
    x = np.linspace(-69, 88, 20_001, dtype=np.float32)
    got = sampler_twin.exp_f32(x)
    for xi, yi in zip(x[::7], got[::7], strict=True):
        exact = math.exp(float(xi))
        assert abs(float(yi) - exact) <= 1.01 * float(np.spacing(yi)), xi


def test_fma_twin_rounds_once() -> None:
    """Against exact fractions, ties and denormals included."""
    rng = np.random.default_rng(SEED)
    words: NDArray[np.uint32] = rng.integers(0, 2**32, (4000, 3), dtype=np.uint32)
    # Exponents near one another, so that the sum rounds; every fourth result is denormal.
    exponents = rng.integers(110, 140, words.shape, dtype=np.uint32)
    words = (words & np.uint32(0x807FFFFF)) | (exponents << np.uint32(23))
    words[::4] = (words[::4] & 0x807FFFFF) | (np.uint32(58) << 23)
    words[::4, 2] &= 0x807FFFFF
    words[::2, 0] &= 0xFFFFF000  # short products: ties
    words[::2, 1] &= 0xFFFFF000
    a, b, c = np.ascontiguousarray(words.T).view(np.float32)
    got = sampler_twin.exact_fma(a, b, c)
    for ai, bi, ci, yi in zip(a, b, c, got, strict=True):
        exact = Fraction(float(ai)) * Fraction(float(bi)) + Fraction(float(ci))
        error = abs(Fraction(float(yi)) - exact)
        for other in (np.nextafter(yi, np.float32(9)), np.nextafter(yi, np.float32(-9))):
            other_error = abs(Fraction(float(other)) - exact)
            even = int(bits(np.array([yi]))[0]) & 1 == 0
            assert error < other_error or (error == other_error and even)


def test_rope() -> None:
    head_dim, heads = 24, 2
    turns = rotary_turns(1e4, head_dim)
    axes = (np.arange(head_dim // 2) % 3).astype(np.uint8)
    bench = Bench(heads * head_dim)
    q = bench.cut(0, heads * head_dim)
    bench.program.rope([q], head_dim, turns, axes)
    bench.show((q, heads * head_dim))
    x = activations("normal", 9, heads * head_dim, SEED)
    at = [0, 1, 2, 63, 100, 4095, 32767, 2**20, 2**31 - 1]
    positions = np.array([[p, max(0, p - 5), p // 3] for p in at], np.int32)
    twin = np.stack(
        [
            np.concatenate(
                [
                    row_twin.rope(head, turns.tolist(), [int(p[a]) for a in axes])
                    for head in row.reshape(heads, head_dim)
                ]
            )
            for row, p in zip(x, positions, strict=True)
        ]
    )
    for isa in plans.ISAS:
        assert_bits(play(bench.player(isa, 2), x, positions=positions), twin, isa)


def rotary_table(turns: NDArray[np.uint64], positions: list[int], isa: str) -> tuple[Rows, Rows]:
    """cos and sin [positions, frequencies] as the operation uses them: it turns (1, 0)."""
    half = len(turns)
    bench = Bench(2 * half)
    q = bench.cut(0, 2 * half)
    bench.program.rope([q], 2 * half, turns, np.zeros(half, np.uint8))
    bench.show((q, 2 * half))
    x = np.zeros((len(positions), 2 * half), np.float32)
    x[:, :half] = 1
    at = np.repeat(np.array(positions, np.int32)[:, None], 3, axis=1)
    out = play(bench.player(isa), x, positions=at)
    return out[:, :half], out[:, half:]


@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_rotary_table_is_correctly_rounded(theta: float) -> None:
    """Against decimal sines and cosines of the exact phase; no libm on either side."""
    turns = rotary_turns(theta, 32)
    positions = [0, 1, 2, 3, 64, 1000, 32767, 131071, 2**31 - 1]
    cos, sin = rotary_table(turns, positions, "scalar")
    for i, p in enumerate(positions):
        for j, turn in enumerate(turns.tolist()):
            c, s = row_twin.true_cos_sin(turn, p)
            assert (cos[i, j], sin[i, j]) == (c, s), (p, j)


def test_rotary_table_at_the_quarters() -> None:
    """Whole quarters and what lies beside them; position 1, so that the phase is the number."""
    quarters = [k * 2**61 + d for k in range(8) for d in (-1, 0, 1)]
    turns = np.array([q % 2**64 for q in quarters], np.uint64)
    cos, sin = rotary_table(turns, [1], "scalar")
    for j, turn in enumerate(turns.tolist()):
        c, s = row_twin.cos_sin(turn, 1)
        assert (abs(cos[0, j]), abs(sin[0, j])) == (abs(c), abs(s)), turn
        assert cos[0, j] == c, turn
        assert sin[0, j] == s, turn


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize(
    ("head_dim", "length"), [(16, 5), (64, 70), (128, 33), (24, 70), (16, 520), (16, 1030)]
)
def test_attention(kv_type: str, head_dim: int, length: int) -> None:
    kv_heads, group = 2, 3
    q_width, kv_width = kv_heads * group * head_dim, kv_heads * head_dim
    pages = -(-length // 64)
    bench = Bench(
        q_width + 2 * kv_width, kv_heads=kv_heads, head_dim=head_dim, kv_type=kv_type, pages=pages
    )
    q = bench.cut(0, q_width)
    k, v = bench.cut(q_width, kv_width), bench.cut(q_width + kv_width, kv_width)
    y = bench.buffer(q_width)
    bench.program.attention(y, q, k, v, 0)
    bench.show((y, q_width))
    x = activations("normal", length, bench.width, SEED)
    if length > 512:  # a later span with the greatest score, and one without
        x[600 % length, q_width : q_width + kv_width] *= 4
    table = np.random.default_rng(SEED).permutation(pages).astype(np.int32)
    shown = {0, length // 2, length - 4, length - 1} | ({511, 512, 513} & set(range(length)))
    for isa in plans.ISAS:
        player = bench.player(isa, 2)
        out: list[Rows] = []
        for first in range(0, length, 130):
            part = x[first : first + 130]
            out.append(play(player, part, first=first, pages=table))
        got = np.concatenate(out)
        for row in sorted(shown):
            for head in range(kv_heads * group):
                columns = slice(head * head_dim, (head + 1) * head_dim)
                at = head // group * head_dim
                keys = x[: row + 1, q_width + at : q_width + at + head_dim]
                values = x[: row + 1, q_width + kv_width + at :][:, :head_dim]
                twin = row_twin.attend(
                    x[row, columns],
                    row_twin.stored(np.ascontiguousarray(keys), kv_type),
                    row_twin.stored(np.ascontiguousarray(values), kv_type),
                )
                assert_bits(got[row, columns], twin, (isa, row, head))
