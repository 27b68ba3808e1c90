"""The question every drafter answers: given the committed tokens, what comes next, and from where.

A drafter belongs to one request and sees committed tokens only: there is nothing to undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens: the draft tokens, in order. source: who drafted. match_length: committed tokens that
    the source shares with the end of history (0 = unknown)."""

    tokens: tuple[int, ...]
    source: str
    match_length: int = 0


NO_DRAFT = Draft((), "none")


class Drafter(Protocol):
    """Drafts for one request."""

    def start(self, prompt: Sequence[int]) -> None:
        """Called once, before the first step."""

    def propose(self, history: Sequence[int], k: int) -> Draft:
        """At most k tokens that may follow `history` (prompt + committed output; only grows)."""

    def observe(self, draft: Draft, accepted: int) -> None:
        """The first `accepted` tokens of `draft` were accepted."""


class NoDrafter:
    """Drafts nothing: plain decoding."""

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, history: Sequence[int], k: int) -> Draft:
        return NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        pass
