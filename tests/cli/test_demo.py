"""`draftproof demo`: what is measured, the verdict, the table."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
from fake_llm import FakeLLM, Invoke

from draftproof.cli.demo import PROMPTS, DemoPrompt, first_difference, measure, token_digest


def test_first_difference() -> None:
    assert first_difference([], []) is None
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([5], [6, 5]) == 0
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 2, 3], []) == 0


def test_digest_is_sha256_of_little_endian_int32() -> None:
    assert token_digest([]) == hashlib.sha256(b"").hexdigest()
    assert token_digest([1, 70000]) == hashlib.sha256(struct.pack("<2i", 1, 70000)).hexdigest()


def test_measure_runs_every_prompt_in_every_mode(fake: FakeLLM) -> None:
    started: list[tuple[str, str]] = []
    texts: list[str] = []
    comparisons = measure(
        fake,  # type: ignore[arg-type]
        [DemoPrompt("one", "first"), DemoPrompt("two", "second")],
        k=9,
        max_tokens=2,
        on_start=lambda prompt, mode: started.append((prompt.title, mode)),
        on_text=texts.append,
    )
    modes = ["off", "exact", "k = 8", "replay"]
    assert started == [(title, mode) for title in ("one", "two") for mode in modes]
    assert texts == ["Hel", "lo "] * 8  # the run that warms up is silent
    warm_up, *calls = fake.calls
    assert warm_up[2].drafter == "off"
    assert [prompt[0]["content"] for prompt, _, _ in calls] == ["first"] * 4 + ["second"] * 4
    assert all((s.temperature, s.max_tokens) == (0.0, 2) for _, s, _ in calls)
    assert [(c.drafter, c.verify) for _, _, c in calls[:4]] == [
        ("off", "exact"),
        ("auto", "exact"),
        ("auto", "exact"),
        ("auto", "replay"),
    ]
    assert [c.k for _, _, c in calls if c.drafter == "auto"] == [9, 8, 9] * 2
    assert not any(c.remember for _, _, c in calls if c.drafter == "auto")
    assert [c.is_identical for c in comparisons] == [True, True]
    assert comparisons[0].speedup("exact") == pytest.approx(2.5)
    assert comparisons[0].speedup("replay") == pytest.approx(0.95)


def test_a_busy_machine_is_owned_up_to(invoke: Invoke, fake: FakeLLM) -> None:
    assert "busy" not in invoke("demo").stderr
    # Warm-up, then four times (off, exact, k = 8, replay): the second plain run is slow.
    fake.slowdown = {len(fake.calls) + 6: 3.0}
    result = invoke("demo", "--json")
    assert json.loads(result.stdout)["plain_spread"] == pytest.approx(3.0)
    fake.slowdown = {len(fake.calls) + 6: 3.0}
    result = invoke("demo")
    assert result.exit_code == 0
    assert "by a factor of 3.0" in result.stderr


def test_the_four_prompts_are_short() -> None:
    assert len(PROMPTS) == 4
    assert len({prompt.title for prompt in PROMPTS}) == 4
    assert all(len(prompt.text) < 500 for prompt in PROMPTS)


def test_all_identical(invoke: Invoke, fake: FakeLLM) -> None:
    result = invoke("demo")
    assert result.exit_code == 0, result.stderr
    digest = token_digest([100, 101, 102])
    assert result.stdout.count("identical") == 12  # four prompts, three rows
    assert result.stdout.count(digest[:12]) == 12
    assert digest[:13] not in result.stdout
    assert result.stdout.count("Hello world") == 8  # four prompts, off and on
    for prompt in PROMPTS:
        assert prompt.title in result.stdout
    assert "2.50 x" in result.stdout
    assert "0.95 x" in result.stdout
    assert "5 ÷ 8" in result.stdout
    assert fake.loaded[0]["model"] is None
    assert fake.calls[-1][1].max_tokens == 128
    assert fake.calls[-1][2].k is None


def test_options_arrive(invoke: Invoke, fake: FakeLLM) -> None:
    options = ["--model", "m.gguf", "--threads", "2", "--spec-k", "5", "--max-tokens", "3"]
    assert invoke("demo", *options).exit_code == 0
    assert (fake.loaded[0]["model"], fake.loaded[0]["threads"]) == ("m.gguf", 2)
    assert fake.calls[-1][1].max_tokens == 3
    assert fake.calls[-1][2].k == 5


@pytest.mark.parametrize("mode", ["exact", "replay"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_difference_names_its_position(
    invoke: Invoke, fake: FakeLLM, mode: str, as_json: bool
) -> None:
    fake.wrong_at = {mode: 1}
    result = invoke("demo", *(["--json"] if as_json else []))
    assert result.exit_code == 1
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    wrong = ["exact", "k = 8"] if mode == "exact" else ["replay"]  # the fake knows verify only
    assert len(errors) == 4 * len(wrong)
    assert f"{mode} differs from plain decoding at token 1: 7 instead of 101" in errors[0]
    if as_json:
        value = json.loads(result.stdout)
        assert value["identical"] is False
        differences = {name: 1 if name in wrong else None for name in ("exact", "k = 8", "replay")}
        assert value["prompts"][0]["first_difference"] == differences
    else:
        assert result.stdout.count("differs @1") == 4 * len(wrong)
        assert result.stdout.count("identical") == 4 * (3 - len(wrong))


def test_an_answer_that_is_shorter_differs(invoke: Invoke, fake: FakeLLM) -> None:
    fake.short_in = {"exact": 1}
    result = invoke("demo")
    assert result.exit_code == 1
    assert "at token 2: the end instead of 102" in result.stderr


def test_replay_mismatches_fail_even_if_the_tokens_agree(invoke: Invoke, fake: FakeLLM) -> None:
    fake.replay_mismatches = 3
    result = invoke("demo")
    assert result.exit_code == 1
    assert "3 replayed rows disagreed" in result.stderr


def test_json_has_whole_digests_and_all_statistics(invoke: Invoke, fake: FakeLLM) -> None:
    result = invoke("demo", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    value = json.loads(result.stdout)
    assert value["identical"] is True
    assert value["k"] == "auto"
    assert value["engine"]["isa"] == "scalar"
    assert [entry["title"] for entry in value["prompts"]] == [prompt.title for prompt in PROMPTS]
    for entry in value["prompts"]:
        assert entry["verdict"] == "identical"
        assert set(entry["runs"]) == {"off", "exact", "k = 8", "replay"}
        for run in entry["runs"].values():
            assert run["token_ids_sha256"] == token_digest(run["token_ids"])
            assert run["timings"]["predicted_per_second"] > 0
        assert entry["runs"]["exact"]["speculation"]["drafted"] == 8


@pytest.mark.parametrize(("option", "value"), [("--spec-k", "64"), ("--max-tokens", "0")])
def test_out_of_range(invoke: Invoke, fake: FakeLLM, option: str, value: str) -> None:
    result = invoke("demo", option, value)
    assert result.exit_code == 2
    assert option in result.stderr
    assert result.stderr.count("\n") == 1
    assert fake.loaded == []
