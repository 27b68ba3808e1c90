"""The finished requests of this process, to draft from. Oldest out; one scope never sees another.

Owns what is kept and for how long. Doesn't know who may share a scope: that is an opaque string.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from draftproof._native import SuffixDraft, SuffixIndex

DEFAULT_STORE_TOKENS = 1 << 20
_SHORTEST = 3  # fewer tokens have no context with something behind it
_SCOPE_COST = 2 * SuffixIndex.chunk_tokens  # what a scope may take beyond its tokens


class RequestStore:
    """Token streams (prompt + output) of finished requests, indexed per scope. Thread-safe.

    max_tokens bounds the tokens of all scopes together, each request as one more and each scope as
    two chunks more; memory stays below 1.1 * max_tokens * SuffixIndex.bytes_per_token. A request
    that doesn't fit into a quarter of max_tokens is kept without its beginning.
    """

    def __init__(self, max_tokens: int = DEFAULT_STORE_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._indexes: dict[str, SuffixIndex] = {}
        self._kept: deque[tuple[str, int]] = deque()  # (scope, cost), oldest first
        self._cost = 0

    def add(self, scope: str, tokens: Sequence[int]) -> None:
        """Remembers one finished request. Costs about 1 µs per token, once, and as much again for
        what has to go."""
        room = self._max_tokens // 4 - _SCOPE_COST
        kept = list(tokens[-room:]) if room > 0 else []
        if len(kept) < _SHORTEST:
            return
        with self._lock:
            index = self._indexes.get(scope)
            if index is None or index.end > index.max_tokens - len(kept) - 1:
                self._forget_scope(scope)
                index = self._indexes[scope] = SuffixIndex()
                self._cost += _SCOPE_COST
            index.append(kept)
            index.append_break()
            self._kept.append((scope, len(kept) + 1))
            self._cost += len(kept) + 1
            while self._cost > self._max_tokens:
                self._forget_oldest()

    def drafts(self, scope: str, of: SuffixIndex, k: int) -> tuple[SuffixDraft, SuffixDraft] | None:
        """The end of `of` looked up among the requests of `scope`: the most recent and the most
        frequent continuation. None: nothing there, or the store is busy (nobody waits for it)."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            index = self._indexes.get(scope)
            return index.drafts(k, of) if index is not None else None
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._indexes.clear()
            self._kept.clear()
            self._cost = 0

    @property
    def requests(self) -> int:
        """How many requests are held."""
        with self._lock:
            return len(self._kept)

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return sum(index.memory_bytes for index in self._indexes.values())

    def _forget_oldest(self) -> None:
        scope, cost = self._kept.popleft()
        index = self._indexes[scope]
        index.drop_first_run()
        self._cost -= cost
        if index.begin == index.end:
            del self._indexes[scope]
            self._cost -= _SCOPE_COST

    def _forget_scope(self, scope: str) -> None:
        """An index that has used up its positions (2^30 tokens) starts anew."""
        if self._indexes.pop(scope, None) is None:
            return
        self._cost -= _SCOPE_COST + sum(cost for name, cost in self._kept if name == scope)
        self._kept = deque(entry for entry in self._kept if entry[0] != scope)
