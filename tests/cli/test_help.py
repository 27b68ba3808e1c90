"""Help that helps: every command shows an example, and the example is one that parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from draftproof.cli.app import app


def commands(command: Any = None, name: str = "draftproof") -> Iterator[tuple[str, Any]]:
    command = command or get_command(app)
    yield name, command
    for child_name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{name} {child_name}")


# The group's help belongs to its default command.
ALL = {name: command for name, command in commands() if name != "draftproof bench"}


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_an_example_that_parses(name: str) -> None:
    epilog = str(ALL[name].epilog)
    lines = re.findall(r"draftproof (?:[^|<]|\\n)+", epilog.partition(":")[2])
    assert lines, epilog
    for line in lines:
        words = shlex.split(line.strip().rstrip("."))[1:]
        context = get_command(app).make_context("draftproof", words)
        assert context is not None
        group: Any = get_command(app)
        child_name, child, rest = group.resolve_command(context, words)
        assert child_name in name or name == "draftproof"
        child.make_context(child_name, list(rest), parent=context)
