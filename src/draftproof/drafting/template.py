"""`template`: continues a record like the records before it, every number by its own sequence.

Owns which earlier places the end of history continues and what follows them. Sequences are in
fields.py, symbols in symbols.py, the search for the first place is SuffixIndex over symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof._native import SuffixIndex
from draftproof.drafting import fields
from draftproof.drafting.columns import Columns
from draftproof.drafting.drafter import NO_DRAFT, Draft
from draftproof.drafting.symbols import CONTEXT, NUMBER, RESERVED, SymbolStream, Vocabulary

MAX_PLACES = 6  # earlier records that are followed: enough to see a constant third difference
SHORTEST_MATCH = 3  # symbols
TOKENS_PER_MATCHED = 4  # a draft has at most this * match length tokens
LOWEST_ACCEPTANCE = 0.25  # match lengths whose first draft token is right less often don't draft

_VISITS = 8  # candidates looked at for every further place
_SHARED = 48  # symbols compared to tell candidates apart
_REALIGN = 12  # symbols that a record may have more than the current one at a variable field
_PATIENCE = 16  # symbols that the current record may have more
_VERBATIM = 12  # a single place that shares as many symbols is a source to copy
_BACK = 4  # fields looked back at to tell a copy from a series
_PRIOR = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.9)  # right first tokens, by powers of two of the match
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.97  # what counts of right first tokens keep per new observation
_FADE = 0.7  # what the evidence for copies and for series keeps


@dataclass(slots=True)
class _Place:
    """An earlier place that the end of history goes on like. credit: symbols that agreed, halved
    wherever one didn't. missed: symbols since the records parted, 0 = in step."""

    position: int
    credit: int
    missed: int = 0


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
        self._places: list[_Place] = []  # newest first
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
        continuation = _Continuation(self)
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
        kept: list[_Place] = []
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

    def _weigh(self, field: int, places: Sequence[_Place], back: int = 0) -> None:
        """Was the number at `field` a copy of the newest place's, or the next of its sequence?"""
        aligned = [p.position - 1 - back for p in _comparable(places, field)]
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
        series = _Continuation(self).series(field, aligned)
        if series is not None and series != copy:
            self._series = _FADE * self._series + (series == actual) - (copy == actual)

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
        self._places = [_Place(match.source, match.length)]
        self._find_older()
        self._series = self._copies = 0.0
        end = len(stream.symbols)
        back = [
            b for b in range(1, min(match.length, _SHARED)) if stream.symbols[end - 1 - b] == NUMBER
        ]
        for b in reversed(back[:_BACK]):
            self._weigh(end - 1 - b, self._places, b)

    def _find_older(self) -> None:
        """Adds places before the oldest one that is followed."""
        while self._places and len(self._places) < MAX_PLACES:
            oldest = self._places[-1]
            place, shared = self._stream.earlier(oldest.position, _VISITS, _SHARED)
            if not shared or oldest.missed:
                break
            self._places.append(_Place(place, shared))


def _comparable(places: Sequence[_Place], end: int) -> list[_Place]:
    """The places that belong to the same series as the newest: those that share a fair part of
    what it shares. Besides a distant verbatim source, the records before it have no say."""
    if len(places) < 2:
        return list(places)
    first, second = places[:2]
    distant = end - first.position > 4 * (first.position - second.position)
    if distant and first.credit >= 2 * second.credit:
        return [first]
    enough = min(first.credit, 32)
    return [place for place in places if 4 * place.credit >= enough]


