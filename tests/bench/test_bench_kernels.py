"""`draftproof bench kernels`: small cases on real kernels, the arithmetic with a made-up clock."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from typer.testing import CliRunner

from draftproof import _native
from draftproof.bench import kernels
from draftproof.bench.bandwidth import ReadBandwidth
from draftproof.bench.kernels import KernelCase, Shape, measure_case, packable_types, random_blocks
from draftproof.cli.app import app
from draftproof.formats import GGML_TYPES, dequantize

BANDWIDTH = ReadBandwidth(10.0, 11.0, "sum", 1, 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about speed."""
    monkeypatch.setattr(kernels, "default_total_bytes", lambda: 1 << 20)
    monkeypatch.setattr("draftproof.bench.bandwidth.read_bandwidth", lambda threads: BANDWIDTH)


def test_every_type_that_can_be_packed_is_measured() -> None:
    packed = set()
    for number, kind in GGML_TYPES.items():
        try:
            _native.Weights.packed_size(number, 64, kind.block_elems)
        except ValueError:
            continue
        packed.add(kind.name)
    missing = packed - set(packable_types())
    assert not missing, f"the tables of bench/kernels.py don't know {missing}"


@pytest.mark.parametrize("kind", sorted(packable_types()))
def test_blocks_are_finite_and_the_kernels_take_them(kind: str) -> None:
    shape = Shape(256, 96)
    number = packable_types()[kind]
    data = random_blocks(kind, shape)
    values = dequantize(number, memoryview(data), (96, 256))
    assert np.isfinite(values).all()
    assert np.abs(values).max() > 0
    case = KernelCase(kind, shape, 4, 1, "scalar", 2 * 96 * 256)
    assert case.layers * case.layer_bytes >= 2 * 96 * 256
    case.step(4)


def test_arithmetic_of_a_row() -> None:
    ticks: Iterator[float] = iter([0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0])
    case = KernelCase("Q8_0", Shape(256, 64), 8, 1, "scalar", 100_000)
    result = measure_case(case, [8], 2, BANDWIDTH, clock=lambda: next(ticks))
    one, eight = result.rows
    assert (one.m, eight.m) == (1, 8)
    assert (one.seconds, eight.seconds) == (0.5, 1.0)
    nbytes = case.layers * case.layer_bytes
    assert one.gb_per_second == pytest.approx(nbytes / 0.5 / 1e9)
    assert one.share == pytest.approx(one.gb_per_second / 10.0)
    assert (one.verify_cost, eight.verify_cost) == (1.0, 2.0)
    assert eight.rows_per_second == pytest.approx(8 * case.layers)
    assert result.plain_seconds == (0.5, 0.5)


@pytest.mark.usefixtures("small")
def test_json() -> None:
    arguments = ["--type", "q4_k", "--shape", "256x128", "--rows", "1,4", "-r", "2", "-t", "1"]
    run = CliRunner().invoke(app, ["bench", "kernels", *arguments, "--json"])
    assert run.exit_code == 0, run.stderr
    shown = json.loads(run.stdout)
    (case,) = shown["cases"]
    assert (case["type"], case["shape"], case["threads"]) == ("Q4_K", "256x128", 1)
    assert [row["m"] for row in case["rows"]] == [1, 4]
    assert case["rows"][0]["verify_cost"] == 1.0
    assert shown["read_bandwidth_gb_s"] == 10.0
    assert isinstance(shown["noisy"], bool)


@pytest.mark.usefixtures("small")
def test_table() -> None:
    arguments = ["--type", "Q8_0", "--shape", "64x64", "--rows", "2", "-r", "1", "-t", "1"]
    run = CliRunner().invoke(app, ["bench", "kernels", *arguments])
    assert run.exit_code == 0, run.stderr
    assert "| Q8_0 | 64x64 |   2 |" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--type", "Q9_K"], "--type must be one of F32"),
        (["--shape", "100"], "--shape must be INxOUT"),
        (["--type", "Q4_K", "--shape", "100x64"], "multiples of 256"),
        (["--rows", "1,x"], "--rows must be numbers"),
        (["--rows", "0"], "--rows must be numbers"),
        (["--rows", ""], "--rows must be numbers"),
        (["--threads", "0"], "--threads must be between"),
        (["--isa", "mmx"], "--isa must be one of"),
        (["--repeat", "0"], "--repeat must be between"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    run = CliRunner().invoke(app, ["bench", "kernels", *arguments])
    assert run.exit_code == 2
    assert words in run.stderr
    assert len(run.stderr.splitlines()) == 1
