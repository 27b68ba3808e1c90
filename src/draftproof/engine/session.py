"""A session: one token timeline over KV pages. Knows which tokens are in the KV and where, and
nothing of what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from draftproof._native import KvCache
    from draftproof.engine.block_pool import BlockPool


class Session:
    """capacity: positions that may ever be written, reserved in the pool until close()."""

    def __init__(self, pool: BlockPool, capacity: int) -> None:
        """Raises OutOfMemoryError if the pool can't promise that many positions."""
        self._pool = pool
        self._reserved = pool.pages_for(capacity)
        pool.reserve(self._reserved)
        self._num_pages = 0
        self._pages: NDArray[np.int32] = np.zeros(self._reserved, np.int32)
        self.capacity = capacity
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        """Positions in the KV."""
        return len(self.tokens)

    @property
    def pages(self) -> NDArray[np.int32]:
        """The block table [pages in use], a view: p is in page pages[p // page_positions]."""
        return self._pages[: self._num_pages]

    def append(self, tokens: Sequence[int]) -> None:
        """Makes room for the next len(tokens) positions; the forward that follows fills them."""
        length = len(self.tokens) + len(tokens)
        if length > self.capacity:
            raise ValueError(f"position {length - 1} is past the session's {self.capacity}")
        self.tokens.extend(tokens)
        while self._num_pages * self._pool.page_positions < length:
            self._pages[self._num_pages] = self._pool.take()
            self._num_pages += 1

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on. Nothing to do for the KV: it is overwritten."""
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"can't truncate {len(self.tokens)} positions to {length}")
        del self.tokens[length:]
        while (self._num_pages - 1) * self._pool.page_positions >= length and self._num_pages:
            self._num_pages -= 1
            self._pool.give_back(int(self._pages[self._num_pages]))

    def digest(self, kv: KvCache) -> str:
        """sha256 of the K and V bits of all positions."""
        return kv.digest(self.pages, self.length)

    def close(self) -> None:
        """Gives everything back; may be called twice."""
        self.truncate(0)
        self._pool.unreserve(self._reserved)
        self._reserved = 0
        self.capacity = 0
