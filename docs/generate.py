"""Writes the pages that are made from the code: python docs/generate.py

reference/cli.md from the commands, reference/server.md from the routes and their fields,
reference/python.md from the docstrings, and the traced example of how-it-works.md by running the
drafter, the verification and a session on words. tests/test_docs_reference.py checks that the files
are current.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
MADE = "<!-- made by docs/generate.py: change the code instead -->\n\n"

# --- the command line ----------------------------------------------------------------------------


def cli_page() -> str:
    """The help of every command."""
    os.environ["TERMINAL_WIDTH"] = os.environ["COLUMNS"] = "96"
    from typer.main import get_command

    from draftproof.cli.app import app

    parts = [
        f"# Command line\n\n{MADE}Exit codes: 0 fine, 1 a check failed, 2 a mistake in the call, "
        "130 interrupted.\n"
    ]

    def add(command: Any, name: str, parent: Any) -> None:
        context = command.make_context(name, [], parent=parent, resilient_parsing=True)
        context.terminal_width = 96
        text = re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE)
        parts.append(f"## `{context.command_path}`\n\n```text\n{text.strip()}\n```\n")
        for child_name, child in getattr(command, "commands", {}).items():
            add(child, child_name, context)

    add(get_command(app), "draftproof", None)
    return "\n".join(parts)


# --- the server ----------------------------------------------------------------------------------


def server_page() -> str:
    """Routes, and the fields of every body."""
    from draftproof.server.config import ServerConfig
    from draftproof.server.routes import PROTOCOLS, Routes
    from draftproof.server.service import Service

    table = Routes(Service(ServerConfig())).table()
    rows = [
        f"| `{route.path}` | {', '.join(sorted((route.methods or set()) - {'HEAD'}))} |"
        for route in table
        if not route.path.startswith("/static/")
    ]
    parts = [
        f"# Server\n\n{MADE}`draftproof serve MODEL`; its options are in [Command line](cli.md). "
        "Errors have the shape of the protocol they happen in. `speculation` of a request is "
        "`auto`, `off`, or an object with `drafter`, `k`, `verify`, `reference`, `remember`.\n",
        "| path | method |\n|---|---|\n" + "\n".join(rows) + "\n",
    ]
    for protocol in PROTOCOLS:
        fields = [
            f"| `{name}` | `{_type(protocol.type, name)}` |"
            for name in protocol.type.__struct_fields__
        ]
        parts.append(
            f"## Fields of `{protocol.path}`\n\n| field | type |\n|---|---|\n"
            + "\n".join(fields)
            + "\n"
        )
    return "\n".join(parts)


def _type(struct: type, name: str) -> str:
    for owner in struct.__mro__:
        if name in inspect.get_annotations(owner):
            return str(inspect.get_annotations(owner)[name]).replace("|", "\\|")
    return "?"


# --- Python --------------------------------------------------------------------------------------


def python_page() -> str:
    """Signatures and docstrings of the public names."""
    import draftproof
    from draftproof import errors

    parts = [f"# Python\n\n{MADE}"]
    for name in draftproof.__all__:
        if name != "__version__":
            parts += _described(getattr(draftproof, name), name)
    parts.append("## Errors\n")
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.DraftproofError):
            parts.append(f"**`{name}`** ({error.__base__.__name__}): {_doc(error)}\n")
    return "\n".join(parts)


def _described(thing: Any, name: str) -> list[str]:
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return []
    parts = [f"## {name}\n", f"```python\n{name}{_signature(thing)}\n```\n", f"{_doc(thing)}\n"]
    for member, value in vars(thing).items():
        if member.startswith("_") and member != "__init__":
            continue
        target = value.fget if isinstance(value, property) else value
        target = getattr(target, "__func__", target)
        if not inspect.isfunction(target) or not target.__doc__:
            continue
        if member != "__init__":
            kind = "" if isinstance(value, property) else _signature(target)
            parts.append(f"### `{name}.{member}`\n")
            if kind:
                parts.append(f"```python\n{member}{kind}\n```\n")
        parts.append(f"{_doc(target)}\n")
    return parts


def _signature(thing: Callable[..., Any]) -> str:
    try:
        text = str(inspect.signature(thing))
    except ValueError:
        return ""
    text = text.replace("self, ", "").replace("(self)", "()")
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    if len(text) < 80:
        return text
    inner, _, result = text[1:].rpartition(")")
    return "(\n" + "".join(f"    {part},\n" for part in _split(inner)) + ")" + result


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    return [*parts, text[begin:].strip()]


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    # A doctest becomes a code block.
    return re.sub(r"((?:^>>>.*\n?|^\.\.\..*\n?)+)", r"```python\n\1```\n", text, flags=re.MULTILINE)


# --- the traced example --------------------------------------------------------------------------

PROMPT = "Copy : the ferry leaves at nine and the ferry leaves at noon ."
ANSWER = "the ferry leaves at ten and the ferry leaves at noon . END"
K = 4


def traced_example() -> str:
    """A run on words: a window drafter, the verification, a session over KV pages."""
    from draftproof.drafting import WindowDrafter
    from draftproof.engine.block_pool import BlockPool
    from draftproof.engine.session import Session
    from draftproof.verification import verify

    words = list(dict.fromkeys([*PROMPT.split(), *ANSWER.split()]))
    ids = {word: i for i, word in enumerate(words)}
    history = [ids[word] for word in PROMPT.split()]
    answer = [ids[word] for word in ANSWER.split()]
    start = len(history)
    drafter = WindowDrafter()
    drafter.start(history)
    session = Session(BlockPool(2, 64), 64)
    session.append(history)
    lines = [
        "| step | rows | draft | the model says | accepted | rolled back | KV |",
        "|---|---|---|---|---|---|---|",
    ]

    def shown(tokens: Any) -> str:
        return " ".join(words[token] for token in tokens) or "–"

    history.append(answer[0])  # the prompt's last row yields the first token
    lines.append(f"| prompt | {start} | – | {shown(answer[:1])} | – | – | {session.length} |")
    step = 0
    while history[-1] != answer[-1]:
        step += 1
        done = len(history) - start
        draft = drafter.propose(history, min(K, len(answer) - done - 1))
        rows = [history[-1], *draft.tokens]
        session.append(rows)
        # The model is deterministic: it gives the next word of ANSWER wherever the text before it
        # is right, and nobody asks what it gives behind a wrong draft.
        targets = []
        for i in range(len(rows)):
            right = list(draft.tokens[:i]) == answer[done : done + i]
            targets.append(answer[done + i] if right else ids["."])
        result = verify(draft.tokens, targets)
        history += result.tokens
        drafter.observe(draft, len(result.accepted))
        rolled = len(draft.tokens) - len(result.accepted)
        session.truncate(len(history) - 1)
        lines.append(
            f"| {step} | {len(rows)} | {shown(draft.tokens)} | {shown(result.tokens)} | "
            f"{len(result.accepted)} | {rolled} | {session.length} |"
        )
    if history[start:] != answer:
        raise AssertionError("the trace isn't the answer")
    lines.append("")
    lines.append(f"{len(answer)} tokens in {step} steps after the prompt's.")
    return "\n".join(lines)


def how_it_works_page() -> str:
    """The page with its trace renewed; the rest is written by hand."""
    text = (DOCS / "how-it-works.md").read_text("utf-8")
    begin, end = "<!-- trace: begin -->\n", "<!-- trace: end -->"
    head, _, rest = text.partition(begin)
    tail = rest.partition(end)[2]
    return f"{head}{begin}\n{traced_example()}\n\n{end}{tail}"


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/server.md": server_page,
    "reference/python.md": python_page,
    "how-it-works.md": how_it_works_page,
}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), "utf-8")
        print(f"docs/{name}")
