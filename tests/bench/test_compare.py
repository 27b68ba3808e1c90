"""Off against on with a fake LLM: order of runs, medians, worst case, noise, identity, resume."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields
from pathlib import Path

import pytest
from timed_llm import TimedLLM

from draftproof.bench.compare import (
    CompareSettings,
    PromptResult,
    compare,
    summarize,
    warm_up,
)
from draftproof.bench.metrics import token_digest
from draftproof.bench.report import render
from draftproof.bench.resume import Journal
from draftproof.bench.workloads import Workload
from draftproof.config import SpeculativeConfig
from draftproof.errors import InvalidRequestError

WINDOW = SpeculativeConfig(drafter="window", k=4)
ENGINE = {"model": "m", "isa": "scalar", "threads": 2, "speculation": "window"}
KEYS = [
    "id", "kind", "tokens", "off_tps", "on_tps", "speedup", "modelled_speedup", "acceptance_rate",
    "mean_acceptance_length", "identical", "sha256_off", "sha256_on",
]  # fmt: skip


def work(name: str = "w", kind: str = "k", tokens: int = 10) -> Workload:
    return Workload(name, kind, f"prompt {name}", tokens)


def result(name: str, off: float, on: float, tokens: int = 100, **more: object) -> PromptResult:
    values = {"control": None, "first_difference": None, **more}
    return PromptResult(name, "k", tokens, off, on, None, 0.5, 2.0, "s", "s", **values)  # type: ignore[arg-type]


def test_runs_alternate_and_medians_count() -> None:
    # Off: 10, 30, 11; on: 20, 24, 100: a single outlier changes nothing.
    rates = {False: [10.0, 30.0, 11.0], True: [20.0, 24.0, 100.0]}
    llm = TimedLLM(rate=lambda _, on, call: rates[on][call])
    found = compare(llm, work(), CompareSettings(WINDOW, repeat=3))
    assert [on for _, on, _ in llm.calls] == [False, True] * 3
    assert (found.off_tps, found.on_tps) == (11.0, 24.0)
    assert found.speedup == pytest.approx(24 / 11)
    assert found.control == pytest.approx(30 / 10.5)  # run 2 against runs 1 and 3
    assert found.tokens == 10
    assert found.identical
    assert found.sha256_off == found.sha256_on == token_digest([800 + i for i in range(10)])
    # The counts are those of the run of median speed, the second.
    assert found.modelled_speedup == pytest.approx(30 / 19)
    assert found.acceptance_rate == pytest.approx(1 / 4)
    assert found.mean_acceptance_length == pytest.approx(2.0)


def test_control_with_a_single_run_of_each_side() -> None:
    llm = TimedLLM(rate=lambda _, on, call: 20.0 if on else (10.0, 9.0)[call])
    settings = CompareSettings(WINDOW, repeat=1)
    with_control = compare(llm, work("a"), settings, extra_control=True)
    assert [on for _, on, _ in llm.calls] == [False, True, False]
    assert with_control.control == pytest.approx(0.9)
    without = compare(llm, work("b"), settings)
    assert without.control is None
    assert without.off_tps == 10.0
    assert summarize([with_control, without]).noise == pytest.approx(0.1)
    assert summarize([without]).noise is None


def test_both_sides_are_warmed_up_briefly() -> None:
    llm = TimedLLM()
    warm_up(llm, work(tokens=500), CompareSettings(WINDOW))
    assert sorted((on, tokens) for _, on, tokens in llm.calls) == [(False, 8), (True, 8)]


def test_sampling_is_the_same_on_both_sides() -> None:
    sampling = CompareSettings(WINDOW, temperature=0.7, seed=5).sampling(9)
    assert (sampling.temperature, sampling.seed, sampling.max_tokens) == (0.7, 5, 9)


def test_a_difference_is_found_and_placed() -> None:
    llm = TimedLLM(broken={"prompt w": 6})
    found = compare(llm, work(), CompareSettings(WINDOW, repeat=2))
    assert not found.identical
    assert found.first_difference == 6
    assert found.sha256_off != found.sha256_on
    assert not summarize([found]).identical


def test_worst_case_and_overall() -> None:
    results = [result("a", 10, 40), result("b", 10, 9), result("c", 10, 20, 1000)]
    summary = summarize(results)
    assert summary.worst is results[1]
    assert summary.speedup == pytest.approx(1200 / (25 + 100 / 0.9 + 500))
    # An answer of one token has no rate: it is neither the worst nor part of the mean.
    assert summarize([*results, result("one", 0, 0, 1)]).worst is results[1]
    assert summarize([]).worst is None


def test_json_has_the_promised_keys() -> None:
    shown = json.loads(render("json", ENGINE, [result("a", 10, 20), result("b", 10, 5)]))
    assert list(shown) == ["engine", "summary", "prompts"]
    assert shown["summary"] == {
        "speedup": pytest.approx(200 / 250),
        "worst": {"id": "b", "kind": "k", "speedup": 0.5},
        "identical": True,
        "noise": None,
    }
    assert [list(prompt) for prompt in shown["prompts"]] == [KEYS, KEYS]


def test_other_formats() -> None:
    results = [result("a,1", 10, 20), result("b", 10, 5, first_difference=3)]
    table = list(csv.reader(io.StringIO(render("csv", ENGINE, results))))
    assert table[0] == KEYS
    assert [row[0] for row in table[1:]] == ["a,1", "b"]
    lines = render("jsonl", ENGINE, results).splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a,1", "b"]
    page = render("md", {**ENGINE, "noise_reasons": ["others were busy"]}, results)
    assert "- Noisy: others were busy" in page
    assert "| differs @3 |" in page
    assert "Worst: b, 0.50" in page
    assert "THE TOKENS DIFFER: 1 of 2 prompts identical" in page


# --- resume --------------------------------------------------------------------------------------


def test_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = result("a", 10, 20, control=0.98, first_difference=4)
    Journal(path, {"model": "m"}).add(first)
    # The next line was being written when the power went.
    with path.open("a") as file:
        file.write('{"id": "b", "kind"')
    again = Journal(path, {"model": "m"})
    assert again.done == {"a": first}
    again.add(result("b", 10, 30))
    assert set(Journal(path, {"model": "m"}).done) == {"a", "b"}
    assert len(path.read_text().splitlines()) == 3


def test_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, {"model": "m", "threads": 2})
    with pytest.raises(InvalidRequestError, match="begun with threads = 2, now it is 4"):
        Journal(path, {"model": "m", "threads": 4})


@pytest.mark.parametrize("content", ["hello\n", '{"id": 1}\n', "[]\n"])
def test_other_files_are_never_overwritten(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(content)
    with pytest.raises(InvalidRequestError, match="isn't a journal"):
        Journal(path, {})
    assert path.read_text() == content


def test_broken_line_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, {}).add(result("a", 1, 2))
    with path.open("a") as file:
        file.write('{"id": "b"}\n')
    Journal(path, {}).add(result("c", 1, 2))  # as the last line it may have been cut off
    with pytest.raises(InvalidRequestError, match=r"journal\.jsonl:3 is no result"):
        Journal(path, {})


def test_unwritable_journal(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="can't be used"):
        Journal(tmp_path / "none" / "journal.jsonl", {})


def test_journal_keeps_every_field(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, {}).add(result("a", 1, 2))
    assert set(json.loads(path.read_text().splitlines()[1])) == {
        f.name for f in fields(PromptResult)
    }
