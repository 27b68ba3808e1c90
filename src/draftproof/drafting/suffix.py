"""`suffix`: continues the longest earlier occurrence of the end of history, whatever its length.

Owns the choice between what was found and how much of it is drafted. The search is SuffixIndex.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof._native import SuffixDraft, SuffixIndex
from draftproof.drafting.drafter import NO_DRAFT, Draft
from draftproof.drafting.store import RequestStore

TOKENS_PER_MATCHED = 2  # a draft has at most this * match length tokens
LOWEST_ACCEPTANCE = 0.25  # match lengths whose first draft token is right less often don't draft

_BUCKETS = 7  # match lengths 1, 2-3, 4-7, 8-15, 16-31, 32-63, 64 and more
_PRIOR_ACCEPTANCE = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.9)
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.97  # what a count keeps per new observation: about the last 30 matter

_Pair = tuple[SuffixDraft, SuffixDraft]


class _Source:
    """What one source, the own history or the store, has taught: which of its two continuations is
    right where they differ, and how often a first token is right, by match length.

    Learned from every lookup and the tokens that came, drafted or not: a match length that is not
    drafted any more can come back. Priors stand for the first observations.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._wins = [2.0, 1.0]  # recent, frequent
        self._tries = [_PRIOR_WEIGHT] * _BUCKETS
        self._right = [_PRIOR_WEIGHT * rate for rate in _PRIOR_ACCEPTANCE]

    def choose(self, found: _Pair) -> SuffixDraft:
        recent, frequent = found
        return frequent if self._wins[1] > self._wins[0] else recent

    def acceptance(self, match_length: int) -> float:
        i = _bucket(match_length)
        return self._right[i] / self._tries[i]

    def learn(self, found: _Pair, came: Sequence[int]) -> None:
        """came: the committed tokens since the lookup, at least one."""
        chosen = self.choose(found)
        if chosen.tokens:
            i = _bucket(chosen.length)
            self._tries[i] = self._tries[i] * _MEMORY + 1
            self._right[i] = self._right[i] * _MEMORY + (chosen.tokens[0] == came[0])
        for a, b, token in zip(found[0].tokens, found[1].tokens, came, strict=False):
            if a != b:
                self._wins[0] = self._wins[0] * _MEMORY + (a == token)
                self._wins[1] = self._wins[1] * _MEMORY + (b == token)
            if a != b or a != token:
                break


class SuffixDrafter:
    """Drafts from the own history and, where that gives a shorter match or none, from `reference`
    or from the finished requests of `scope` in `store`.
    """

    def __init__(
        self,
        store: RequestStore | None = None,
        scope: str = "",
        reference: Sequence[int] = (),
    ) -> None:
        self._index = SuffixIndex()
        self._reference = SuffixIndex() if reference else None
        if self._reference is not None:
            self._reference.append(reference)
        self._quoted = _Source("reference")
        self._store = store
        self._scope = scope
        self._own = _Source("suffix")
        self._others = _Source("store")
        self._found: list[tuple[_Source, _Pair]] = []  # of the last lookup

    def start(self, prompt: Sequence[int]) -> None:
        self._index.append(prompt)

    def propose(self, history: Sequence[int], k: int) -> Draft:
        came = history[self._index.end :]
        if came:
            for source, found in self._found:
                source.learn(found, came)
            self._index.append(came)
        # At least one token is looked up, so that a step that may not draft still teaches.
        self._found = [(self._own, self._index.drafts(max(k, 1)))]
        if self._reference is not None:
            quoted = self._reference.drafts(max(k, 1), self._index)
            self._found.append((self._quoted, quoted))
        if self._store is not None:
            stored = self._store.drafts(self._scope, self._index, max(k, 1))
            if stored is not None:
                self._found.append((self._others, stored))
        # Longest match; of equals the first: own history, reference, store.
        source, found = max(self._found, key=lambda entry: entry[1][0].length)
        draft = source.choose(found)
        if draft.length == 0 or source.acceptance(draft.length) < LOWEST_ACCEPTANCE:
            return NO_DRAFT
        tokens = draft.tokens[: min(k, TOKENS_PER_MATCHED * draft.length)]
        return Draft(tokens, source.name, draft.length) if tokens else NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        """Nothing: the next history shows the accepted tokens and the one that came instead."""

    def finish(self, history: Sequence[int]) -> None:
        """Hands the finished request (prompt + output) to the store."""
        if self._store is not None:
            self._store.add(self._scope, history)


def _bucket(match_length: int) -> int:
    return min(match_length.bit_length(), _BUCKETS) - 1
