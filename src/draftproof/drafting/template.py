"""`template`: continues a record like the records before it, every number by its own sequence.

Owns which earlier places the end of history continues and what follows them. Sequences are in
fields.py, symbols in symbols.py, the search for the first place is SuffixIndex over symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof._native import SuffixIndex
from draftproof.drafting.columns import Columns
from draftproof.drafting.continuation import MAX_PLACES, SHARED, Continuation, Place, comparable
from draftproof.drafting.drafter import NO_DRAFT, Draft
from draftproof.drafting.symbols import CONTEXT, NUMBER, SymbolStream, Vocabulary

SHORTEST_MATCH = 3  # symbols
TOKENS_PER_MATCHED = 4  # a draft has at most this * match length tokens
LOWEST_ACCEPTANCE = 0.25  # match lengths whose first draft token is right less often don't draft

_VISITS = 8  # candidates looked at for every further place
_REALIGN = 12  # symbols that a record may have more than the current one at a variable field
_PATIENCE = 16  # symbols that the current record may have more
_BACK = 4  # fields looked back at to tell a copy from a series
_PRIOR = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.9)  # right first tokens, by powers of two of the match
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.97  # what counts of right first tokens keep per new observation
_FADE = 0.7  # what the evidence for copies and for series keeps


class TemplateDrafter:
    """Drafts fixed text and fields from the last records of the same template.

    token_bytes: the bytes of a token id. encode: plain text to token ids, no special tokens.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], encode: Callable[[str], list[int]]
    ) -> None:
        self._vocabulary = Vocabulary(token_bytes, encode)
        self._stream = SymbolStream(self._vocabulary)
        self._index = SuffixIndex()
        self._tokens = 0  # committed tokens seen
        self._places: list[Place] = []  # newest first
        self._series = 0.0  # above 0: fields went on by their sequence where a copy was wrong
        self._copies = 0.0  # above 0: fields of a single earlier place were copied
        self._foretold: dict[int, str] = {}  # fields of the last draft
        self._columns = Columns()
        self._parted = -1  # where the first place's record and this one parted; -1: in step
        self._one_token = 0  # at least 0: variable text was one token wide lately
        self._tries = [_PRIOR_WEIGHT] * len(_PRIOR)
        self._right = [_PRIOR_WEIGHT * rate for rate in _PRIOR]
        self._asked: tuple[int, int, int] | None = None  # (tokens seen, first token, bucket)

    def start(self, prompt: Sequence[int]) -> None:
        for token in prompt:
            self._stream.push(token)
        self._columns.limit = len(self._stream.text)
        self._tokens = len(prompt)
        self._index.append(self._stream.symbols)

    def propose(self, history: Sequence[int], k: int) -> Draft:
        self._commit(history)
        self._find_places()
        if not self._places:
            return NO_DRAFT
        credit = self._places[0].credit
        continuation = self._continuation()
        tokens = continuation.tokens(min(max(k, 1), TOKENS_PER_MATCHED * credit))
        self._foretold = continuation.texts
        if not tokens:
            return NO_DRAFT
        bucket = min(credit.bit_length(), len(_PRIOR)) - 1
        self._asked = (self._tokens, tokens[0], bucket)
        if k <= 0 or self._right[bucket] < LOWEST_ACCEPTANCE * self._tries[bucket]:
            return NO_DRAFT
        return Draft(tuple(tokens[:k]), "template", credit)

    def observe(self, draft: Draft, accepted: int) -> None:
        """Nothing: the next history shows the accepted tokens and the one that came instead."""

    # ---- following the history

    def _commit(self, history: Sequence[int]) -> None:
        begin = self._index.end
        came = history[self._tokens :]
        if came and self._asked is not None:
            asked, token, bucket = self._asked
            if asked == self._tokens:
                self._tries[bucket] = self._tries[bucket] * _MEMORY + 1
                self._right[bucket] = self._right[bucket] * _MEMORY + (token == came[0])
            self._asked = None
        stream = self._stream
        for token in came:
            closes = bool(stream.open_tokens)
            end = len(stream.symbols)
            places = self._places
            if closes and places and not self._vocabulary.kind(token).digits:
                self._weigh(end - 1, [p for p in places if not p.missed])
                if not places[0].missed:
                    self._learn_value(end - 1, end)
            if stream.push(token) and places:
                self._advance(stream.symbols[end], end)
        self._tokens = len(history)
        if len(stream.symbols) > begin:
            self._index.append(stream.symbols[begin:])

    def _advance(self, symbol: int, end: int) -> None:
        """Every place steps over `symbol`, which stands at `end`, or looks for it further on."""
        symbols = self._stream.symbols
        kept: list[Place] = []
        taken: set[int] = set()
        first = self._places[0]
        for place in self._places:
            position = place.position
            if symbols[position] == symbol:
                place.position += 1
                place.credit += 1
                place.missed = 0
            else:
                if not place.missed:
                    place.credit //= 2
                    if place is first:
                        self._parted = end
                place.missed += 1
                for there in range(position, min(position + _REALIGN, end)):
                    if symbols[there] == symbol:
                        if place is first:
                            one_token = place.missed == 2 and there == position + 1
                            self._one_token += 1 if one_token else -1
                            self._one_token = max(-2, min(self._one_token, 2))
                            self._learn_value(self._parted, end)
                        place.position = there + 1
                        place.missed = 0
                        break
            if place.credit and place.missed <= _PATIENCE and place.position not in taken:
                taken.add(place.position)
                kept.append(place)
        self._places = kept

    def _learn_value(self, begin: int, end: int) -> None:
        """The symbols [begin, end) are a value of this record."""
        if 0 <= begin < end:
            stream = self._stream
            last = stream.begins[end] if end < len(stream.begins) else len(stream.text)
            self._columns.learn(stream.text, begin, end - begin, stream.begins[begin], last)

    def _weigh(self, field: int, places: Sequence[Place], back: int = 0) -> None:
        """Was the number at `field` a copy of the newest place's, or the next of its sequence?"""
        aligned = [p.position - 1 - back for p in comparable(places, field)]
        symbols = self._stream.symbols
        aligned = [a for a in aligned if 0 <= a < field and symbols[a] == symbols[field]]
        if not aligned:
            return
        texts = self._stream.texts
        copy, actual = texts[aligned[0]], texts[field]
        self._copies = _FADE * self._copies + (1 if copy == actual else -1)
        if self._foretold.get(field) == actual:  # no need to work it out again
            if copy != actual:
                self._series = _FADE * self._series + 1
            return
        series = self._continuation().series(field, aligned)
        if series is not None and series != copy:
            self._series = _FADE * self._series + (series == actual) - (copy == actual)

    def _continuation(self) -> Continuation:
        return Continuation(
            self._stream,
            self._places,
            self._columns,
            parted=self._parted,
            step_over=self._one_token >= 0,
            series=self._series,
            copies=self._copies,
        )

    def _find_places(self) -> None:
        """Follows another place if the index knows one that shares clearly more."""
        match = self._index.longest_match()
        places = self._places
        credit = places[0].credit if places else 0
        if match.length < SHORTEST_MATCH or (places and match.length <= credit + CONTEXT):
            self._find_older()
            return
        if places and places[0].position == match.source:
            places[0].credit = match.length
            self._find_older()
            return
        stream = self._stream
        self._places = [Place(match.source, match.length)]
        self._find_older()
        self._series = self._copies = 0.0
        end = len(stream.symbols)
        back = [
            b for b in range(1, min(match.length, SHARED)) if stream.symbols[end - 1 - b] == NUMBER
        ]
        for b in reversed(back[:_BACK]):
            self._weigh(end - 1 - b, self._places, b)

    def _find_older(self) -> None:
        """Adds places before the oldest one that is followed."""
        while self._places and len(self._places) < MAX_PLACES:
            oldest = self._places[-1]
            place, shared = self._stream.earlier(oldest.position, _VISITS, SHARED)
            if not shared or oldest.missed:
                break
            self._places.append(Place(place, shared))
