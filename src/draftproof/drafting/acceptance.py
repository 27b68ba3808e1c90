"""How likely a draft token is right: learned per source, match length and place in the draft.

Owns the counts and their priors. Doesn't know what a draft costs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from draftproof.drafting.drafter import Draft

# By match length 1, 2-3, 4-7, 8-15, 16-31, 32-63, 64 and more; the first entry: length unknown.
PRIOR = (0.7, 0.25, 0.45, 0.6, 0.75, 0.85, 0.93, 0.96)
REQUEST_MEMORY = 0.93  # what a count keeps per new observation: the last 15 matter
SHARED_MEMORY = 0.995

_PRIOR_WEIGHT = 6.0  # in observations
_LONGEST = 1 << (len(PRIOR) - 2)  # longer matches are no better
_HOPELESS = 0.01  # a draft token that is right less often isn't worth a number

_Counts = list[float]  # [right, tried]


class Acceptance:
    """Three layers, each the prior of the next: a guess by match length; the rate of a length,
    whatever the place (the i-th draft token is right as often as a match i tokens longer); the rate
    of that place in drafts of that source and match length.

    parent: what earlier requests taught, the prior of this one; it learns along.
    """

    def __init__(self, parent: Acceptance | None = None) -> None:
        self._parent = parent
        self._memory = SHARED_MEMORY if parent is None else REQUEST_MEMORY
        self._by_length: dict[tuple[str, int], _Counts] = {}
        self._by_place: dict[tuple[str, int, int], _Counts] = {}

    def survival(self, draft: Draft) -> list[float]:
        """[i]: probability that draft token i and all before it are right; ends where hopeless."""
        chances: list[float] = []
        alive = 1.0
        length = draft.match_length
        for begin, end in _runs(min(length, _LONGEST), len(draft.tokens)):
            rate = self.rate(draft.source, length, begin)
            for _ in range(begin, end):
                alive *= rate
                if alive < _HOPELESS:
                    return chances
                chances.append(alive)
        return chances

    def rate(self, source: str, match_length: int, place: int) -> float:
        """Probability that draft token `place` is right if all before it are."""
        rate = self._length_rate(source, _length(match_length + place if match_length else 0))
        counts = self._by_place.get((source, _length(match_length), place.bit_length()))
        if counts is None:
            return rate
        return (counts[0] + _PRIOR_WEIGHT * rate) / (counts[1] + _PRIOR_WEIGHT)

    def learn(self, draft: Draft, came: Sequence[int]) -> None:
        """came: the committed tokens that followed, whether the draft was verified or not."""
        known = min(len(draft.tokens), len(came))
        agreed = 0
        while agreed < known and draft.tokens[agreed] == came[agreed]:
            agreed += 1
        self._learn(draft, agreed, agreed < known)

    def _learn(self, draft: Draft, agreed: int, missed: bool) -> None:
        source, length = draft.source, draft.match_length
        for begin, end in _runs(min(length, _LONGEST), agreed + missed):
            hits = min(end, agreed) - begin
            place = (source, _length(length), begin.bit_length())
            reached = (source, _length(length + begin if length else 0))
            for counts in (
                self._by_place.setdefault(place, [0.0, 0.0]),
                self._by_length.setdefault(reached, [0.0, 0.0]),
            ):
                self._count(counts, hits, end - begin - hits)
        if self._parent is not None:
            self._parent._learn(draft, agreed, missed)

    def _length_rate(self, source: str, length: int) -> float:
        above = PRIOR[length] if self._parent is None else self._parent._length_rate(source, length)
        counts = self._by_length.get((source, length))
        if counts is None:
            return above
        return (counts[0] + _PRIOR_WEIGHT * above) / (counts[1] + _PRIOR_WEIGHT)

    def _count(self, counts: _Counts, hits: int, misses: int) -> None:
        """First the hits, then the misses, each new one fading those before it."""
        for count, right in ((hits, 1.0), (misses, 0.0)):
            kept = self._memory**count
            fresh = (1.0 - kept) / (1.0 - self._memory)
            counts[0] = counts[0] * kept + right * fresh
            counts[1] = counts[1] * kept + fresh


def _length(match_length: int) -> int:
    return min(match_length.bit_length(), len(PRIOR) - 1)


@functools.lru_cache(maxsize=8192)
def _runs(match_length: int, count: int) -> tuple[tuple[int, int], ...]:
    """The places 0..count-1 in runs [begin, end) that share their counts, hence their rate."""
    starts = [
        i
        for i in range(count)
        if i == 0
        or i.bit_length() != (i - 1).bit_length()
        or (match_length and _length(match_length + i) != _length(match_length + i - 1))
    ]
    return tuple(zip(starts, [*starts[1:], count], strict=bool(starts)))
