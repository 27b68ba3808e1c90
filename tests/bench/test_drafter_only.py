"""`bench --drafter-only`: recorded texts give the counts that a real run would have given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from draftproof.bench.replay import Recording, load_recordings, replay, replay_all
from draftproof.cli.app import app
from draftproof.config import SpeculativeConfig
from draftproof.drafting import DraftMemory, TokenText, VerifyCost
from draftproof.drafting.verify_cost import Measurement
from draftproof.errors import InvalidRequestError
from tiny_models import TinyModels

WINDOW = SpeculativeConfig(drafter="window", k=4)
FLAT = Measurement(0.0, {1: 1.0, 64: 1.0})
TEXT = TokenText(lambda token: b"%c" % (token % 256), lambda text: list(text.encode()))


def run_once(recording: Recording, config: SpeculativeConfig) -> tuple[int, int, int, int]:
    stats = replay(recording, config, DraftMemory(TEXT, verify_cost=VerifyCost(FLAT)), 1000)
    return stats.steps, stats.tries, stats.drafted, stats.accepted


def test_a_pure_copy() -> None:
    # The window needs 3 tokens in common: outputs 1, 2, 3 are plain, then 4 + 1 at a time.
    text = tuple(range(1, 24))
    recording = Recording("r", "k", text, text)
    steps, tries, drafted, accepted = run_once(recording, WINDOW)
    assert drafted == accepted
    assert steps + accepted == len(text)  # every token is emitted once
    assert (steps, tries) == (3 + 4, 4)


def test_nothing_to_copy() -> None:
    recording = Recording("r", "k", tuple(range(100, 120)), tuple(range(20)))
    assert run_once(recording, WINDOW) == (20, 0, 0, 0)
    assert run_once(recording, SpeculativeConfig(drafter="off")) == (20, 0, 0, 0)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_shortest_outputs(length: int) -> None:
    recording = Recording("r", "k", tuple(range(30)), tuple(range(length)))
    steps, _, _, accepted = run_once(recording, WINDOW)
    assert steps + accepted == length


def test_totals_by_kind_and_modelled_speedup() -> None:
    text = tuple(range(1, 24))
    recordings = [
        Recording("a", "copy", text, text),
        Recording("b", "new", text, tuple(range(50, 60))),
    ]
    totals = replay_all(recordings, WINDOW, FLAT, TEXT, 1000)
    assert list(totals) == ["copy", "new", "all"]
    # V = 1 whatever the rows: a step is a step. The first token isn't in the ledger.
    assert totals["copy"].modelled_speedup == pytest.approx(22 / 6)
    assert totals["new"].modelled_speedup == pytest.approx(1.0)
    assert totals["all"].tokens == 33
    assert totals["all"].recordings == 2


def test_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"prompt": "p"}\n{"output": "o"}\nx\n{"prompt": "p", "output": "abc"}\n')
    recordings, complaints = load_recordings(path, TEXT.encode)
    assert [r.output for r in recordings] == [(97, 98, 99)]
    assert [r.id for r in recordings] == ["r.jsonl:4"]
    assert complaints[0] == f"{path}:1: output is missing"
    assert complaints[1] == f"{path}:2: prompt is missing"
    assert complaints[2].startswith(f"{path}:3: no JSON")
    with pytest.raises(InvalidRequestError, match="can't be read"):
        load_recordings(tmp_path / "none", TEXT.encode)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments, "--drafter-only"])


def test_command(tiny: TinyModels, tmp_path: Path) -> None:
    model = str(tiny.path("qwen3", "Q8_0"))
    path = tmp_path / "r.jsonl"
    poem = "the cat sat on the mat and the dog sat on the log " * 3
    good = json.dumps({"id": "1", "kind": "poem", "prompt": poem, "output": poem})
    path.write_text(f'{good}\n{{"prompt": "p"}}\n')
    run = call(model, "--replay", str(path))
    assert run.exit_code == 2
    assert f"{path}:2: output is missing" in run.stderr
    run = call(model, "--replay", str(path), "--keep-going", "--spec", "window", "--json")
    shown = json.loads(run.stdout)
    assert [(r["drafter"], r["kind"]) for r in shown["results"]] == [
        ("window", "poem"),
        ("window", "all"),
    ]
    assert shown["results"][0]["accepted"] > 0
    assert shown["measured"] is False
    run = call(model, "--replay", str(path), "--keep-going")
    for name in ("auto", "window k=4", "window k=8", "window k=15"):
        assert f"| {name:11} | poem |" in run.stdout


def test_profile_file(tiny: TinyModels, tmp_path: Path) -> None:
    model = str(tiny.path("qwen3", "Q8_0"))
    path, profile = tmp_path / "r.jsonl", tmp_path / "profile.json"
    path.write_text('{"prompt": "a b c", "output": "a b c"}\n')
    profile.write_text('{"plain_step_ms": 10, "spread": 1, "verify_cost": {"1": 1, "64": 5}}')
    run = call(model, "--replay", str(path), "--profile", str(profile), "--json")
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["verify_cost"] == {"1": 1.0, "64": 5.0}
    profile.write_text("{}")
    run = call(model, "--replay", str(path), "--profile", str(profile))
    assert run.exit_code == 2
    assert "isn't the --json output of draftproof profile" in run.stderr
