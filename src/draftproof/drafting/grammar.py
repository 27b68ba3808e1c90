"""Drafting within a grammar: tokens that have to come are drafted, and what it forbids is cut off.

Knows a grammar only as far as it answers two questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.drafting.drafter import NO_DRAFT, Draft, Drafter

SOURCE = "grammar"
# Nearly as sure as the longest match: only another spelling of the same text may come instead.
_AS_SURE_AS_A_MATCH_OF = 64


class DraftGrammar(Protocol):
    """Where the answer is in its grammar, after all committed tokens."""

    def forced(self) -> list[int]:
        """Tokens that have to follow, in their usual spelling."""

    def allowed(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft may follow."""


class ForcedDrafter:
    """Drafts what the grammar leaves no choice about."""

    def __init__(self, grammar: DraftGrammar) -> None:
        self._grammar = grammar

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, history: Sequence[int], k: int) -> Draft:
        tokens = tuple(self._grammar.forced()[:k])
        return Draft(tokens, SOURCE, _AS_SURE_AS_A_MATCH_OF) if tokens else NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        pass


class WithinGrammar:
    """What another drafter proposes, as far as the grammar allows it."""

    def __init__(self, drafter: Drafter, grammar: DraftGrammar) -> None:
        self._drafter = drafter
        self._grammar = grammar

    def start(self, prompt: Sequence[int]) -> None:
        self._drafter.start(prompt)

    def propose(self, history: Sequence[int], k: int) -> Draft:
        draft = self._drafter.propose(history, k)
        count = self._grammar.allowed(draft.tokens)
        if count == len(draft.tokens):
            return draft
        if count == 0:
            return NO_DRAFT
        return Draft(draft.tokens[:count], draft.source, draft.match_length)

    def observe(self, draft: Draft, accepted: int) -> None:
        self._drafter.observe(draft, accepted)
