"""An answer as text, piece by piece, into reasoning, content and tool calls.

The parts depend on the text alone, never on where the stream was cut: what may be the beginning of
a marker is held back until it is decided. Nothing is lost: what looked like a call and isn't one
comes out as content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Tools = Mapping[str, Mapping[str, Any]]
"""The declared tools: name -> JSON schema of the arguments."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of reasoning or content, or one whole tool call: its name, and in `text` its
    arguments as a JSON object."""

    kind: Literal["content", "reasoning", "tool_call"]
    text: str
    name: str = ""


class Splitter(Protocol):
    """One stage: text in, parts out."""

    def push(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]:
        """What was held back."""


class AnswerSplitter:
    """Reasoning first, then tool calls in what is left. None = that stage is left out."""

    def __init__(self, reasoning: Splitter | None = None, calls: Splitter | None = None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    def push(self, text: str) -> list[Part]:
        if not text:
            return []
        parts = self._reasoning.push(text) if self._reasoning else [Part("content", text)]
        return self._through_calls(parts)

    def finish(self) -> list[Part]:
        parts = self._through_calls(self._reasoning.finish() if self._reasoning else [])
        return parts + (self._calls.finish() if self._calls else [])

    def _through_calls(self, parts: list[Part]) -> list[Part]:
        if self._calls is None:
            return parts
        result: list[Part] = []
        for part in parts:
            result += self._calls.push(part.text) if part.kind == "content" else [part]
        return result


def held_from(text: str, markers: Sequence[str]) -> int:
    """Where the end of `text` begins that may yet turn out to be the beginning of a marker."""
    longest = max(map(len, markers))
    start = max(0, len(text) - longest + 1)
    for i in range(start, len(text)):
        if text[i] == "<" and any(marker.startswith(text[i:]) for marker in markers):
            return i
    return len(text)


def of_kind(kind: Literal["content", "reasoning"], text: str) -> list[Part]:
    return [Part(kind, text)] if text else []
