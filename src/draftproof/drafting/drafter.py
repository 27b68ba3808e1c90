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
        """`draft`, or its beginning, was verified; its first `accepted` tokens were accepted."""


def cut(draft: Draft, room: int, vocab_size: int) -> Draft:
    """The part of a draft that fits and has token ids below vocab_size only: a drafter is never
    trusted with the bounds of an array."""
    tokens = draft.tokens[:room]
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        good = [0 <= token < vocab_size for token in tokens]
        tokens = tokens[: good.index(False)]
    if not tokens:
        return NO_DRAFT
    if len(tokens) == len(draft.tokens):
        return draft
    return Draft(tokens, draft.source, draft.match_length)


class NoDrafter:
    """Drafts nothing: plain decoding."""

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, history: Sequence[int], k: int) -> Draft:
        return NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        pass
