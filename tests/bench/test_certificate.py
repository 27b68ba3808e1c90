"""`draftproof prove`: real runs of a tiny model, and what a certificate refuses to call a proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dispatch_rows import isa_rows
from draftproof.bench.certificate import Answer, compare
from draftproof.cli.prove import _row
from draftproof.llm import LLM
from draftproof.outputs import LogitsRow
from tiny_models import TinyModels

Prove = Callable[..., Result]


@pytest.fixture(scope="module")
def model(tiny: TinyModels) -> str:
    return str(tiny.path("qwen2", "Q8_0"))


@pytest.fixture
def prove(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prove:
    from draftproof.cli.app import app

    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["prove", model, *words], catch_exceptions=False)

    return call


@pytest.fixture
def certificate(prove: Prove, tmp_path: Path) -> dict[str, Any]:
    result = prove("--max-tokens", "12", "--threads", "1", "--out", "c.json")
    assert result.exit_code == 0, result.stderr
    assert "identical, bit for bit" in result.stdout
    value: dict[str, Any] = json.loads((tmp_path / "c.json").read_text())
    return value


def test_a_proof_covers_every_axis_and_holds_here_again(
    certificate: dict[str, Any], prove: Prove
) -> None:
    axes = {line["axis"] for line in certificate["lines"]}
    assert axes >= {"drafter", "draft length", "replay", "oracle", "batch", "threads"}
    assert axes >= {"prompt chunks", "prefix cache"}
    (hit,) = (line for line in certificate["lines"] if line["setting"] == "hit")
    assert int(hit["evidence"].split()[0]) > 0
    settings = {line["setting"] for line in certificate["lines"] if "set" in line["axis"]}
    assert settings | {certificate["plain"]["isa"]} == {*isa_rows()}
    assert certificate["drafted"] > 0
    assert certificate["rejected"] > 0
    assert certificate["holds"] is True
    assert len(certificate["digest"]) == 64
    result = prove("--check", "c.json", "--json")
    assert result.exit_code == 0, result.stderr
    again = json.loads(result.stdout)
    assert again["digest"] == certificate["digest"]
    assert again["drafted"] > 0


def rewritten(certificate: dict[str, Any], path: Path, change: Callable[[Any], None]) -> None:
    """A certificate that was changed, its digest with it."""
    from draftproof.bench import certificate as certificates

    change(certificate)
    certificate["digest"] = certificates._parse(certificate).digest
    path.write_text(json.dumps(certificate))


def test_other_logits_are_found_with_place_and_values(
    certificate: dict[str, Any], prove: Prove, tmp_path: Path
) -> None:
    def change(value: Any) -> None:
        value["answers"][0]["rows"][4]["sha256"] = "0" * 16

    rewritten(certificate, tmp_path / "other.json", change)
    result = prove("--check", "other.json")
    assert result.exit_code == 1
    assert "counting: logits at output position 4 differs" in result.stderr
    shown = [line for line in result.stderr.splitlines() if "plain:" in line or "other:" in line]
    assert [line.count(": ") for line in shown] == [8, 8]  # five of token: logit, three in front
    assert "NO PROOF" in result.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["engine"].update(arithmetic_version=99), "is of arithmetic version 99"),
        (lambda c: c["model"].update(sha256="ab" * 32), "is about another model file"),
    ],
)
def test_what_cannot_be_compared(
    certificate: dict[str, Any],
    prove: Prove,
    tmp_path: Path,
    change: Callable[[Any], None],
    words: str,
) -> None:
    rewritten(certificate, tmp_path / "other.json", change)
    assert_one_line(prove("--check", "other.json"), words)


def assert_one_line(result: Result, words: str) -> None:
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_changed_answer_is_noticed(
    certificate: dict[str, Any], prove: Prove, tmp_path: Path
) -> None:
    certificate["answers"][0]["token_ids"][0] += 1
    (tmp_path / "changed.json").write_text(json.dumps(certificate))
    assert_one_line(prove("--check", "changed.json"), "was changed after it was written")


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"certificate": 1}', "\x00\xff", "[" * 100_000, '{"certificate": 1, "a": 1'],
)
def test_broken_certificates(prove: Prove, tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text, "utf-8")
    assert_one_line(prove("--check", "broken.json"), "isn't a certificate, or a broken one")


def test_other_mistakes(prove: Prove, tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text('{"certificate": 2}')
    assert_one_line(prove("--check", "new.json"), "is a certificate of format 2")
    assert_one_line(prove("--check", "gone.json"), "can't be read")
    assert_one_line(prove("--check", "new.json", "--prompt", "a"), "asks what the certificate")
    assert_one_line(prove("--out", "no/such/c.json"), "no such folder")
    assert_one_line(prove("--max-tokens", "1"), "--max-tokens must be between 2")
    assert_one_line(prove("--prompt", "a", "--workload", "b"), "exclude each other")


class Altered(LLM):
    """Plain decoding is right; what drafts is off by one bit in `at` of its logits."""

    at = 3

    def generate(self, *words: Any, **options: Any) -> Any:
        completion = super().generate(*words, **options)
        rows = completion.audit.rows
        if completion.speculation["drafter"] == "window" and len(rows) > self.at:
            wrong = replace(rows[self.at], sha256="f" * 16)
            rows = (*rows[: self.at], wrong, *rows[self.at + 1 :])
        return replace(completion, audit=replace(completion.audit, rows=rows))


def test_a_difference_ends_the_proof(
    prove: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.llm.LLM", Altered)
    result = prove("--max-tokens", "8", "--threads", "1", "--out", "c.json")
    assert result.exit_code == 1
    assert "counting: logits at output position 3 differs" in result.stderr
    assert "axis: drafter, window, k = 8" in result.stderr
    assert_one_line(prove("--check", "c.json"), "records a proof that failed")


@pytest.mark.parametrize(
    ("hide", "words"),
    [
        ("drafts", "drafter: nothing was drafted"),
        ("row", "rows of this machine that weren't run: scalar"),
    ],
)
def test_an_empty_proof_fails(
    prove: Prove, model: str, monkeypatch: pytest.MonkeyPatch, hide: str, words: str
) -> None:
    class Lazy(LLM):
        def generate(self, *given: Any, **options: Any) -> Any:
            completion = super().generate(*given, **options)
            if hide == "drafts":
                counts = {**completion.speculation, "drafted": 0}
                return replace(completion, speculation=counts)
            engine = completion.engine
            return replace(
                completion,
                engine=replace(engine, isa="avx2" if engine.isa == "scalar" else engine.isa),
            )

    if hide == "row" and len(isa_rows()) == 1:
        pytest.skip("the scalar row is the only one here")
    monkeypatch.setattr("draftproof.llm.LLM", Lazy)
    result = prove("--max-tokens", "6", "--threads", "1")
    assert f"written to {Path(model).stem}.certificate.json" in result.stderr
    assert result.exit_code == 1
    assert words in result.stderr
    assert "NO PROOF" in result.stdout


def test_a_narrow_terminal_gets_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\n" not in _row("x" * 30, 1, 2, 3)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert [len(line) <= 40 for line in _row("x" * 30, 1, 2, 3).split("\n")] == [True, True]


ROWS = tuple(LogitsRow(f"{i:016x}", ((i, 1.0),)) for i in range(3))
PLAIN = Answer((5, 6, 7), ROWS, "all", "kv", 9)


@pytest.mark.parametrize(
    ("other", "kind", "position"),
    [
        (replace(PLAIN, token_ids=(5, 9, 7)), "token", 1),
        (replace(PLAIN, rows=(ROWS[0], ROWS[2], ROWS[2])), "logits", 1),
        (replace(PLAIN, token_ids=(5, 6), rows=ROWS[:2]), "end", 2),
        (replace(PLAIN, logits_sha256="x"), "logits", 3),
        (replace(PLAIN, kv_sha256="x"), "kv", 3),
    ],
)
def test_compare(other: Answer, kind: str, position: int) -> None:
    found = compare("axis", "setting", "q", PLAIN, other)
    assert found is not None
    assert (found.kind, found.position) == (kind, position)
    assert compare("axis", "setting", "q", PLAIN, PLAIN) is None


def test_a_shorter_run_must_be_the_beginning() -> None:
    short = replace(PLAIN, token_ids=(5, 6), rows=ROWS[:2], kv_length=8)
    assert compare("a", "s", "q", PLAIN, short, whole=False) is None
    longer = replace(PLAIN, token_ids=(5, 6, 7, 8), rows=(*ROWS, ROWS[0]))
    assert compare("a", "s", "q", PLAIN, longer, whole=False) is not None
