"""Layers of experts: the scalar row is the written arithmetic, and any batch, thread count and row
of the dispatch table gives the bits of one row at a time on it."""

from __future__ import annotations

from typing import Any

import linear_twin
import moe_twin
import numpy as np
import plans
import pytest
from blocks import TYPES, activations, weight_bytes
from numpy.typing import NDArray
from programs import Alone, Bench, Rows, bits, counted, play, play_flagged

SEED = 31
WIDTH, FFN, OUT = 256, 512, 70
MOST_ROWS = max(plans.ROWS)


class Layer:
    """A router fed by the first columns of the vectors, x by the next, the residual by the last."""

    def __init__(
        self,
        types: tuple[str, str, str],
        experts: int,
        used: int,
        renormalise: bool = True,
        residual: bool = True,
    ) -> None:
        self.experts, self.used, self.renormalise = experts, used, renormalise
        self.bench = Bench(experts + WIDTH + OUT)
        shapes = ((FFN, WIDTH), (FFN, WIDTH), (OUT, FFN))
        self.weights: list[moe_twin.Experts] = []
        ids = []
        for i, (name, (out, width)) in enumerate(zip(types, shapes, strict=True)):
            data = weight_bytes(TYPES[name], "random", experts * out, width, SEED + i)
            self.weights.append((TYPES[name], data, out))
            ids.append(self.bench.experts(TYPES[name].ggml, data, experts, out, width))
        router, x = self.bench.cut(0, experts), self.bench.cut(experts, WIDTH)
        before = self.bench.cut(experts + WIDTH, OUT) if residual else -1
        self.has_residual = residual
        y = self.bench.buffer(OUT)
        self.bench.program.moe(y, x, router, *ids, used, renormalise, before)
        self.bench.show((y, OUT))

    def vectors(self, rows: int, choice: str = "random") -> Rows:
        out = activations("normal", rows, self.bench.width, SEED)
        rng = np.random.default_rng(SEED)
        logits = rng.standard_normal((rows, self.experts)).astype(np.float32)
        out[:, : self.experts] = logits[:1] if choice == "equal" else logits
        return out

    def twin(self, vectors: Rows) -> Rows:
        x = vectors[:, self.experts : self.experts + WIDTH]
        logits = vectors[:, : self.experts]
        y = moe_twin.moe(x, logits, *self.weights, self.used, self.renormalise)
        residual = vectors[:, self.experts + WIDTH :]
        return y + residual if self.has_residual else y


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("types", plans.MOE["types"], ids="-".join)
def test_twin(types: tuple[str, str, str], renormalise: bool, isa: str) -> None:
    layer = Layer(types, 7, 3, renormalise)
    vectors = layer.vectors(4)
    got = play(layer.bench.player(isa, 2), vectors)
    assert np.array_equal(bits(got), bits(layer.twin(vectors)))


def test_twin_tells_the_order_of_addition() -> None:
    """Adding the experts in the order of their index, or unfused, gives other bits."""
    layer = Layer(("q8_0",) * 3, 7, 3, residual=False)
    vectors = layer.vectors(4)
    right = layer.twin(vectors)
    by_index, unfused = np.zeros_like(right), np.zeros_like(right)
    for r, row in enumerate(vectors):
        order, p = moe_twin.chosen(row[:7], 3, True)
        parts = {}
        for e in order:
            only = np.full(7, -100, np.float32)
            only[e] = 0
            alone = moe_twin.moe(row[None, 7 : 7 + WIDTH], only[None], *layer.weights, 1, True)
            parts[e] = alone[0]
        for e, value in sorted(zip(order, p, strict=True)):
            by_index[r] = linear_twin.exact_fma(value, parts[e], by_index[r])
        for e, value in zip(order, p, strict=True):
            unfused[r] = unfused[r] + value * parts[e]
    assert not np.array_equal(bits(by_index), bits(right))
    assert not np.array_equal(bits(unfused), bits(right))
    assert np.allclose(by_index, right, rtol=1e-3, atol=1e-3)


def test_any_batch_gives_the_bits_of_one_row(exhaustive: bool) -> None:
    layers: dict[Any, Layer] = {}
    alone: dict[Any, Alone] = {}
    cells = plans.moe_cells(exhaustive)
    shared = 0
    for cell in cells:
        key = (cell["types"], *cell["experts"], cell["renormalise"], cell["residual"])
        if key not in layers:
            layers[key] = Layer(*key)
        layer, rows = layers[key], cell["rows"]
        case = (key, cell["choice"])
        if case not in alone:
            vectors = layer.vectors(MOST_ROWS, cell["choice"])
            alone[case] = Alone(layer.bench.player("scalar"), vectors)
        player = layer.bench.player(cell["isa"], cell["threads"])
        before = player.counters()
        out = play(player, alone[case].vectors[MOST_ROWS - rows :])
        ran = counted(player, before)
        assert np.array_equal(bits(out), bits(alone[case].last(rows))), cell
        assert ran["moe"] == 1
        shared += rows > 1 and cell["choice"] == "equal"
    assert shared > 20
    assert len(cells) >= plans.MOE_CELLS


