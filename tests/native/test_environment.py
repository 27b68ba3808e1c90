"""Whatever floating-point environment the caller or a foreign library left behind: the same bits,
and the caller gets it back. And values that are not finite harm their own row only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import fp_control
import numpy as np
import plans
import pytest
from blocks import TYPES, BlockType, Bytes, activations, weight_bytes
from programs import Bench, Rows, arrays, bits, play, play_flagged

from draftproof.models.rotary import rotary_turns

SEED = 41
WIDTH, OUT = 256, 24
MODES = {
    "flush": fp_control.FLUSH,
    "towards zero": fp_control.TOWARDS_ZERO,
    "both": fp_control.FLUSH | fp_control.TOWARDS_ZERO,
}
x86 = pytest.mark.skipif(not fp_control.available(), reason="MXCSR is a register of x86")


def small_values(rows: int, width: int) -> Rows:
    """Denormals, and values whose products are denormal, beside ordinary ones."""
    x = activations("normal", rows, width, SEED)
    x[0] *= np.float32(2.0**-130)
    x[1] *= np.float32(2.0**-100)
    x[2, ::2] *= np.float32(2.0**-128)
    return x


@dataclass(frozen=True)
class Data:
    """Made in the default mode: numpy obeys the mode too."""

    type_: BlockType
    weights: Bytes
    x: Rows
    tiny: Rows
    half: Rows
    most: Rows

    @classmethod
    def of(cls, type_name: str) -> Data:
        type_ = TYPES[type_name]
        weights = weight_bytes(type_, "denormal", OUT, WIDTH, SEED)
        x = small_values(9, WIDTH)
        tiny = np.full(WIDTH, 2.0**-127, np.float32)
        return cls(
            type_, weights, x, tiny, np.full(9, 0.7, np.float32), np.full(9, 0.9, np.float32)
        )


class Everything:
    """All operations in one program, on values for which flushing denormals shows."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.bench = bench = Bench(WIDTH, head_dim=24, kv_type="f32", pages=2)
        weight = bench.weight(data.type_.ggml, data.weights, OUT, WIDTH)
        y, normed, gated, mixed = (bench.buffer(n) for n in (OUT, WIDTH, OUT, OUT))
        bench.program.linear([y], bench.x, [weight])
        bench.program.rms_norm(normed, bench.x, bench.vector(data.tiny), 2.0**-20)
        bench.program.swiglu_linear(gated, bench.x, weight, weight)
        head = bench.cut(0, 24)
        turned = bench.cut(0, 24)
        bench.program.rope([turned], 24, rotary_turns(1e4, 24), np.zeros(12, np.uint8))
        bench.program.attention(mixed, turned, head, head, 0)
        bench.show((y, OUT), (normed, WIDTH), (gated, OUT), (turned, 24), (mixed, OUT))

    def outcome(self, isa: str, threads: int) -> tuple[Any, ...]:
        player = self.bench.player(isa, threads)
        out = play(player, self.data.x)
        n = len(self.data.x)
        ids = player.sample(
            self.data.half,
            np.zeros(n, np.int32),
            self.data.most,
            np.zeros(n, np.float32),
            np.arange(n, dtype=np.uint64),
            np.zeros(n, np.uint32),
            np.zeros(n, np.uint32),
            out.shape[1],
        )
        digest = self.bench.kv.digest(np.zeros(1, np.int32), n)
        return bits(out).tobytes(), ids.tolist(), digest


@x86
def test_the_mode_is_really_set() -> None:
    tiny = np.full(4, 2.0**-140, np.float32)
    with fp_control.set_to(fp_control.FLUSH):
        assert not (tiny * np.float32(1)).any()
    assert (tiny * np.float32(1)).all()
    third = np.full(4, 1, np.float32) / np.float32(3)
    with fp_control.set_to(fp_control.TOWARDS_ZERO):
        down = np.full(4, 1, np.float32) / np.float32(3)
    assert (down < third).all()


