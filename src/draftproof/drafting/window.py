"""`window`: the classic n-gram scan, answered from an index instead of a scan.

The last w tokens are looked up among all earlier windows, w from 8 down to 3. The earliest that
ends, with the token after it, before the last w tokens begin wins; what followed it is the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.drafter import NO_DRAFT, Draft

LONGEST_WINDOW = 8
SHORTEST_WINDOW = 3
TOKEN_BITS = 32


class WindowDrafter:
    """Per window length one table: window -> earliest start. Work per committed token: six entries.

    The earliest start of all is enough: if even that one overlaps the current window, every later
    one does. A window of w tokens is kept as one integer of 32 w bits: exact, and smaller than a
    tuple.
    """

    def __init__(self) -> None:
        lengths = range(LONGEST_WINDOW, SHORTEST_WINDOW - 1, -1)
        self._tables: list[tuple[int, int, dict[int, int]]] = [
            (w, (1 << (TOKEN_BITS * w)) - 1, {}) for w in lengths
        ]
        self._indexed = 0
        self._last = 0  # the last LONGEST_WINDOW indexed tokens as one integer

    def start(self, prompt: Sequence[int]) -> None:
        self._index(prompt)

    def propose(self, history: Sequence[int], k: int) -> Draft:
        self._index(history)
        n = len(history)
        for w, mask, table in self._tables:
            if n < 2 * w + 1:
                continue
            start = table[self._last & mask]
            if start + w + 1 <= n - w:
                return Draft(tuple(history[start + w : start + w + k]), "window", w)
        return NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        pass

    def _index(self, history: Sequence[int]) -> None:
        longest = (1 << (TOKEN_BITS * LONGEST_WINDOW)) - 1
        for end in range(self._indexed + 1, len(history) + 1):
            self._last = ((self._last << TOKEN_BITS) | history[end - 1]) & longest
            for w, mask, table in self._tables:
                if end >= w:
                    table.setdefault(self._last & mask, end - w)
        self._indexed = len(history)
