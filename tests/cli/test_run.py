"""`draftproof run`: arguments, pipes, settings, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_llm import FakeLLM, Invoke

from draftproof.cli import run as run_module
from draftproof.errors import ModelFileError, ModelNotFoundError


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def failed(result: Any, *expected: str) -> None:
    """Exit 2, nothing on stdout, one line on stderr that has every expected word."""
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("draftproof: error: ")
    for word in expected:
        assert word in lines[0]


# --- which model, which prompt --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "piped", "model", "prompt"),
    [
        (["hello you"], None, None, "hello you"),
        (["hello"], None, None, "hello"),
        (["smollm2-135m", "hello"], None, "smollm2-135m", "hello"),
        (["what/ever.gguf", "hello"], None, "what/ever.gguf", "hello"),
        (["what/ever.gguf"], "piped", "what/ever.gguf", "piped"),
        (["UPPER.GGUF"], "piped", "UPPER.GGUF", "piped"),
        (["qwen2.5-coder-0.5b"], "piped\n", "qwen2.5-coder-0.5b", "piped"),
        (["smollm2-135m", "qwen2.5-coder-0.5b"], None, "smollm2-135m", "qwen2.5-coder-0.5b"),
        ([], "piped", None, "piped"),
        ([], "two\nlines\n\n", None, "two\nlines\n"),
        ([], "dos\r\n", None, "dos"),
        ([], "\ufeffmarked", None, "marked"),
        (["argument"], "piped", None, "argument\n\npiped"),
        (["argument"], "\n", None, "argument"),
        (["x" * 5000], None, None, "x" * 5000),
        (["a\0b"], None, None, "a\0b"),
        (["--", "--raw"], None, None, "--raw"),
    ],
)
def test_model_and_prompt(
    invoke: Invoke,
    fake: FakeLLM,
    arguments: list[str],
    piped: str | None,
    model: str | None,
    prompt: str,
) -> None:
    result = invoke("run", *arguments, input=piped)
    assert result.exit_code == 0, result.stderr
    assert fake.loaded[0]["model"] == model
    assert fake.calls[0][0] == user(prompt)


def test_a_file_without_suffix_is_a_model(invoke: Invoke, fake: FakeLLM, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"")
    assert invoke("run", str(path), input="hi").exit_code == 0
    assert fake.loaded[0]["model"] == str(path)
    assert fake.calls[0][0] == user("hi")


def test_a_name_with_a_slip_is_not_a_prompt(invoke: Invoke, fake: FakeLLM) -> None:
    failed(invoke("run", "qwen2.5-coder-1.5"), "qwen2.5-coder-1.5b", "did you mean")
    assert fake.loaded == []
    assert invoke("run", "compare qwen2.5-coder-1.5 with others").exit_code == 0


@pytest.mark.parametrize("arguments", [[], [""], ["   "], ["smollm2-135m"], ["x.gguf"]])
def test_no_prompt(invoke: Invoke, fake: FakeLLM, arguments: list[str]) -> None:
    failed(invoke("run", *arguments, input=""), "no prompt")
    assert fake.loaded == []


def test_a_pipe_that_is_not_text(invoke: Invoke, fake: FakeLLM) -> None:
    failed(invoke("run", input=b"abc\xff\xfe"), "UTF-8", "byte 3")
    assert fake.loaded == []


def test_an_argument_that_is_not_text(invoke: Invoke, fake: FakeLLM) -> None:
    failed(invoke("run", "abc\udcff"), "UTF-8")


# --- settings -------------------------------------------------------------------------------------


def test_defaults(invoke: Invoke, fake: FakeLLM) -> None:
    invoke("run", "hi")
    assert fake.loaded == [
        {
            "model": None,
            "threads": None,
            "ctx": None,
            "kv_type": "f16",
            "quantize": None,
            "mmproj": None,
            "image_max_tokens": 512,
            "image_min_tokens": 64,
        }
    ]
    _, sampling, speculation = fake.calls[0]
    assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (0.0, 512, None)
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0)
    assert (speculation.drafter, speculation.k, speculation.verify) == ("auto", None, "exact")
    assert speculation.k_max == 63


def test_every_option_arrives(invoke: Invoke, fake: FakeLLM) -> None:
    result = invoke(
        *("run", "m.gguf", "hi", "--system", "Be brief.", "--max-tokens", "2"),
        *("--temperature", "0.5", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.05"),
        *("--seed", "18446744073709551615", "--threads", "3", "--ctx", "99", "--kv-type", "bf16"),
        *("--spec", "window", "--spec-k", "63", "--spec-verify", "replay", "--spec-k-max", "9"),
        *("--mmproj", "tower.gguf", "--image-max-tokens", "300", "--image-min-tokens", "20"),
    )
    assert result.exit_code == 0, result.stderr
    assert fake.loaded == [
        {
            "model": "m.gguf",
            "threads": 3,
            "ctx": 99,
            "kv_type": "bf16",
            "quantize": None,
            "mmproj": Path("tower.gguf"),
            "image_max_tokens": 300,
            "image_min_tokens": 20,
        }
    ]
    prompt, sampling, speculation = fake.calls[0]
    assert prompt == [{"role": "system", "content": "Be brief."}, *user("hi")]
    assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (0.5, 2, 2**64 - 1)
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (40, 0.9, 0.05)
    assert (speculation.drafter, speculation.k, speculation.verify) == ("window", 63, "replay")
    assert speculation.k_max == 9


def test_penalties_and_grammars_arrive(invoke: Invoke, fake: FakeLLM, tmp_path: Path) -> None:
    result = invoke(
        *("run", "hi", "--repetition-penalty", "1.1", "--presence-penalty", "0.5"),
        *("--frequency-penalty", "-0.5", "--min-tokens", "2", "--logprobs", "3"),
    )
    assert result.exit_code == 0, result.stderr
    sampling = fake.calls[0][1]
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.1, 0.5)
    assert (sampling.frequency_penalty, sampling.min_tokens, sampling.logprobs) == (-0.5, 2, 3)
    assert sampling.grammar is None
    file = tmp_path / "file"
    for options, text, grammar in (
        (["--json-schema", str(file)], '{"type": "object"}', "json_schema"),
        (["--grammar", str(file)], 'start: "a"', "lark"),
        (["--regex", "a+"], "", "regex"),
    ):
        file.write_text(text)
        assert invoke("run", "hi", *options).exit_code == 0
        chosen = fake.calls[-1][1].grammar
        assert chosen is not None
        assert (chosen.kind, chosen.text) == (grammar, text or "a+")
    file.write_bytes(b"\xff")
    failed(invoke("run", "hi", "--grammar", str(file)), "--grammar", "UTF-8")
    file.write_text("{")
    failed(invoke("run", "hi", "--json-schema", str(file)), "json_schema")


def test_raw_is_text(invoke: Invoke, fake: FakeLLM) -> None:
    assert invoke("run", "--raw", "def f(", input="x):\n").exit_code == 0
    assert fake.calls[0][0] == "def f(\n\nx):"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--raw", "--system", "x"], ["--system", "--raw"]),
        (["--max-tokens", "0"], ["max_tokens", "0"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--temperature", "nan"], ["temperature", "finite"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--top-k", "-3"], ["top_k", "-3"]),
        (["--min-p", "2"], ["min_p", "2"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--repetition-penalty", "0"], ["repetition_penalty", "0"]),
        (["--presence-penalty", "inf"], ["presence_penalty", "finite"]),
        (["--frequency-penalty", "3"], ["frequency_penalty", "3"]),
        (["--min-tokens", "600"], ["min_tokens", "600", "max_tokens"]),
        (["--logprobs", "21"], ["logprobs", "21"]),
        (["--regex", ""], ["regex"]),
        (["--regex", "a", "--grammar", "x"], ["--regex", "--grammar"]),
        (["--json-schema", "/no/such"], ["--json-schema", "/no/such", "No such file"]),
        (["--threads", "0"], ["threads", "0"]),
        (["--ctx", "0"], ["ctx", "0"]),
        (["--spec-k", "-1"], ["--spec-k", "63", "-1"]),
        (["--spec-k", "many"], ["--spec-k", "number or auto", "many"]),
        (["--spec-k-max", "64"], ["--spec-k-max", "63", "64"]),
        (["--spec-k", "64"], ["--spec-k", "63", "64"]),
        (["--spec-acceptance", "1.1"], ["--spec-acceptance", "1.1"]),
        (["--spec", "oracle"], ["--spec-recording FILE"]),
        (["--spec-recording", "x.json"], ["--spec oracle", "auto"]),
        (["--spec", "oracle", "--spec-recording", "/no/such"], ["/no/such", "No such file"]),
    ],
)
def test_a_setting_out_of_range(
    invoke: Invoke, fake: FakeLLM, options: list[str], words: list[str]
) -> None:
    failed(invoke("run", "hi", *options), *words)
    assert fake.calls == []


@pytest.mark.parametrize(
    "options",
    [
        ["--nix"],
        ["--spec", "magic"],
        ["--spec-verify", "maybe"],
        ["--kv-type", "q8"],
        ["--max-tokens", "many"],
        ["a", "third positional"],
    ],
)
def test_what_the_parser_refuses(invoke: Invoke, fake: FakeLLM, options: list[str]) -> None:
    result = invoke("run", "hi", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr
    assert "Traceback" not in result.stderr
    assert fake.loaded == []


def test_oracle_takes_the_recording_of_a_run(invoke: Invoke, fake: FakeLLM, tmp_path: Path) -> None:
    recording = tmp_path / "run.json"
    recording.write_text(invoke("run", "hi", "--spec", "off", "--json").stdout)
    options = ["--spec", "oracle", "--spec-recording", str(recording), "--spec-acceptance", "0.7"]
    assert invoke("run", "hi", *options).exit_code == 0
    speculation = fake.calls[-1][2]
    assert (speculation.drafter, speculation.acceptance) == ("oracle", 0.7)
    assert speculation.recording == (100, 101, 102)


@pytest.mark.parametrize(
    "content",
    ["", "[1, 2]", "{}", '{"token_ids": []}', '{"token_ids": [1, true]}', '{"token_ids": "12"}'],
)
def test_a_recording_that_is_none(
    invoke: Invoke, fake: FakeLLM, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    failed(invoke("run", "hi", "--spec", "oracle", "--spec-recording", str(path)), str(path))


# --- what comes out -------------------------------------------------------------------------------


def test_text_to_stdout_statistics_to_stderr(invoke: Invoke, fake: FakeLLM) -> None:
    result = invoke("run", "hi")
    assert result.stdout == "Hello world\n"
    first, second = result.stderr.splitlines()
    assert first == "[SPEC] tries=2 hits=5 kv_rolls=3 (62% draft hit)"
    assert "11 tokens, 110.0 tok/s" in second
    assert "3 tokens, 50.0 tok/s" in second


def test_without_speculation_there_is_no_line_about_it(invoke: Invoke, fake: FakeLLM) -> None:
    assert "[SPEC]" not in invoke("run", "hi", "--spec", "off").stderr


def test_an_answer_that_ends_its_line_gets_no_second_newline(invoke: Invoke, fake: FakeLLM) -> None:
    fake.pieces = ["line", "\n", ""]
    assert invoke("run", "hi").stdout == "line\n"
    fake.pieces = []
    assert invoke("run", "hi").stdout == ""


def test_a_pipe_gets_the_bytes_unchanged(invoke: Invoke, fake: FakeLLM) -> None:
    fake.pieces = ["\x1b[31mred", "\r\n", "\x9b1m\0", "日本 🙂"]
    assert invoke("run", "hi").stdout_bytes == "\x1b[31mred\r\n\x9b1m\0日本 🙂\n".encode()


def test_json_is_one_object_and_nothing_else(invoke: Invoke, fake: FakeLLM) -> None:
    fake.pieces = ["a\n\x1b", "\x9b日"]
    result = invoke("run", "hi", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    assert "\x1b" not in result.stdout
    assert "\x9b" not in result.stdout
    value = json.loads(result.stdout)
    assert value["text"] == "a\n\x1b\x9b日"
    assert value["token_ids"] == [100, 101]
    assert value["finish_reason"] == "stop"
    assert value["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 2,
        "cached_tokens": 0,
        "image_tokens": 0,
    }
    assert set(value["timings"]) == {
        *("load_ms", "prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second")
    }
    assert value["speculation"]["accepted"] == 5
    assert set(value["engine"]) == {
        *("isa", "threads", "weights_bytes", "peak_rss_bytes", "system_fingerprint", "seed")
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_a_replay_that_disagrees(invoke: Invoke, fake: FakeLLM, as_json: bool) -> None:
    fake.replay_mismatches = 2
    options = ["--spec-verify", "replay", *(["--json"] if as_json else [])]
    result = invoke("run", "hi", *options)
    assert result.exit_code == 1
    assert "disagreed" in result.stderr
    if as_json:
        assert json.loads(result.stdout)["speculation"]["replay_mismatches"] == 2


def test_an_answer_cut_by_a_value_that_is_not_finite(invoke: Invoke, fake: FakeLLM) -> None:
    fake.finish_reason = "numeric_error"
    result = invoke("run", "hi")
    assert result.exit_code == 1
    assert "not finite" in result.stderr


# --- what goes wrong ------------------------------------------------------------------------------


def raising(error: BaseException) -> Any:
    def stand_in(*_args: object, **_kwargs: object) -> None:
        raise error

    return stand_in


@pytest.mark.parametrize(
    "error", [ModelFileError("x.gguf: truncated\nafter byte 3"), ModelNotFoundError("no such")]
)
def test_a_user_error_is_one_line(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(run_module, "open_model", raising(error))
    failed(invoke("run", "hi"), *str(error).split())
    failed(invoke("run", "hi", "--json"), *str(error).split())


def test_an_unexpected_error_is_one_line_with_a_way_to_see_more(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAFTPROOF_DEBUG", raising=False)
    monkeypatch.setattr(run_module, "open_model", raising(ZeroDivisionError("a\nb")))
    result = invoke("run", "hi")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "draftproof: unexpected error: ZeroDivisionError: a b (DRAFTPROOF_DEBUG=1 shows where)"
    ]
    monkeypatch.setenv("DRAFTPROOF_DEBUG", "1")
    assert "Traceback" in invoke("run", "hi").stderr


def test_an_error_message_cannot_steer_the_terminal(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "open_model", raising(ModelFileError("tensor \x1b[2J")))
    result = invoke("run", "hi")
    assert "\x1b" not in result.stderr
    assert "␛[2J" in result.stderr
