"""Real processes: terminals, pipes that close, Ctrl-C, start-up time."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import draftproof
from draftproof.cli.terminal import visible

FAKE = Path(__file__).with_name("fake_llm.py")
SOURCES = Path(draftproof.__file__).parents[1]


def environment(pieces: list[str] | None = None, pause: float = 0.0) -> dict[str, str]:
    values = {
        **os.environ,
        "FAKE_PIECES": json.dumps(pieces if pieces is not None else ["Hel", "lo"]),
        "FAKE_PAUSE": str(pause),
        "PYTHONWARNINGS": "error",
    }
    values.pop("DRAFTPROOF_DEBUG", None)
    return values


def start(*arguments: str, env: dict[str, str], **streams: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(FAKE), *arguments], env=env, **streams)  # type: ignore[call-overload,no-any-return]


def read_until(stream: int, wanted: bytes, seconds: float = 30.0) -> bytes:
    """What can be read from the descriptor until `wanted` has come."""
    found = b""
    deadline = time.monotonic() + seconds
    while wanted not in found:
        left = deadline - time.monotonic()
        assert left > 0, f"{wanted!r} didn't come: {found!r}"
        if select.select([stream], [], [], left)[0]:
            chunk = os.read(stream, 65536)
            assert chunk, f"the end came before {wanted!r}: {found!r}"
            found += chunk
    return found


# --- control characters ---------------------------------------------------------------------------


def test_visible() -> None:
    assert visible("a\tb\n日本🙂é") == "a\tb\n日本🙂é"
    assert visible("\x1b[31m\r\0\x7f\x9b") == "␛[31m␍␀␡\\x9b"
    for code in (*range(0x20), *range(0x7F, 0xA0)):
        if chr(code) not in "\n\t":
            assert visible(chr(code)).isprintable()


def test_a_terminal_gets_no_raw_escapes() -> None:
    ours, theirs = pty.openpty()
    process = start(
        *("run", "hi", "--spec", "off"),
        env=environment(["\x1b]0;title\x07", "done\x9b2J"]),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    try:
        shown = read_until(ours, b"\n")
        process.communicate(timeout=30)
    finally:
        os.close(ours)
    assert shown.decode() == "␛]0;title␇done\\x9b2J\r\n"  # the terminal itself adds the \\r
    assert process.returncode == 0


def test_at_a_terminal_no_prompt_is_an_error_at_once() -> None:
    ours, theirs = pty.openpty()
    process = start("run", env=environment(), stdin=theirs, stdout=-1, stderr=-1)
    os.close(theirs)
    out, err = process.communicate(timeout=30)
    os.close(ours)
    assert process.returncode == 2
    assert out == b""
    assert err.startswith(b"draftproof: error: no prompt")
    assert err.count(b"\n") == 1


# --- streaming, Ctrl-C, closed pipes --------------------------------------------------------------


def test_each_piece_comes_at_once() -> None:
    process = start(
        *("run", "hi"),
        env=environment(["first ", "second"], pause=1.0),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert read_until(process.stdout.fileno(), b"first ") == b"first "
    out, _ = process.communicate(timeout=30)
    assert out == b"second\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_what_there_is(as_json: bool, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = start(
        *("run", "hi", *(["--json"] if as_json else [])),
        env={**environment(["partial"] + ["."] * 1000, pause=0.1), "FAKE_READY": str(ready)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = b"" if as_json else read_until(process.stdout.fileno(), b"partial")
    deadline = time.monotonic() + 30
    while not ready.exists():  # with --json nothing is printed that could be waited for
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == b""
    out = (first + rest).decode()
    assert out.endswith("\n")
    if as_json:
        value = json.loads(out)
        assert value["finish_reason"] == "interrupted"
        assert value["text"].startswith("partial")
        assert len(value["token_ids"]) == 1 + value["text"].count(".")
    else:
        assert out.startswith("partial")


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    process = start(
        *("run", "hi"),
        env={**environment(["line\n"]), "FAKE_TIMES": "200000"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=30) == 141
    assert err == b""
    process.stderr.close()


def test_an_ascii_locale_changes_no_byte() -> None:
    env = {**environment(["日本", "🙂"]), "LC_ALL": "C", "PYTHONUTF8": "0"}
    env["PYTHONCOERCECLOCALE"] = "0"
    process = start("run", "hi", env=env, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    out, _ = process.communicate(timeout=30)
    assert out == "日本🙂\n".encode()


# --- the program itself ---------------------------------------------------------------------------


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), *sys.path]), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "draftproof", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_help_names_commands_and_examples() -> None:
    result = command_line("--help")
    assert result.returncode == 0
    for word in ("run", "demo", "models", "doctor", "Examples", "draftproof demo"):
        assert word in result.stdout
    assert result.stderr == ""
    for command in ("run", "demo", "models", "doctor"):
        assert "--json" in command_line(command, "--help").stdout


def test_version() -> None:
    result = command_line("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("draftproof ")
    assert result.stdout.count("\n") == 1


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from draftproof.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'rich', 'draftproof._native'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_unknown_command() -> None:
    result = command_line("dance")
    assert result.returncode == 2
    assert "dance" in result.stderr
    assert "Traceback" not in result.stderr
