"""`draftproof bench` as it is typed, around a fake LLM; and once around a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from timed_llm import TimedLLM
from typer.testing import CliRunner, Result

from draftproof.cli.app import app

Invoke = Callable[..., Result]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TimedLLM:
    fake = TimedLLM()
    monkeypatch.setattr("draftproof.llm.LLM", fake.open)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return fake


@pytest.fixture
def bench(llm: TimedLLM) -> Invoke:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)

    return call


def workload(tmp_path: Path, *names: str, tokens: int = 12, bad: str = "") -> str:
    path = tmp_path / "w.jsonl"
    lines = [
        json.dumps({"id": name, "kind": name[0], "prompt": name, "max_tokens": tokens})
        for name in names
    ]
    path.write_text("\n".join([*lines[:1], *([bad] if bad else []), *lines[1:]]) + "\n")
    return str(path)


def test_json_alone_on_stdout(bench: Invoke, llm: TimedLLM, tmp_path: Path) -> None:
    run = bench("some.gguf", "-w", workload(tmp_path, "x1", "x2"), "--json", "--threads", "2")
    assert run.exit_code == 0
    shown = json.loads(run.stdout)
    assert list(shown) == ["engine", "summary", "prompts"]
    assert shown["summary"]["speedup"] == pytest.approx(2.0)
    assert shown["summary"]["noise"] == 0.0
    assert shown["engine"]["speculation"] == "auto, k chosen every step, exact"
    assert shown["engine"]["verify_cost"]["1"] == 1.0
    assert llm.settings["model"] == "some.gguf"
    assert llm.settings["threads"] == 2
    assert "1/2 x1: 12 tokens, 2.00 x, identical" in run.stderr


def test_a_difference_ends_with_1(bench: Invoke, llm: TimedLLM, tmp_path: Path) -> None:
    llm.broken = {"x2": 5}
    run = bench("-w", workload(tmp_path, "x1", "x2"), "--repeat", "1")
    assert run.exit_code == 1
    assert "x2 differs from plain decoding at token 5" in run.stderr
    assert "differs @5" in run.stdout


def test_built_in_prompts_by_default(bench: Invoke, llm: TimedLLM) -> None:
    run = bench("--repeat", "1", "--format", "jsonl", "--max-tokens", "16")
    assert run.exit_code == 0
    ids = [json.loads(line)["id"] for line in run.stdout.splitlines()]
    assert ids[0] == "verbatim-repeat"
    assert len(ids) == 6
    assert {tokens for _, _, tokens in llm.calls} == {8, 16}
    # One control per kind: seven runs beyond warm-up and one of each side would be too many.
    assert len(llm.calls) == 2 + 6 * 2 + 5


def test_malformed_line_is_named(bench: Invoke, llm: TimedLLM, tmp_path: Path) -> None:
    path = workload(tmp_path, "x1", "x2", bad='{"id": "oops"}')
    run = bench("-w", path)
    assert run.exit_code == 2
    assert f"{path}:2: messages (or prompt) is missing" in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert run.stdout == ""
    assert llm.calls == []


def test_keep_going_runs_the_good_lines(bench: Invoke, tmp_path: Path) -> None:
    path = workload(tmp_path, "x1", "x2 too long", "x3", bad='{"id": "oops"}')
    run = bench("-w", path, "--keep-going", "--format", "jsonl")
    assert run.exit_code == 2  # like make -k: the rest is done, and something was wrong
    assert [json.loads(line)["id"] for line in run.stdout.splitlines()] == ["x1", "x3"]
    assert f"skipped: {path}:2: messages (or prompt) is missing" in run.stderr
    assert "skipped: x2 too long: the prompt has 999 tokens" in run.stderr


def test_a_prompt_that_does_not_fit(bench: Invoke, tmp_path: Path) -> None:
    run = bench("-w", workload(tmp_path, "x1", "x2 too long"))
    assert run.exit_code == 2
    assert "x2 too long: the prompt has 999 tokens" in run.stderr


def test_resume_skips_what_is_done(bench: Invoke, llm: TimedLLM, tmp_path: Path) -> None:
    path, journal = workload(tmp_path, "x1", "x2", "x3"), str(tmp_path / "journal.jsonl")
    llm.interrupt_after = 2 + 6  # warm-up and the first prompt, three runs of each side
    assert bench("-w", path, "--resume", journal).exit_code == 130
    llm.interrupt_after = None
    llm.calls.clear()
    run = bench("-w", path, "--resume", journal, "--json")
    assert run.exit_code == 0
    assert [p["id"] for p in json.loads(run.stdout)["prompts"]] == ["x1", "x2", "x3"]
    assert [text for text, _, tokens in llm.calls if tokens == 12] == ["x2"] * 6 + ["x3"] * 6
    other = bench("-w", path, "--resume", journal, "--spec", "window")
    assert other.exit_code == 2
    assert "was begun with speculation" in other.stderr


def test_sample_and_spec_options(bench: Invoke, tmp_path: Path) -> None:
    path = workload(tmp_path, *(f"x{i}" for i in range(20)))
    arguments = ("-w", path, "--sample", "3", "--seed", "4", "--spec", "window", "--spec-k", "8")
    shown = json.loads(bench(*arguments, "--spec-verify", "replay", "--json").stdout)
    assert len(shown["prompts"]) == 3
    assert shown["engine"]["speculation"] == "window, k = 8, replay"
    again = json.loads(bench(*arguments, "--json").stdout)
    assert [p["id"] for p in again["prompts"]] == [p["id"] for p in shown["prompts"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--spec", "crystal-ball"), "--spec must be one of auto"),
        (("--spec", "oracle"), "--spec must be one of auto"),
        (("--spec-k", "64"), "--spec-k must be auto or a whole number from 0 to 63"),
        (("--spec-k", "-1"), "--spec-k must be auto"),
        (("--spec-k", "four"), "--spec-k must be auto"),
        (("--spec-verify", "trust"), "--spec-verify must be one of exact, replay"),
        (("--repeat", "0"), "--repeat must be between 1"),
        (("--sample", "0"), "--sample must be between 1"),
        (("--threads", "0"), "--threads must be between 1"),
        (("--temperature", "-1"), "--temperature must be between 0"),
        (("--drafter-only",), "--drafter-only and --replay FILE belong together"),
        (("--replay", "x.jsonl"), "--drafter-only and --replay FILE belong together"),
        (("--profile", "x.json"), "--profile is for --drafter-only"),
        (("-w", "nowhere.jsonl"), "nowhere.jsonl can't be read"),
    ],
)
def test_mistakes_cost_one_line_and_no_loading(
    arguments: tuple[str, ...], words: str, bench: Invoke, llm: TimedLLM
) -> None:
    run = bench(*arguments)
    assert run.exit_code == 2
    assert words in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert llm.settings == {}


def test_empty_workload(bench: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n")
    run = bench("-w", str(path))
    assert run.exit_code == 2
    assert "no prompts to run" in run.stderr


def test_subcommands_and_help(bench: Invoke) -> None:
    assert "--workload" in bench("--help").stdout
    assert "--shape" in bench("kernels", "--help").stdout


@pytest.mark.model("smollm2-135m")
def test_a_real_model(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))  # V measured in a test is nobody's prior
    run = CliRunner().invoke(
        app,
        ["bench", str(smollm2), "--sample", "4", "-r", "1", "-n", "32", "--json", "-t", "1"],
        catch_exceptions=False,
    )
    assert run.exit_code == 0, run.stderr
    shown = json.loads(run.stdout)
    assert len(shown["prompts"]) == 4
    assert shown["summary"]["identical"] is True
    for prompt in shown["prompts"]:
        assert prompt["sha256_off"] == prompt["sha256_on"]
        assert prompt["tokens"] <= 32
        assert prompt["off_tps"] > 0
        assert prompt["modelled_speedup"] > 0.5
