"""`draftproof chat`: from a pipe, at a terminal, and every command in it."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_llm import FakeLLM, Invoke
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from test_terminal import FAKE, environment, read_until

from draftproof.cli.chat import Chat, read_message, terminal_reader
from draftproof.cli.conversation import Conversation
from draftproof.errors import InvalidRequestError
from draftproof.outputs import Delta, Origin, TokenEvent


def talk(invoke: Invoke, *lines: str, options: Sequence[str] = ()) -> Any:
    return invoke("chat", *options, input="".join(line + "\n" for line in lines))


def asked(fake: FakeLLM) -> list[list[tuple[str, Any]]]:
    """(role, content) of every prompt that reached the model."""
    return [[(m["role"], m["content"]) for m in prompt] for prompt, _, _ in fake.calls]


def test_a_pipe_is_a_conversation(invoke: Invoke, fake: FakeLLM) -> None:
    result = talk(invoke, "one", "", "two", options=["--system", "Be kind."])
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "Hello world\nHello world\n",
        "",
    )
    first = [("system", "Be kind."), ("user", "one")]
    assert asked(fake) == [first, [*first, ("assistant", "Hello world"), ("user", "two")]]


def test_several_lines_are_one_message(invoke: Invoke, fake: FakeLLM) -> None:
    assert talk(invoke, '"""first', "", 'third"""', '"""', "open").exit_code == 0
    assert [prompt[-1][1] for prompt in asked(fake)] == ["first\n\nthird", "open"]


def test_settings_reach_the_sampler(invoke: Invoke, fake: FakeLLM) -> None:
    lines = ["/set temperature 0.5", "/set seed 7", "/set max_tokens 2", "/spec 5", "a"]
    result = talk(invoke, *lines, "/spec off", "/set seed none", "b", "/spec auto", "c")
    assert result.exit_code == 0, result.stderr
    _, sampling, speculation = fake.calls[0]
    assert (sampling.temperature, sampling.seed, sampling.max_tokens) == (0.5, 7, 2)
    assert (speculation.drafter, speculation.k) == ("auto", 5)
    assert fake.calls[1][2].drafter == "off"
    assert fake.calls[1][1].seed is None
    assert fake.calls[2][2].is_controlled
    assert "temperature = 0.5\n" in result.stderr
    assert "temperature = 0.0" in talk(invoke, "/set").stderr


def test_clear_system_retry(invoke: Invoke, fake: FakeLLM) -> None:
    talk(invoke, "one", "/retry", "/clear", "/system Short.", "two", "/system", "/clear", "three")
    assert asked(fake) == [
        [("user", "one")],
        [("user", "one")],
        [("system", "Short."), ("user", "two")],
        [("user", "three")],
    ]


