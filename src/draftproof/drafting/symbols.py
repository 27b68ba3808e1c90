"""The symbol stream: committed tokens with every number as one symbol and list letters as fields.

Owns what a token is to a template, the values of fields, and where a few symbols occurred before.
Knows nothing of drafts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from draftproof.drafting.fields import MAX_DIGITS, SEPARATORS

NUMBER = 0  # the symbol of every number
RESERVED = 256  # 1..255: a list letter behind one spelling of what stands before it; else id + 256
CONTEXT = 3  # symbols that a place must share with an earlier one to be found by `earlier`

_LARGEST_ID = 2**31 - 1 - RESERVED
_BUCKETS = 1 << 14
_HISTORY_ENCODINGS = 2048
_ASCII_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LINE_DRESS = frozenset(b" \t\r\n-*#>([{|+_`\"'")  # what may stand before a list letter


@dataclass(frozen=True, slots=True)
class TokenKind:
    """digits: the token's text if it is digits only. letter: the letter of a token that is one
    letter behind nothing but dress, and the symbol it becomes at the start of a line. line_start:
    whether a line has only dress so far behind this token, None = as before it. separator: the one
    character of the token if it may stand inside a composite."""

    symbol: int
    text: bytes
    digits: str = ""
    letter: str = ""
    letter_symbol: int = 0
    line_start: bool | None = False
    separator: str = ""


class Vocabulary:
    """What tokens are to a template, looked at once per token id; digits back to tokens."""

    def __init__(
        self, token_bytes: Callable[[int], bytes], encode: Callable[[str], list[int]]
    ) -> None:
        self._token_bytes = token_bytes
        self._encode = encode
        self._kinds: dict[int, TokenKind] = {}
        self._letter_symbols: dict[tuple[bytes, bool], int] = {}
        self._prefixes: dict[int, str] = {}
        self._encoded: dict[str, tuple[int, ...] | None] = {}

    def kind(self, token: int) -> TokenKind:
        kind = self._kinds.get(token)
        if kind is None:
            kind = self._kinds[token] = self._look_at(token)
        return kind

    def separator(self, symbol: int) -> str:
        return self.kind(symbol - RESERVED).separator if symbol >= RESERVED else ""

    def tokens(self, text: str) -> tuple[int, ...] | None:
        """The tokens of these characters standing alone, None if they don't decode to exactly
        them. Digits come as digit tokens only."""
        if text not in self._encoded:
            if len(self._encoded) >= _HISTORY_ENCODINGS:
                self._encoded.clear()
            self._encoded[text] = self._tokens_of(text)
        return self._encoded[text]

    def letter(self, symbol: int, letter: str) -> tuple[int, ...] | None:
        """The one token of a list letter with what stands before it, None if there isn't one."""
        tokens = self.tokens(self._prefixes[symbol] + letter)
        if tokens is None or len(tokens) != 1 or self.kind(tokens[0]).letter_symbol != symbol:
            return None
        return tokens

    def _look_at(self, token: int) -> TokenKind:
        text = self._token_bytes(token)
        symbol = min(token, _LARGEST_ID) + RESERVED
        if text.isdigit() and len(text) <= MAX_DIGITS:
            return TokenKind(NUMBER, text, digits=text.decode())
        line_start: bool | None = False
        if b"\n" in text:
            line_start = _LINE_DRESS.issuperset(text.rpartition(b"\n")[2])
        elif _LINE_DRESS.issuperset(text):
            line_start = None
        character = chr(text[0]) if len(text) == 1 else ""
        separator = character if character in SEPARATORS else ""
        if not text or text[-1] not in _ASCII_LETTERS or not _LINE_DRESS.issuperset(text[:-1]):
            return TokenKind(symbol, text, line_start=line_start, separator=separator)
        prefix = text[:-1]
        key = (prefix, text[-1:].isupper())
        letter_symbol = self._letter_symbols.get(key, 0)
        if not letter_symbol and len(self._letter_symbols) < RESERVED - 1:
            letter_symbol = self._letter_symbols[key] = len(self._letter_symbols) + 1
            self._prefixes[letter_symbol] = prefix.decode()
        letter = chr(text[-1]) if letter_symbol else ""
        return TokenKind(symbol, text, "", letter, letter_symbol, False, separator)

    def _tokens_of(self, text: str) -> tuple[int, ...] | None:
        for tokens in (self._encode(text), [t for c in text for t in self._encode(c)]):
            if b"".join(map(self._token_bytes, tokens)) != text.encode():
                continue
            if not text.isdigit() or all(self.kind(token).digits for token in tokens):
                return tuple(tokens)
        return None


class SymbolStream:
    """The symbols of one request. Only grows; a number at the very end is still open.

    Memory: 16 bytes per symbol, the text, one short text per field, and a table of fixed size.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.symbols = array("i")
        self.text = bytearray()  # of all tokens
        self.begins = array("q")  # where in `text` each symbol begins
        self.texts: dict[int, str] = {}  # position of a field -> its digits or letter
        self.line_starts: set[int] = set()  # fields that stand first in their line
        self.open_tokens: list[int] = []  # of the number at the end, empty: there is none
        self._line_start = True
        self._previous = array("i")  # an earlier place of the same bucket, -1: none
        self._newest = array("i", [-1]) * _BUCKETS

    def push(self, token: int) -> bool:
        """Takes one committed token; False: it only made the open number longer."""
        kind = self.vocabulary.kind(token)
        symbols = self.symbols
        if kind.digits:
            if self.open_tokens:
                digits = self.texts[len(symbols) - 1] + kind.digits
                if len(digits) <= MAX_DIGITS:
                    self.texts[len(symbols) - 1] = digits
                    self.open_tokens.append(token)
                    self.text += kind.text
                    return False
            self.texts[len(symbols)] = kind.digits
            self.open_tokens = [token]
        elif self.open_tokens:
            self.open_tokens = []
        symbol = kind.symbol
        if self._line_start:
            if kind.letter_symbol:
                symbol = kind.letter_symbol
                self.texts[len(symbols)] = kind.letter
            if symbol < RESERVED:
                self.line_starts.add(len(symbols))
        if kind.line_start is not None:
            self._line_start = kind.line_start
        symbols.append(symbol)
        self.begins.append(len(self.text))
        self.text += kind.text
        bucket = hash(tuple(symbols[-CONTEXT:])) % _BUCKETS
        self._previous.append(self._newest[bucket])
        self._newest[bucket] = len(symbols) - 1
        return True

    def shared(self, a: int, b: int, limit: int) -> int:
        """How many symbols before place a equal those before place b, at most `limit`."""
        symbols = self.symbols
        limit = min(limit, a, b)
        n = 0
        while n < limit and symbols[a - 1 - n] == symbols[b - 1 - n]:
            n += 1
        return n

    def earlier(self, place: int, visits: int, limit: int) -> tuple[int, int]:
        """(an earlier place, what it shares with `place`), among the `visits` newest that may share
        the last CONTEXT symbols the one that shares most; (0, 0): none."""
        best = (0, 0)
        end = self._previous[place - 1] if place >= CONTEXT else -1
        for _ in range(visits):
            if end < 0:
                break
            shared = self.shared(place, end + 1, limit)
            if shared >= CONTEXT and shared > best[1]:
                best = (end + 1, shared)
                if shared == limit:
                    break
            end = self._previous[end]
        return best
