"""Columns: the values of records that are taken, one after the other, from a table further up.

Owns the place up to which the table was used and what lies between two of its values. Knows bytes;
knows no tokens and no templates.
"""

from __future__ import annotations

from dataclasses import dataclass

_AHEAD = 48  # bytes behind the last value in which the next one is looked for
_TABLE = 1 << 16  # bytes at the end of the prompt in which a table is looked for
_LONGEST_VALUE = 64
_LONGEST_END = 3
_SHORTEST_FIRST = 3  # bytes of a value that may say where the table is
_PATIENCE = 4  # values in a row that weren't found before the table is given up
_WORD = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | frozenset(
    range(128, 256)
)


@dataclass(frozen=True, slots=True)
class Column:
    """Of one value that was found: width: symbols it took in the record. before, after: what the
    record wrote around the bare value. gap: what the table has between the value before and this
    one, at most _AHEAD bytes, None = unknown. end: what follows it in the table."""

    width: int
    before: bytes
    after: bytes
    gap: bytes | None
    end: bytes


class Columns:
    """Columns by the symbol position at which their value begins in a record. Tables stand in the
    first `limit` bytes of the text: in the prompt, never in the records themselves. Work per value:
    one search of at most 64 KiB while no table is known, of 112 bytes else."""

    def __init__(self) -> None:
        self.limit = 0
        self.cursor = -1  # behind the last value in the table, -1: no table
        self._columns: dict[int, Column] = {}
        self._not_found = 0

    def width(self, position: int) -> int:
        """Symbols of the value that begins at `position`, 0 = it isn't known as one."""
        column = self._columns.get(position)
        return column.width if column is not None else 0

    def learn(self, text: bytearray, position: int, width: int, begin: int, end: int) -> None:
        """A record has written the value text[begin:end] in `width` symbols from `position` on."""
        first, last = begin, end
        while first < last and not _is_word(text, first):
            first += 1
        while last > first and not _is_word(text, last - 1):
            last -= 1
        value = bytes(text[first:last])
        if not value or len(value) > _LONGEST_VALUE:
            return
        found = self._find(text, value)
        if found < 0:
            self._not_found += 1
            if self._not_found >= _PATIENCE:
                self.cursor = -1
            return
        self._not_found = 0
        gap = bytes(text[self.cursor : found]) if self.cursor >= 0 else None
        self.cursor = behind = found + len(value)
        while behind < self.cursor + _LONGEST_END and not _is_word(text, behind):
            behind += 1
        self._columns[position] = Column(
            width,
            bytes(text[begin:first]),
            bytes(text[last:end]),
            gap,
            bytes(text[found + len(value) : behind]),
        )

    def _find(self, text: bytearray, value: bytes) -> int:
        if self.cursor >= 0:
            at, stop = self.cursor, min(self.limit, self.cursor + _AHEAD + len(value))
        elif len(value) >= _SHORTEST_FIRST:
            at, stop = max(0, self.limit - _TABLE), self.limit
        else:
            return -1
        for _ in range(4):
            at = text.find(value, at, stop)
            if at < 0:
                break
            behind = at + len(value)
            if not (_is_word(text, at - 1) or _is_word(text, behind)):
                return at
            at += 1
        return -1

    def next_value(self, text: bytearray, position: int, cursor: int) -> tuple[str, int] | None:
        """(the value that follows in the column of the value at `position`, the cursor behind it),
        None where the table doesn't go on like that."""
        column = self._columns.get(position)
        if column is None or column.gap is None or cursor < 0 or not column.end:
            return None
        begin = _behind_gap(text, cursor, column.gap)
        if begin < 0:
            return None
        end = text.find(column.end, begin, min(self.limit, begin + _LONGEST_VALUE))
        if end <= begin:
            return None
        value = column.before + text[begin:end] + column.after
        try:
            return value.decode(), end
        except UnicodeDecodeError:
            return None


def _is_word(text: bytearray, at: int) -> bool:
    return 0 <= at < len(text) and text[at] in _WORD


def _behind_gap(text: bytearray, at: int, gap: bytes) -> int:
    """Where text[at:] has passed the gap, -1: it doesn't have it. A word or a number in the gap, a
    skipped column, stands for any other."""
    i = 0
    while i < len(gap):
        if gap[i] in _WORD:
            if not _is_word(text, at):
                return -1
            while i < len(gap) and gap[i] in _WORD:
                i += 1
            while _is_word(text, at):
                at += 1
        elif at < len(text) and text[at] == gap[i]:
            i += 1
            at += 1
        else:
            return -1
    return at
