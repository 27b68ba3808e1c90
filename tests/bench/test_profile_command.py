"""`draftproof profile`: the arithmetic with made-up measurements, and one tiny real model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftproof.bench.bandwidth import ReadBandwidth
from draftproof.bench.profile import Profile, combine, measure_profile
from draftproof.cli import profile as command
from draftproof.cli.app import app
from draftproof.drafting import verify_cost
from draftproof.drafting.verify_cost import Measurement
from tiny_models import SPECS, TinyModels

PROMISED = {
    "plain_step_ms", "read_bandwidth_gb_s", "weights_bytes_per_token", "verify_cost", "break_even",
    "recommended_k", "noisy",
}  # fmt: skip


def made_up(plains: list[float], rates: list[float], reasons: list[str]) -> Profile:
    costs = iter(plains)
    bandwidths = iter(rates)
    return measure_profile(
        model="m",
        isa="scalar",
        threads=2,
        context=512,
        weights_bytes_per_token=100_000_000,
        measure_costs=lambda: Measurement(next(costs), {1: 1.0, 2: 1.5, 4: 2.5}, 1.1),
        measure_bandwidth=lambda: ReadBandwidth(next(bandwidths), 99.0, "sum", 1, 2),
        load_reasons=lambda: reasons,
        rounds=len(plains),
    )


def test_figures_and_keys() -> None:
    shown = made_up([0.010, 0.0101, 0.0102], [20.0, 20.5, 21.0], []).to_dict()
    assert set(shown) >= PROMISED
    assert shown["plain_step_ms"] == pytest.approx(10.1)
    assert shown["read_bandwidth_gb_s"] == 20.5
    assert shown["bandwidth_share"] == pytest.approx(100e6 / 0.0101 / 20.5e9)
    assert shown["verify_cost"] == {"1": 1.0, "2": 1.5, "4": 2.5}
    assert shown["break_even"]["1"] == pytest.approx(0.5)
    assert list(shown["break_even"]) == ["1", "2", "3"]  # nothing longer was measured
    assert shown["recommended_k"] == 2  # 1.8 / 1.5 = 1.20, 2.44 / 2 = 1.22, 2.952 / 2.5 = 1.18
    assert shown["noisy"] is False
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize(
    ("plains", "rates", "reasons"),
    [
        ([0.010, 0.010, 0.014], [20.0] * 3, []),
        ([0.010] * 3, [20.0, 30.0, 20.0], []),
        ([0.010] * 3, [20.0] * 3, ["others are busy"]),
    ],
)
def test_noise_is_said(plains: list[float], rates: list[float], reasons: list[str]) -> None:
    shown = made_up(plains, rates, reasons).to_dict()
    assert shown["noisy"] is True
    assert len(shown["noise_reasons"]) == 1


def test_combining_rounds() -> None:
    combined = combine(
        [
            Measurement(3.0, {1: 1.0, 2: 1.2, 4: 9.0}, 1.1),
            Measurement(1.0, {1: 1.0, 2: 1.4}, 2.0),
            Measurement(2.0, {1: 1.0, 2: 1.3, 4: 9.0}, 1.0),
        ]
    )
    assert combined == Measurement(2.0, {1: 1.0, 2: 1.3}, 2.0)


def test_the_json_is_a_verify_cost_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile = made_up([0.01], [20.0], [])
    path.write_text(json.dumps(profile.to_dict()))
    loaded = verify_cost.load(path)
    assert loaded is not None
    assert loaded.costs == profile.measurement.costs
    assert loaded.plain_seconds == pytest.approx(0.01)


def test_tables_name_break_even_and_replay(capsys: pytest.CaptureFixture[str]) -> None:
    command.print_profile(made_up([0.01], [20.0], ["somebody else is busy"]))
    out, err = capsys.readouterr()
    assert "break-even" in out
    assert "Replay" in out
    assert "never" in out
    assert "noisy: somebody else is busy" in err


def test_a_tiny_model_for_real(tiny: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "draftproof.bench.bandwidth.read_bandwidth",
        lambda threads: ReadBandwidth(20.0, 20.0, "sum", 1, threads),
    )
    path = tiny.path("qwen3", "Q8_0")
    run = CliRunner().invoke(app, ["profile", str(path), "-t", "1", "--json", "--context", "100"])
    assert run.exit_code == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["threads"] == 1
    assert shown["context"] == 100
    assert list(shown["verify_cost"])[:3] == ["1", "2", "4"]
    assert shown["weights_bytes_per_token"] > 0
    assert set(shown) >= PROMISED


def test_only_the_experts_that_a_row_uses_are_read(tiny: TinyModels, load: Any) -> None:
    spec = SPECS["qwen3moe-wide-untied"]
    path = tiny.path(spec.name, "Q8_0")
    loaded = load(path, threads=1)
    expert = 3 * spec.hidden * spec.expert_ffn * 34 // 32
    unused = spec.layers * (spec.experts - spec.experts_used) * expert
    panels = -(-spec.vocab // 16) * 16
    embedding = -(-panels * spec.hidden * 34 // 32 // 256) * 256
    assert unused > 0
    expected = loaded.weights_bytes - unused - embedding
    assert command.weights_per_token(loaded, path) == expected


@pytest.mark.parametrize(
    ("plot", "words"),
    [("x.pdf", "--plot must end in .svg or .png"), ("no/such/x.svg", "there is no such folder")],
)
def test_bad_plot(plot: str, words: str) -> None:
    run = CliRunner().invoke(app, ["profile", "--plot", plot])
    assert run.exit_code == 2
    assert words in run.stderr


def test_plot_names_the_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = CliRunner().invoke(app, ["profile", "--plot", str(tmp_path / "x.svg")])
    assert run.exit_code == 2
    assert "draftproof[plot]" in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_plot_is_drawn(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` isn't installed")
    from draftproof.bench.plot import check_plot, draw

    path = tmp_path / f"profile{suffix}"
    check_plot(path)
    draw(made_up([0.01], [20.0], []), path)
    start = path.read_bytes()[:200]
    assert b"<svg" in path.read_bytes() if suffix == ".svg" else start.startswith(b"\x89PNG")
