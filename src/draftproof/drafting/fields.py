"""Fields: how a number, a list letter, a time or a date goes on, given its earlier values.

Owns the arithmetic of sequences and their spelling (width, padding, carries). Knows text only: no
tokens, no history. Values always come oldest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from itertools import pairwise

MAX_DIGITS = 18  # longer digit strings are several fields: every value stays a small integer
MAX_PARTS = 7  # year, month, day, hour, minute, second, fraction

_DATES = ("--", "//")
_CLOCKS = (":", "::", ":.", ":,", "::.", "::,")
# What stands between the parts of a composite -> its parts before the clock (3 = a date).
_KINDS: dict[str, int] = {
    **dict.fromkeys(_DATES, 3),
    **dict.fromkeys(_CLOCKS, 0),
    **{day + gap + clock: 3 for day in _DATES for gap in " T" for clock in _CLOCKS},
    **dict.fromkeys((".", ",", ",,", ",,,"), 0),
}
SEPARATORS = frozenset("".join(_KINDS))


def next_value(values: Sequence[int]) -> int | None:
    """The value that follows, or None where the rule isn't clear.

    Two values give a first difference. More values need two rounds of two or three values, a
    difference seen twice in a row, a third value that makes a second difference or a ratio, a
    constant second or third difference, or a difference that most steps have (a sequence that
    jumped once goes on).
    """
    n = len(values)
    if n < 2:
        return None
    last = values[-1]
    for period in (2, 3):
        if n >= 2 * period and all(values[-i] == values[-i - period] for i in range(1, period + 1)):
            return values[-period]
    steps = [b - a for a, b in pairwise(values)]
    if n == 2 or steps[-1] == steps[-2]:
        return last + steps[-1]
    bends = [b - a for a, b in pairwise(steps)]
    ratio = _ratio(values[-4:])
    if ratio is not None:
        return last * ratio
    if n == 3:
        # A guess: squares look like this. Not for a sequence that turned or stood still.
        same_direction = steps[0] * steps[1] > 0
        return last + steps[-1] + bends[-1] if same_direction else None
    if bends[-1] == bends[-2]:
        return last + steps[-1] + bends[-1]
    if n >= 5 and bends[-1] - bends[-2] == bends[-2] - bends[-3]:
        return last + steps[-1] + 2 * bends[-1] - bends[-2]
    step, count = Counter(steps).most_common(1)[0]
    return last + step if 2 * count > len(steps) else None


def _ratio(values: Sequence[int]) -> int | None:
    """The whole factor of at least 2 from every value to the next."""
    if values[0] <= 0:
        return None
    ratio = values[-1] // values[-2] if values[-2] > 0 else 0
    same = all(b == a * ratio for a, b in pairwise(values))
    return ratio if ratio >= 2 and same else None


def next_number(texts: Sequence[str]) -> str | None:
    """The digits that follow earlier digits. Padding is kept where it can be seen: 07, 08 -> 09,
    09, 10 -> 11, 0099 -> 0100. None where the rule isn't clear or the number would be negative."""
    value = next_value([int(text) for text in texts])
    return None if value is None else spelled(value, texts)


def spelled(value: int, texts: Sequence[str]) -> str | None:
    """`value` in the width of `texts`; None if it is negative or too long."""
    if value < 0 or value >= 10**MAX_DIGITS:
        return None
    padded = any(text[0] == "0" and len(text) > 1 for text in texts)
    return str(value).zfill(len(texts[-1]) if padded else 1)


def next_letter(letters: Sequence[str]) -> str | None:
    """The list letter that follows, in the case of the last one. Nothing follows z."""
    value = next_value([ord(letter.lower()) - ord("a") for letter in letters])
    if value is None or not 0 <= value < 26:
        return None
    letter = chr(ord("a") + value)
    return letter.upper() if letters[-1].isupper() else letter


# ---- composites: several numbers that carry into each other

Parts = tuple[str, ...]


def composite_span(separators: str, index: int) -> tuple[int, int] | None:
    """The longest composite around number `index` in a chain of numbers with these characters
    between them: [first, last + 1) as numbers of the chain."""
    numbers = len(separators) + 1
    if ".." in separators:  # a version or an address: nothing carries
        return None
    for length in range(min(numbers, MAX_PARTS), 1, -1):
        for first in range(max(0, index - length + 1), min(index, numbers - length) + 1):
            if separators[first : first + length - 1] in _KINDS:
                return first, first + length
    return None


