"""What follows earlier places of the same template: fixed text, fields, values from a table.

Owns how a draft is written, symbol by symbol. Doesn't know how the places were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.drafting import fields
from draftproof.drafting.columns import Columns
from draftproof.drafting.symbols import NUMBER, RESERVED, SymbolStream

MAX_PLACES = 6  # earlier records that are followed: enough to see a constant third difference
SHARED = 48  # symbols compared to tell candidates apart

_VERBATIM = 12  # a single place that shares as many symbols is a source to copy


@dataclass(slots=True)
class Place:
    """An earlier place that the end of history goes on like. credit: symbols that agreed, halved
    wherever one didn't. missed: symbols since the records parted, 0 = in step."""

    position: int
    credit: int
    missed: int = 0


def comparable(places: Sequence[Place], end: int) -> list[Place]:
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


class Continuation:
    """What follows the end of history, symbol by symbol. Places that reach the end of history go on
    in the draft itself."""

    def __init__(
        self,
        stream: SymbolStream,
        places: Sequence[Place],
        columns: Columns,
        *,
        parted: int,
        step_over: bool,
        series: float,
        copies: float,
    ) -> None:
        """parted: where in the stream the current record parted from the newest place's; only
        asked for while that place has missed. step_over: whether variable text may be taken for
        one token. series, copies: the evidence, see TemplateDrafter."""
        self._stream = stream
        self._vocabulary = stream.vocabulary
        self._places = places
        self._columns = columns
        self._cursor = columns.cursor
        self._parted = parted
        self._step_over = step_over
        self._series = series
        self._copies = copies
        self._committed = len(stream.symbols)
        self._symbols: list[int] = []
        self.texts: dict[int, str] = {}  # fields of the draft by position, an open one included
        self._carried: dict[int, str] = {}  # the later parts of composites begun in the draft

    def tokens(self, k: int) -> list[int]:
        """At most k draft tokens."""
        places = comparable(self._places, self._committed)
        missed = places[0].missed
        followed = [p.position for p in places if p.missed == missed]
        # The oldest place has come one record on when the newest is where the end of history is
        # now, or as far before that as they are alike.
        alike = min(self._committed - followed[0] - 1, SHARED)
        alike = 0 if missed else self._stream.shared(followed[-1], self._committed, alike)
        round_end, oldest = self._committed - alike, followed[-1] - alike
        tokens: list[int] = []
        if missed and self._finish_value(followed, tokens):
            followed = self._behind_value(followed)
        elif missed:
            if missed > 1 or not self._step_over or len(followed) < 2:
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
        """Drafts the value that follows in the column of the value at `position`, if any."""
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
