"""Thoughts apart from the answer: what stands between <think> and </think>.

The newlines around the tags belong to the tags.
"""

from __future__ import annotations

from draftproof.text.answer_parts import Part, held_from, of_kind

OPEN, CLOSE = "<think>", "</think>"
_CALL = "<tool_call>"


def begins_inside(prompt_end: str) -> bool:
    """Whether a prompt that ends like this has opened the thoughts already."""
    return prompt_end.rstrip().endswith(OPEN)


class ReasoningSplitter:
    """One answer. inside: the prompt has opened the thoughts. calls_count: a tool call among the
    thoughts ends them, if nothing else ever does (then it is held back until that is known)."""

    def __init__(self, *, inside: bool = False, calls_count: bool = False) -> None:
        self._inside = inside
        self._calls_count = calls_count
        self._stage = "opening"  # opening, thoughts, gap, answer
        self._held = ""
        self._shown = False  # whether any thought has been given out

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        if self._stage == "opening":
            self._open()
        if self._stage == "thoughts":
            parts += self._think()
        if self._stage == "gap":
            self._held = self._held.lstrip("\n")
            if self._held:
                self._stage = "answer"
        if self._stage == "answer":
            parts += of_kind("content", self._held)
            self._held = ""
        return parts

    def finish(self) -> list[Part]:
        rest, self._held = self._held, ""
        if self._stage == "opening" and not self._inside:
            return of_kind("content", rest)
        if self._stage not in ("opening", "thoughts"):
            return []
        call = rest.find(_CALL) if self._calls_count else -1
        if call < 0:
            return of_kind("reasoning", self._trimmed(rest))
        thoughts = self._trimmed(rest[:call]).rstrip("\n")
        return of_kind("reasoning", thoughts) + of_kind("content", rest[call:])

    def _open(self) -> None:
        """An answer that begins with <think> has thoughts; what comes later is just text."""
        begin = self._held.lstrip()
        if begin.startswith(OPEN):
            self._held = begin[len(OPEN) :]
            self._stage = "thoughts"
        elif not OPEN.startswith(begin):
            self._stage = "thoughts" if self._inside else "answer"

    def _think(self) -> list[Part]:
        end = self._held.find(CLOSE)
        if end >= 0:
            thoughts = self._trimmed(self._held[:end]).rstrip("\n")
            self._held = self._held[end + len(CLOSE) :]
            self._stage = "gap"
            return of_kind("reasoning", thoughts)
        call = self._held.find(_CALL) if self._calls_count else -1
        if call >= 0:
            certain = call
        else:
            certain = held_from(self._held, (CLOSE, _CALL) if self._calls_count else (CLOSE,))
        certain = len(self._held[:certain].rstrip("\n"))
        thoughts, self._held = self._trimmed(self._held[:certain]), self._held[certain:]
        self._shown = self._shown or bool(thoughts)
        return of_kind("reasoning", thoughts)

    def _trimmed(self, text: str) -> str:
        return text if self._shown else text.lstrip("\n")