@x86
@pytest.mark.parametrize("type_name", plans.TYPE_NAMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_callers_environment_changes_nothing(
    type_name: str, mode: str, threads: int, isa: str
) -> None:
    data = Data.of(type_name)
    expected = Everything(data).outcome(isa, threads)
    values = np.frombuffer(expected[0], np.float32)
    assert np.count_nonzero((values != 0) & (np.abs(values) < 2.0**-126)) > 10
    with fp_control.set_to(MODES[mode]):
        before = fp_control.read() & fp_control.CONTROL_BITS
        # Built in the mode as well: threads inherit it.
        got = Everything(data).outcome(isa, threads)
        after = fp_control.read() & fp_control.CONTROL_BITS
    assert before == after == fp_control.DEFAULT | MODES[mode]
    assert got == expected


# --- values that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize("type_name", [n for n in plans.TYPE_NAMES if not TYPES[n].is_float])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -np.nan])
def test_a_quantized_linear_flags_its_row_only(type_name: str, bad: float, isa: str) -> None:
    type_, out, blocks = TYPES[type_name], 20, 3
    width = blocks * type_.inputs
    data = weight_bytes(type_, "random", out, width, SEED)
    bench = Bench(width)
    y = bench.buffer(out)
    bench.program.linear([y], bench.x, [bench.weight(type_.ggml, data, out, width)])
    bench.show((y, out))
    x = activations("normal", 13, width, SEED)
    player = bench.player(isa, 2)
    expected = play(player, x)
    for column in (0, 17, width - 1):
        spoilt = x.copy()
        spoilt[4, column] = spoilt[12, column] = bad
        got, flags = play_flagged(player, spoilt)
        assert np.flatnonzero(flags).tolist() == [4, 12]
        good = [i for i in range(13) if i not in (4, 12)]
        assert np.array_equal(bits(got[good]), bits(expected[good]))
    # The next step knows nothing of it.
    assert np.array_equal(bits(play(player, x)), bits(expected))


@pytest.mark.parametrize("type_name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_float_linear_spoils_its_row_only(type_name: str, bad: float, isa: str) -> None:
    """Nothing is quantized: the value travels on to the logits, where the sampler says -1."""
    type_, out, width = TYPES[type_name], 20, 33
    data = weight_bytes(type_, "random", out, width, SEED)
    bench = Bench(width)
    y = bench.buffer(out)
    bench.program.linear([y], bench.x, [bench.weight(type_.ggml, data, out, width)])
    bench.show((y, out))
    x = activations("normal", 9, width, SEED)
    player = bench.player(isa, 2)
    expected = play(player, x)
    x[3, 5] = bad
    got, _ = play_flagged(player, x)
    ids = greedy(player, 9, out)
    assert ids[3] == -1
    assert (np.delete(ids, 3) >= 0).all()
    assert np.array_equal(bits(np.delete(got, 3, 0)), bits(np.delete(expected, 3, 0)))


def greedy(player: Any, rows: int, vocab: int) -> Any:
    zero = np.zeros(rows, np.float32)
    index = np.zeros(rows, np.uint32)
    ids = np.zeros(rows, np.int32)
    return player.sample(zero, ids, zero + 1, zero, np.zeros(rows, np.uint64), index, index, vocab)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 16, 47], ids=["query", "key", "value"])
def test_attention_flags_its_row_and_spares_other_sequences(
    kv_type: str, bad: float, column: int, isa: str
) -> None:
    bench = Bench(48, head_dim=16, kv_type=kv_type, pages=3)
    unit = np.eye(48, dtype=np.float32).reshape(3, 16, 48)
    q, k, v = (bench.buffer(16) for _ in range(3))
    for buffer, matrix in zip((q, k, v), unit, strict=True):
        bench.program.linear([buffer], bench.x, [bench.float_weight(matrix)])
    y = bench.buffer(16)
    bench.program.attention(y, q, k, v, 0)
    bench.show((y, 16))
    x = activations("normal", 12, 48, SEED)
    where: dict[str, Any] = {"segments": [(4, 0, 0), (5, 0, 1), (3, 0, 2)], "pages": [0, 1, 2]}
    player = bench.player(isa, 2)
    expected = play(player, x, **where)
    x[6, column] = bad  # the third row of the second sequence
    got, flags = play_flagged(player, x, **where)
    assert flags[6] == 1
    assert not flags[[0, 1, 2, 3, 4, 5, 9, 10, 11]].any()
    good = [0, 1, 2, 3, 4, 5, 9, 10, 11]
    assert np.array_equal(bits(got[good]), bits(expected[good]))


def test_scores_that_overflow_are_flagged(isa: str) -> None:
    """Finite queries and keys whose product is not: the softmax sum shows it."""
    bench = Bench(16, head_dim=16, pages=1)
    y = bench.buffer(16)
    bench.program.attention(y, bench.x, bench.x, bench.x, 0)
    bench.show((y, 16))
    x = activations("normal", 5, 16, SEED)
    expected = play(bench.player(isa), x)
    x[2] = 3e38
    got, flags = play_flagged(bench.player(isa), x)
    assert flags[2] == 1
    assert not flags[:2].any()
    assert np.array_equal(bits(got[:2]), bits(expected[:2]))


def test_a_failed_call_computes_nothing(isa: str) -> None:
    bench = Bench(16, head_dim=16, pages=2)
    y = bench.buffer(16)
    bench.program.attention(y, bench.x, bench.x, bench.x, 0)
    bench.show((y, 16))
    x = activations("normal", 5, 16, SEED)
    player = bench.player(isa, 2)
    play(player, x)
    page = np.zeros(1, np.int32)
    before = bench.kv.digest(page, 5), player.counters()
    call = arrays(5)
    call["logit_rows"] = np.array([4, 3], np.int32)
    with pytest.raises(ValueError, match="logit_rows"):
        player.forward(**call, vectors=x + 1)
    assert (bench.kv.digest(page, 5), player.counters()) == before