def test_save_and_load(invoke: Invoke, fake: FakeLLM, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert talk(invoke, "/system S", "früh", f"/save {file}").exit_code == 0
    assert talk(invoke, f"/load {file}", "later").exit_code == 0
    assert asked(fake)[-1] == [
        ("system", "S"),
        ("user", "früh"),
        ("assistant", "Hello world"),
        ("user", "later"),
    ]


def test_an_image_goes_with_the_next_message(invoke: Invoke, fake: FakeLLM, tmp_path: Path) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG")
    assert talk(invoke, f"/image {picture}", "what is it?", "and now?").exit_code == 0
    first, second = (prompt[0][1] for prompt in asked(fake))
    assert first == second
    assert first[0]["image_url"]["url"] == "data:image/png;base64,iVBORw=="
    assert first[1] == {"type": "text", "text": "what is it?"}
    assert asked(fake)[1][-1] == ("user", "and now?")


def test_stats(invoke: Invoke) -> None:
    result = talk(invoke, "one", "/stats")
    assert "[SPEC] tries=2 hits=5" in result.stderr
    assert "answer 3 tokens, 50.0 tok/s" in result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/dance", "no command /dance: /help shows them"),
        ("/set", None),
        ("/set heat 3", "/set knows no heat: it knows temperature"),
        ("/set temperature hot", "temperature must be a number, got 'hot'"),
        ("/set temperature -1", "temperature must be between 0 and 100"),
        ("/spec maybe", "/spec takes off, auto or a number"),
        ("/spec 64", "k must be between 0 and 63"),
        ("/image", "/image needs a file"),
        ("/image notes.txt", "doesn't look like an image"),
        ("/image none.png", "can't be read"),
        ("/load none.json", "can't be read"),
        ("/save no/such/place", "can't be written"),
        ("/stats", "there is no answer yet"),
        ("/retry", "there is no message to take back"),
    ],
)
def test_a_mistake_is_one_line_and_the_talk_goes_on(
    invoke: Invoke, fake: FakeLLM, line: str, words: str | None
) -> None:
    result = talk(invoke, line, "still there?")
    assert result.stdout == "Hello world\n"
    assert asked(fake) == [[("user", "still there?")]]
    if words is None:
        assert result.exit_code == 0
    else:
        assert result.exit_code == 2
        assert words in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"draftproof_chat": 2, "system": null, "messages": []}', "[" * 99999]
    + [
        json.dumps({"draftproof_chat": 1, "system": system, "messages": messages})
        for system, messages in [(1, []), (None, [1]), (None, [{"role": "x", "content": ""}])]
    ],
)
def test_a_broken_file_changes_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)
    conversation = Conversation(system="S", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(InvalidRequestError, match="isn't a conversation"):
        conversation.load(file)
    assert conversation.prompt()[1:] == [{"role": "user", "content": "a"}]
    assert conversation.system == "S"


def test_a_refused_message_is_forgotten(invoke: Invoke, fake: FakeLLM) -> None:
    def refuse(prompt: Any, *_: Any) -> Any:
        fake.calls.append((prompt, *_))
        if prompt[-1]["content"] == "bad":
            raise InvalidRequestError("too long")
        return iter(())

    fake.stream = refuse  # type: ignore[method-assign]
    result = talk(invoke, "bad", "good")
    assert result.exit_code == 2
    assert asked(fake)[-1] == [("user", "good")]


def test_typing_with_a_new_line_inside(fake: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_pipe_input() as typed:
        reader = terminal_reader(input=typed, output=DummyOutput())
        typed.send_text("one\x1b\rtwo\r/help\rthree\r\x04")
        assert read_message(reader) == "one\ntwo"
        assert Chat(fake, Conversation(), reader).run() == 0  # type: ignore[arg-type]
    assert asked(fake) == [[("user", "three")]]


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "coloured"), [("xterm", True), ("dumb", False)])
def test_colours_say_who_drafted(
    fake: FakeLLM, monkeypatch: pytest.MonkeyPatch, term: str, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    events = (
        TokenEvent(1, "plain \x1b[2J", None),
        TokenEvent(2, "copied ", None, origin=Origin("suffix", 1)),
        TokenEvent(3, "own", None, origin=Origin("bonus", 1)),
    )
    delta = Delta("".join(event.text for event in events), (1, 2, 3), events=events)
    fake.stream = lambda *_: iter([delta])  # type: ignore[assignment,method-assign]
    with create_pipe_input() as typed:
        typed.send_text("hello\r/colours off\rhello\r/colours x\r\x04")
        reader = terminal_reader(input=typed, output=DummyOutput())
        Chat(fake, Conversation(), reader, colours=True).run()  # type: ignore[arg-type]
    first, second, _ = screen.getvalue().split("\n")
    assert first == ("plain ␛[2J\x1b[33mcopied \x1b[0mown" if coloured else second)
    assert second == "plain ␛[2Jcopied own"


def test_ctrl_c_stops_the_answer_and_keeps_the_session(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = {
        **environment(["tick ", "\x1b[2J"] * 500, pause=0.02),
        "DRAFTPROOF_CACHE": str(tmp_path),
        "TERM": "dumb",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen([sys.executable, str(FAKE), "chat"], env=env, **streams)  # type: ignore[call-overload]
    os.close(theirs)
    try:
        read_until(ours, b">>> ")
        os.write(ours, b"hello\r")
        shown = read_until(ours, b"tick")
        process.send_signal(signal.SIGINT)
        shown += read_until(ours, b"(stopped)")
        read_until(ours, b">>> ")
        os.write(ours, b"/save " + str(tmp_path / "s.json").encode() + b"\r")
        read_until(ours, b">>> ")
        os.write(ours, b"/bye\r")
        assert process.wait(timeout=30) == 0
    finally:
        os.close(ours)
        process.kill()
    assert b"\x1b[2J" not in shown
    saved = json.loads((tmp_path / "s.json").read_text())["messages"]
    assert saved[1]["content"].startswith("tick ")
    assert len(saved[1]["content"]) < 500 * 9
    assert (tmp_path / "chat_history").stat().st_mode & 0o77 == 0