class _Continuation:
    """What follows the end of history, symbol by symbol. Places that reach the end of history go on
    in the draft itself."""

    def __init__(self, drafter: TemplateDrafter) -> None:
        self._stream = drafter._stream
        self._vocabulary = drafter._vocabulary
        self._places = drafter._places
        self._series = drafter._series
        self._copies = drafter._copies
        self._one_token = drafter._one_token
        self._columns = drafter._columns
        self._cursor = drafter._columns.cursor
        self._parted = drafter._parted
        self._committed = len(self._stream.symbols)
        self._symbols: list[int] = []
        self.texts: dict[int, str] = {}  # fields of the draft by position, an open one included
        self._carried: dict[int, str] = {}  # the later parts of composites begun in the draft

    def tokens(self, k: int) -> list[int]:
        """At most k draft tokens."""
        places = _comparable(self._places, self._committed)
        missed = places[0].missed
        followed = [p.position for p in places if p.missed == missed]
        # The oldest place has come one record on when the newest is where the end of history is
        # now, or as far before that as they are alike.
        alike = min(self._committed - followed[0] - 1, _SHARED)
        alike = 0 if missed else self._stream.shared(followed[-1], self._committed, alike)
        round_end, oldest = self._committed - alike, followed[-1] - alike
        tokens: list[int] = []
        if missed and self._finish_value(followed, tokens):
            followed = self._behind_value(followed)
        elif missed:
            if missed > 1 or self._one_token < 0 or len(followed) < 2:
                return []
            followed = [p + 1 for p in followed if p + 1 < self._committed]
            if len({self._symbol(p) for p in followed}) != 1:
                return []
        elif self._stream.open_tokens:
            rest = self._rest_of_number([p - 1 for p in followed])
            if rest is None:
                return []
            tokens += rest
        while len(tokens) < k:
            if followed[0] == round_end:
                if len(followed) < MAX_PLACES and followed[-1] > oldest:
                    followed.append(oldest)
                round_end, oldest = self._committed + len(self._symbols), followed[-1]
            if self._draft_value(followed[0], tokens):
                followed = self._behind_value(followed)
                continue
            symbol = self._symbol(followed[0])
            agreeing = [p for p in followed if self._symbol(p) == symbol]
            if symbol < RESERVED:
                here = self._committed + len(self._symbols)
                text = self._field(here, agreeing)
                if text is None:
                    break
                spelled = (
                    self._vocabulary.tokens(text)
                    if symbol == NUMBER
                    else self._vocabulary.letter(symbol, text)
                )
                if spelled is None:
                    break
                self.texts[here] = text
                tokens += spelled
            else:
                if any(self._symbol(p) != symbol for p in followed[1:3]):
                    break  # variable text
                tokens.append(symbol - RESERVED)
            self._symbols.append(symbol)
            followed = [p + 1 for p in agreeing]
        return tokens[:k]

    # ---- values from a table

    def _draft_value(self, position: int, tokens: list[int]) -> bool:
        """Drafts the value that follows in the column of the value at `position`, if there is one."""
        found = self._columns.next_value(self._stream.text, position, self._cursor)
        value = self._vocabulary.tokens(found[0]) if found is not None else None
        if found is None or value is None:
            return False
        self._take(value)
        tokens += value
        self._cursor = found[1]
        return True

    def _finish_value(self, followed: Sequence[int], tokens: list[int]) -> bool:
        """Drafts the rest of a value that was begun."""
        stream = self._stream
        found = self._columns.next_value(stream.text, followed[0], self._cursor)
        if found is None or self._parted < 0:
            return False
        written = stream.text[stream.begins[self._parted] :]
        value = found[0].encode()
        rest = value[len(written) :].decode(errors="ignore")
        spelled = self._vocabulary.tokens(rest) if rest else ()
        if not value.startswith(written) or spelled is None:
            return False
        self._take(spelled)
        tokens += spelled
        self._cursor = found[1]
        return True

    def _take(self, value: Sequence[int]) -> None:
        """Adds the symbols of drafted tokens."""
        for token in value:
            kind = self._vocabulary.kind(token)
            if kind.digits:
                here = self._committed + len(self._symbols)
                if self._symbols and self._symbols[-1] == NUMBER:
                    self.texts[here - 1] += kind.digits
                    continue
                self.texts[here] = kind.digits
            self._symbols.append(kind.symbol)

    def _behind_value(self, followed: Sequence[int]) -> list[int]:
        widths = [self._columns.width(p) for p in followed]
        return [p + width for p, width in zip(followed, widths, strict=True) if width]

    # ---- fields

    def series(self, here: int, aligned: Sequence[int]) -> str | None:
        """The field at `here` by its sequence. aligned: the same field of earlier records, newest
        first."""
        if here in self._carried:
            return self._carried[here]
        texts = [self._text(p) for p in reversed(aligned)]
        if self._symbol(aligned[0]) != NUMBER:
            return fields.next_letter(texts)
        return self._composite(here, aligned) or fields.next_number(texts)

    def _field(self, here: int, aligned: Sequence[int]) -> str | None:
        copy = self._text(aligned[0])
        if len(aligned) == 1:
            unknown = self._copies == 0 and self._series == 0
            if self._series <= 0 < self._copies or (
                unknown and self._places[0].credit >= _VERBATIM
            ):
                return copy
            if unknown and aligned[0] in self._stream.line_starts and copy.isdigit():
                return fields.spelled(int(copy) + 1, [copy])  # 1. is followed by 2.
            return None
        series = self.series(here, aligned)
        if series is None:
            return copy if self._series < -0.5 else None
        return series if self._series >= -0.25 else copy

    def _rest_of_number(self, aligned: Sequence[int]) -> Sequence[int] | None:
        """The tokens that finish the number at the end of history; None: nobody knows where it
        ends."""
        here = self._committed - 1
        aligned = [p for p in aligned if self._symbol(p) == NUMBER and p < here]
        if not aligned:
            return None
        written = self._stream.texts[here]
        found = self._columns.next_value(self._stream.text, aligned[0], self._cursor)
        if found is not None and found[0].isdigit() and found[0].startswith(written):
            text: str | None = found[0]
            self._cursor = found[1]
        else:
            text = self._field(here, aligned)
        if text is None or not text.startswith(written):
            widths = {len(self._text(p)) for p in aligned}
            return () if widths == {len(written)} else None
        self.texts[here] = text
        tokens = self._vocabulary.tokens(text)
        begun = len(self._stream.open_tokens)
        if tokens is not None and list(tokens[:begun]) == self._stream.open_tokens:
            return tokens[begun:]
        rest = text[len(written) :]
        return self._vocabulary.tokens(rest) if rest else ()

    def _composite(self, here: int, aligned: Sequence[int]) -> str | None:
        """The part at `here` of a time, a date or the like, if the parts before it came true."""
        newest = aligned[0]
        first, last, separators = newest, newest, ""
        while len(separators) < fields.MAX_PARTS - 1:
            between = self._separator(first - 1)
            if not between or self._symbol_or_none(first - 2) != NUMBER:
                break
            first -= 2
            separators = between + separators
        index = len(separators)
        while last - newest < 2 * fields.MAX_PARTS - 2:
            between = self._separator(last + 1)
            if not between or self._symbol_or_none(last + 2) != NUMBER:
                break
            last += 2
            separators += between
        span = fields.composite_span(separators, index) if separators else None
        if span is None:
            return None
        index -= span[0]
        separators = separators[span[0] : span[1] - 1]
        if separators == "." and newest - 2 * index in self._stream.line_starts:
            return None  # a section number: 1.10 follows 1.9
        earlier: list[fields.Parts] = []
        for place in reversed(aligned):
            parts = self._parts_at(place - 2 * index, separators)
            if parts is None:
                return None
            earlier.append(parts)
        parts = fields.next_composite(separators, earlier)
        if parts is None:
            return None
        written = [self._text_or_none(here - 2 * (index - i)) for i in range(index)]
        if written != list(parts[:index]):
            return None
        for i in range(index + 1, len(parts)):
            self._carried[here + 2 * (i - index)] = parts[i]
        return parts[index]

    def _parts_at(self, begin: int, separators: str) -> fields.Parts | None:
        parts = [self._text_or_none(begin + 2 * i) for i in range(len(separators) + 1)]
        found = "".join(self._separator(begin + 2 * i + 1) for i in range(len(separators)))
        known = tuple(part for part in parts if part is not None)
        return known if found == separators and len(known) == len(parts) else None

    # ---- history and draft as one stream

    def _symbol(self, position: int) -> int:
        past = position - self._committed
        return self._symbols[past] if past >= 0 else self._stream.symbols[position]

    def _symbol_or_none(self, position: int) -> int | None:
        inside = 0 <= position < self._committed + len(self._symbols)
        return self._symbol(position) if inside else None

    def _separator(self, position: int) -> str:
        symbol = self._symbol_or_none(position)
        return "" if symbol is None else self._vocabulary.separator(symbol)

    def _text(self, position: int) -> str:
        text = self.texts.get(position)
        return self._stream.texts[position] if text is None else text

    def _text_or_none(self, position: int) -> str | None:
        text = self.texts.get(position)
        return self._stream.texts.get(position) if text is None else text
