"""`--plot`: what the pictures show, and that colours and backgrounds suit everybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from timed_llm import TimedLLM
from typer.testing import CliRunner

from draftproof.bench import plot
from draftproof.bench.compare import PromptResult

pytest.importorskip("matplotlib", reason="the extra `plot` isn't installed")

ENGINE = {
    **{"model": "m", "isa": "scalar", "threads": 2, "speculation": "auto"},
    "verify_cost": {"1": 1.0, "2": 1.2, "4": 1.5, "8": 2.5},
}


def result(
    name: str, speedup: float, accepted: tuple[int, ...] = (), tries: int = 0
) -> PromptResult:
    return PromptResult(
        *(name, name[0], 30, 10.0, 10.0 * speedup, None, 0.5, 2.0, "a", "a"),
        tries=tries,
        accepted_per_position=accepted,
    )


RESULTS = [result("copy", 3.0, (4, 3, 1), 5), result("prose", 0.97), result("list", 2.0, (1,), 2)]


def test_the_picture_says_it_in_words(tmp_path: Path) -> None:
    path = tmp_path / "b.svg"
    plot.draw_comparison(ENGINE, RESULTS, path)
    text = path.read_text("utf-8")
    assert text.count("worst") == 1
    assert "0.97 x  worst" in text
    for label in ("3.00 x", "Acceptance per position", "position in the draft", "V(m)", "copy"):
        assert label in text
    again = tmp_path / "again.svg"
    plot.draw_comparison(ENGINE, RESULTS, again)
    assert "opacity: 0" in text or "fill: none" in text
    assert again.stat().st_size == path.stat().st_size


def test_only_the_slowest_are_shown_where_there_are_many(tmp_path: Path) -> None:
    many = [result(f"prompt-{i:03}", 1 + i / 10) for i in range(60)]
    path = tmp_path / "b.svg"
    plot.draw_comparison(ENGINE, many, path)
    text = path.read_text("utf-8")
    assert "prompt-000" in text
    assert "prompt-039" in text
    assert "prompt-040" not in text


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#111418"])
@pytest.mark.parametrize("colour", [*plot._COLOURS, plot._INK])
def test_contrast_on_light_and_dark(colour: str, page: str) -> None:
    dark, light = sorted((luminance(colour), luminance(page)))
    assert (light + 0.05) / (dark + 0.05) >= 3.0


def test_bench_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.cli.app import app

    monkeypatch.setattr("draftproof.llm.LLM", TimedLLM().open)
    workload = tmp_path / "w.jsonl"
    workload.write_text('{"prompt": "abc", "max_tokens": 5}\n')
    path = tmp_path / "bench.png"
    words = ["bench", "-w", str(workload), "--plot", str(path), "--repeat", "1"]
    run = CliRunner().invoke(app, words, catch_exceptions=False)
    assert run.exit_code == 0, run.stderr
    assert path.read_bytes().startswith(b"\x89PNG")
    run = CliRunner().invoke(app, ["bench", "--plot", str(tmp_path / "x.pdf")])
    assert run.exit_code == 2
    assert "--plot must end in .svg or .png" in run.stderr
