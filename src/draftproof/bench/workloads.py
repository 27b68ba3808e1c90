"""What is measured: prompts out of JSON Lines files, and the built-in set.

A record is one JSON object on a line: `messages` (a list of {"role", "content"}) or `prompt` (raw
text), `max_tokens` (256 if absent), `id` (FILE:LINE if absent), `kind` (the file's name if absent);
other keys are ignored. Owns the reading and its complaints; runs nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True)
class Workload:
    """One prompt. prompt: raw text, or the messages of a chat."""

    id: str
    kind: str
    prompt: str | tuple[dict[str, str], ...]
    max_tokens: int


def load_workloads(paths: Sequence[Path]) -> tuple[list[Workload], list[str]]:
    """(the good records of all files in order, one complaint per bad line: file, line, what is
    missing). InvalidRequestError: a file can't be read."""
    workloads: list[Workload] = []
    complaints: list[str] = []
    seen: dict[str, str] = {}
    for path in paths:
        for number, line in numbered_lines(path):
            where = f"{path}:{number}"
            try:
                workload = _parse(line, path, number)
            except ValueError as error:
                complaints.append(f"{where}: {error}")
                continue
            if workload.id in seen:
                first = seen[workload.id]
                complaints.append(f"{where}: the id {workload.id!r} is already that of {first}")
                continue
            seen[workload.id] = where
            workloads.append(workload)
    return workloads, complaints


def sample(workloads: Sequence[Workload], count: int | None, seed: int) -> list[Workload]:
    """`count` of them, drawn by `seed`, in their own order; all of them if count is None."""
    if count is None or count >= len(workloads):
        return list(workloads)
    chosen = set(random.Random(seed).sample(range(len(workloads)), count))
    return [workload for i, workload in enumerate(workloads) if i in chosen]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that aren't blank, counted from 1. InvalidRequestError: can't be read."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidRequestError(
            f"the workload {path} can't be read: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the workload {path} isn't UTF-8 (byte {error.start}): save it as UTF-8 JSON Lines"
        ) from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _parse(line: str, path: Path, number: int) -> Workload:
    """ValueError with what is wrong with the record."""
    record = json_object(line)
    if ("messages" in record) == ("prompt" in record):
        both = "messages and prompt exclude each other" if "prompt" in record else None
        raise ValueError(both or "messages (or prompt) is missing")
    prompt: str | tuple[dict[str, str], ...]
    if "prompt" in record:
        prompt = record["prompt"]
        if not isinstance(prompt, str) or not prompt:
            raise ValueError("prompt must be a text that isn't empty")
    else:
        prompt = _messages(record["messages"])
    max_tokens = record.get("max_tokens", DEFAULT_MAX_TOKENS)
    if type(max_tokens) is not int or not 1 <= max_tokens < 2**31:
        raise ValueError(f"max_tokens must be a whole number of at least 1, got {max_tokens!r:.40}")
    name = text_of(record, "id", f"{path.name}:{number}")
    return Workload(name, text_of(record, "kind", path.stem), prompt, max_tokens)


def json_object(line: str) -> dict[str, Any]:
    """ValueError with what is wrong."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise ValueError(f"no JSON ({reason})") from None
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    return record


def _messages(messages: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list that isn't empty")
    checked = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"messages[{i}] is no object with role and content")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise ValueError(f"messages[{i}] has no text in {key}")
        checked.append({"role": message["role"], "content": message["content"]})
    return tuple(checked)


def text_of(record: dict[str, Any], key: str, default: str) -> str:
    """ValueError unless it is a text that isn't empty."""
    value = record.get(key, default)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be a text that isn't empty, got {value!r:.40}")
    return value
