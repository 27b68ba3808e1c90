"""The documentation is true: commands parse, cheap ones run, Python runs, links lead somewhere.

Models are replaced by a tiny one, whatever name a command gives.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from draftproof import catalogue
from tiny_models import TinyModels

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.zh-CN.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(draftproof [^`\n]+)`")
_COMMENT = re.compile(r"\s+# .*$")
# Examples that need a server, a picture or a process of their own: tests/test_examples.py.
_NEED_MORE = {"openai_client", "chat_with_image", "prove_in_ci"}
_ALONE = {"--help", "--version", "--install-completion"}  # options that act by themselves
# Besides the demo, what runs in a moment on a tiny model. The others measure: parsed only.
_CHEAP = {"run", "models", "doctor"}


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in _FENCE.findall(text_of(page)) if kind == language]


def command_lines(page: str) -> list[str]:
    """Every `draftproof ...` of a page, out of shell blocks and out of running text."""
    found = []
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            parts = _COMMENT.sub("", line).split("&&")
            found += [part.strip() for part in parts if "draftproof " in part]
    prose = _FENCE.sub("", text_of(page)).replace("\n", " ")
    return found + _INLINE.findall(prose)


def arguments(line: str) -> list[str]:
    """The words behind `draftproof`, without environment, redirection and pipe."""
    words = shlex.split(line.partition("|")[0])
    words = words[words.index("draftproof") + 1 :]
    return words[: words.index("<")] if "<" in words else words


COMMANDS = sorted({line for page in PAGES for line in command_lines(page)})


def parse(words: list[str]) -> str:
    """Parses a whole command line as the program would, running nothing; the subcommand's name."""
    from draftproof.cli.app import app

    command: Any = get_command(app)
    context, name = None, "draftproof"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return name
        rest = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, rest)


def test_there_are_commands() -> None:
    assert "draftproof demo" in COMMANDS
    assert len(COMMANDS) > 12


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line: str) -> None:
    if words := [word for word in arguments(line) if word not in _ALONE]:
        parse(words)


@pytest.mark.parametrize("wrong", ["run --tempo 1", "demo --max-tokens eight", "dance"])
def test_a_wrong_command_does_not_parse(wrong: str) -> None:
    with pytest.raises(Exception, match=r"No such|valid integer"):
        parse(shlex.split(wrong))


@pytest.fixture
def tiny_everywhere(tiny: TinyModels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every model is the tiny one; the cache is empty."""
    path = tiny.path("qwen2", "Q8_0")
    monkeypatch.setattr(catalogue, "resolve", lambda *_: path)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("line", [line for line in COMMANDS if arguments(line)[0] in _CHEAP])
def test_cheap_command_runs(line: str, tiny_everywhere: None) -> None:
    from draftproof.cli.app import app

    words = arguments(line)
    if words[0] == "run":
        words += ["--max-tokens", "4"]
    result = CliRunner().invoke(app, words, input="some text\n", catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert result.output


def test_a_shell_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.cli import main

    values = {"_DRAFTPROOF_COMPLETE": "complete_bash", "COMP_WORDS": "draftproof pr"}
    for name, value in {**values, "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        main([])
    assert shown.getvalue().split() == ["profile", "prove"]


def test_the_environment_forces_kernels(
    tiny_everywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftproof.cli.app import app

    monkeypatch.setenv("DRAFTPROOF_ISA", "scalar")
    words = ["run", "--json", "--max-tokens", "2", "hello"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(result.stdout)["engine"]["isa"] == "scalar"


def test_the_demo_runs(tiny_everywhere: None) -> None:
    from draftproof.cli.app import app

    result = CliRunner().invoke(app, ["demo", "--max-tokens", "24"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("identical") == 12  # four prompts, exact and replay


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_of_a_page_runs(page: str, tiny_everywhere: None) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {"__name__": page})


@pytest.mark.parametrize(
    "path", [p for p in EXAMPLES if p.stem not in _NEED_MORE], ids=lambda path: path.stem
)
def test_example_runs(
    path: Path,
    tiny_everywhere: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "a-model"])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(page))
    local = [target for target in targets if not target.startswith(("http:", "https:"))]
    folder = (ROOT / page).parent
    assert [target for target in local if not (folder / target).exists()] == []


def test_every_command_is_in_the_readme() -> None:
    from draftproof.cli.app import app

    shown = {arguments(line)[0] for line in command_lines("README.md") if arguments(line)}
    command: Any = get_command(app)
    assert {word for word in shown if not word.startswith("-")} == {*command.commands}


def test_every_example_is_in_the_readme() -> None:
    assert [
        path.name for path in EXAMPLES if f"examples/{path.name}" not in text_of("README.md")
    ] == []


def test_the_readme_and_ci_install_the_same() -> None:
    """The first command, the test command and the pinned torch are said in several places."""
    first, test = (
        block.strip() for block in (blocks("README.md", "sh")[0], blocks("README.md", "sh")[-1])
    )
    assert first == "pip install . && draftproof demo"
    pin = re.fullmatch(r"pip install '\.\[test\]' (torch==[\d.]+) && pytest", test)
    assert pin is not None, test
    assert f'"{pin[1]}"' in text_of("pyproject.toml")
    script = text_of(".ci/run")
    assert re.search(rf"^  pip install .*\b{re.escape(pin[1])}$", script, re.MULTILINE)
    assert re.search(r"^  draftproof demo$", script, re.MULTILINE)
    assert re.search(r"^  pytest\b", script, re.MULTILINE)