def next_composite(separators: str, earlier: Sequence[Parts]) -> Parts | None:
    """All parts of the composite that follows, each in its own width; None where the parts don't
    make one (61 minutes, month 13), or the rule isn't clear.

    h:mm:ss carries at 60, and at 24 hours behind a date or where a clock of three parts passes
    midnight; dates step by days, or by months where the day stays; a decimal fraction and groups
    of thousands carry into the number before them.
    """
    radices = _radices(separators, earlier)
    if radices is None:
        return None
    dated = _KINDS[separators] == 3
    if dated and len(radices) == 2 and len({parts[2] for parts in earlier}) == 1:
        monthly = next_value([int(parts[0]) * 12 + int(parts[1]) - 1 for parts in earlier])
        if monthly is not None and len({parts[:2] for parts in earlier}) > 1:
            year, month = divmod(monthly, 12)
            return (str(year).zfill(4), str(month + 1).zfill(2), earlier[-1][2])
    totals = [_total(parts, radices, dated) for parts in earlier]
    known = [total for total in totals if total is not None]
    if len(known) != len(totals):
        return None
    total = next_value(known)
    if total is None or total < 0:
        return None
    if separators.startswith("::"):
        day = 24 * _product(radices)
        if known[-1] < day <= total:
            total -= day
    return _parts(total, radices, dated, ":" in separators, earlier)


def _product(radices: Sequence[int]) -> int:
    product = 1
    for radix in radices:
        product *= radix
    return product


def _radices(separators: str, earlier: Sequence[Parts]) -> list[int] | None:
    """How many of each part after the first make one of the part before; None: not of this kind.
    The three parts of a date count as one number, days; its radices stand for month and day."""
    last = earlier[-1]
    dated = _KINDS[separators] == 3
    radices: list[int] = [1, 1] if dated else []
    rest = separators[2:] if dated else separators
    clock = ":" in rest
    for i, separator in enumerate(rest, start=1 + len(radices)):
        width = len(last[i])
        if any(len(parts[i]) != width for parts in earlier):
            return None
        if separator in " T":
            radices.append(24)
        elif separator == ":":
            radices.append(60)
        elif separator == "." or clock:
            radices.append(10**width)
        else:
            radices.append(1000)
        # Numbers below 100 that carry are written with two digits, thousands with three.
        if separator == ":" and width != 2:
            return None
        if separator == "," and not clock and width != 3:
            return None
    return radices


def _total(parts: Parts, radices: Sequence[int], dated: bool) -> int | None:
    values = [int(part) for part in parts]
    if dated:
        if len(parts[0]) != 4 or max(len(parts[1]), len(parts[2])) > 2:
            return None
        try:
            total = date(values[0], values[1], values[2]).toordinal()
        except ValueError:
            return None
        tail = zip(values[3:], radices[2:], strict=True)
    else:
        total = values[0]
        tail = zip(values[1:], radices, strict=True)
    for value, radix in tail:
        if value >= radix:
            return None
        total = total * radix + value
    return total


def _parts(
    total: int, radices: Sequence[int], dated: bool, clock: bool, earlier: Sequence[Parts]
) -> Parts | None:
    widths = [len(part) for part in earlier[-1]]
    tail: list[str] = []
    for radix, width in zip(
        reversed(radices[2:] if dated else radices),
        reversed(widths[3 if dated else 1 :]),
        strict=True,
    ):
        total, value = divmod(total, radix)
        tail.append(str(value).zfill(width))
    tail.reverse()
    if not dated:
        # Clocks keep their width (10:00, 09:59 and 23:59, 00:00); other numbers show theirs.
        texts = [parts[0] for parts in earlier]
        first = str(total).zfill(widths[0]) if clock else spelled(total, texts)
        return None if first is None else (first, *tail)
    if not 1 <= total <= date.max.toordinal():
        return None
    day = date.fromordinal(total)
    head = (day.year, day.month, day.day)
    return (*(str(v).zfill(w) for v, w in zip(head, widths, strict=False)), *tail)