def test_every_expert_is_read_once_for_all_its_rows() -> None:
    """Eight rows that choose the same three of seven experts: as many calls as experts have
    panels, each with all eight rows."""
    layer = Layer(("q4_k",) * 3, 7, 3)
    player = layer.bench.player("scalar", 2)
    before = player.counters()
    play(player, layer.vectors(8, "equal"))
    ran = counted(player, before)
    panels = 2 * FFN // 16 + -(-OUT // 16)
    assert ran["linear.q4_k.m8"] == 3 * panels
    assert not {name for name in ran if name.startswith("linear.q4_k.")} - {"linear.q4_k.m8"}


def test_ties_go_to_the_lower_index(isa: str) -> None:
    layer = Layer(("f32",) * 3, 7, 3)
    vectors = layer.vectors(3)
    vectors[0, :7] = 0
    vectors[1, :7] = [1, 2, 2, 2, 2, 1, 2]
    vectors[2, :7] = [-0.0, 0.0, 0, -0.0, 3, 0, 0]
    assert moe_twin.chosen(vectors[0, :7], 3, True)[0] == [0, 1, 2]
    assert moe_twin.chosen(vectors[1, :7], 3, True)[0] == [1, 2, 3]
    assert moe_twin.chosen(vectors[2, :7], 3, True)[0] == [4, 0, 1]
    got = play(layer.bench.player(isa), vectors)
    assert np.array_equal(bits(got), bits(layer.twin(vectors)))


@pytest.mark.parametrize("where", ["router", "x"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_only_the_row_that_is_not_finite_is_flagged(where: str, value: float, isa: str) -> None:
    layer = Layer(("q4_k",) * 3, 7, 3)
    vectors = layer.vectors(6)
    good = play(layer.bench.player("scalar"), vectors)
    # Unit matrices would spread it over the row: 0 * inf isn't 0. So the row is bad everywhere,
    # and what is tested is that the others aren't.
    spoilt = vectors.copy()
    spoilt[3, 2 if where == "router" else 60] = value
    for threads in (1, 3):
        out, flags = play_flagged(layer.bench.player(isa, threads), spoilt)
        assert flags.tolist() == [0, 0, 0, 1, 0, 0]
        others = [0, 1, 2, 4, 5]
        assert np.array_equal(bits(out[others]), bits(good[others]))


def bad_calls() -> dict[str, dict[str, Any]]:
    return {
        "no such weight": {"gate": 99},
        "a linear weight": {"up": "linear"},
        "another number of experts": {"gate": "few", "up": "few"},
        "down of another width": {"down": "up"},
        "up of another width": {"up": "down"},
        "router too narrow": {"router": "x"},
        "in place": {"out": "x", "down": "square"},
        "out = router": {"out": "router"},
        "none used": {"used": 0},
        "more than there are": {"used": 8},
        "residual of another width": {"residual": "x"},
        "residual -2": {"residual": -2},
        "out too narrow": {"out": "x"},
    }


@pytest.mark.parametrize("name", bad_calls())
def test_recording(name: str) -> None:
    bench = Bench(WIDTH)
    zeros: NDArray[np.float32] = np.zeros((8 * 64, 64), np.float32)
    f32 = TYPES["f32"].ggml
    made: dict[str, Any] = {
        "x": bench.buffer(64),
        "router": bench.buffer(7),
        "out": bench.buffer(16),
        "linear": bench.float_weight(zeros[:48]),
        "gate": bench.weights.add_experts("gate", f32, zeros[: 7 * 48], 7, 48, 64),
        "few": bench.weights.add_experts("few", f32, zeros[: 6 * 48], 6, 48, 64),
        "square": bench.weights.add_experts("square", f32, zeros[: 7 * 48], 7, 64, 48),
        "down": bench.weights.add_experts("down", f32, zeros[:84], 7, 16, 48),
    }
    good = {"out": "out", "x": "x", "router": "router", "gate": "gate", "up": "gate"}
    made["up"] = made["gate"]

    def call(**changed: Any) -> None:
        names: dict[str, Any] = {**good, "down": "down", "used": 3, "residual": -1, **changed}
        ids = {key: made[v] if isinstance(v, str) else v for key, v in names.items()}
        bench.program.moe(**ids, renormalise=True)

    with pytest.raises(ValueError, match=r"moe|experts|weight"):
        call(**bad_calls()[name])
    call()


@pytest.mark.parametrize(
    "shape", [(0, 4, 8), (1025, 4, 8), (-1, 4, 8), (1024, 2**22, 8), (2, 0, 8), (2, 4, 2**31)]
)
def test_experts_of_impossible_shapes(shape: tuple[int, int, int]) -> None:
    bench = Bench(16)
    with pytest.raises(ValueError):
        bench.weights.add_experts("e", 0, np.zeros(64, np.uint8), *shape)


def test_experts_of_another_size() -> None:
    bench = Bench(16)
    with pytest.raises(ValueError, match="bytes"):
        bench.weights.add_experts("e", 0, np.zeros(4 * 2 * 3 * 4 - 1, np.uint8), 2, 3, 4)


def test_a_bad_scale_is_found_in_its_expert() -> None:
    bench = Bench(16)
    rows = np.ones((5 * 3, 4), np.float32)
    rows[11, 2] = np.inf
    with pytest.raises(ValueError, match="'e' has a value that is not finite near row 11"):
        bench.weights.add_experts("e", 0, rows, 5, 3, 4)
