"""A session: one token timeline over KV pages. Knows which tokens are in the KV and where, and
nothing of what is computed from them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import OutOfMemoryError

if TYPE_CHECKING:
    from draftproof._native import KvCache
    from draftproof.engine.block_pool import BlockPool
    from draftproof.engine.prefix_cache import Block, CachedPage


class Session:
    """capacity: positions that may ever be written. promised: those that are sure to find a page,
    None = all; the others find one while there is one that nobody counts on.

    The first pages may be shared with other sessions, through the pool's prefix cache: those are
    never written to.
    """

    def __init__(
        self,
        pool: BlockPool,
        capacity: int,
        promised: int | None = None,
        *,
        tokens: Sequence[int] = (),
        salt: str = "",
        content: Mapping[int, Hashable] | None = None,
    ) -> None:
        """tokens: what is going to be in it: what the cache has of that, under the same `salt`, is
        in it at once. content: opaque keys of the positions that hold no token, e.g. of an image.

        Raises OutOfMemoryError if the pool can't promise that many positions."""
        self._pool = pool
        self._promised = pool.pages_for(capacity if promised is None else promised)
        self._num_pages = 0
        self._pages: NDArray[np.int32] = np.zeros(pool.pages_for(capacity), np.int32)
        self._content = content or {}
        self._path: list[CachedPage] = []  # root, then the cached pages that are ours as well
        self.capacity = capacity
        self.tokens: list[int] = []
        self._is_open = True
        cache = pool.cache
        if cache is None:
            pool.reserve(self._promised)
            return
        root = cache.root(salt)
        keys = self._keys(tokens)
        found = cache.find(root, keys)
        cache.hold([root, *found])
        try:
            pool.reserve(self._promised - len(found))
        except OutOfMemoryError:
            cache.release([root, *found])
            raise
        self._path = [root]
        self._share(found, tokens)
        part = cache.find_part(self._path[-1], keys[self.length :])
        # A copy needs a page besides the one that is copied.
        if part is not None and self._num_pages < self._promised and pool.num_available > 1:
            pool.unreserve(1)
            self._add(cache.copy(part[0]))
            self.tokens.extend(tokens[self.length : self.length + part[1]])
        cache.stats.queries += 1
        cache.stats.hits += self.length > 0
        cache.stats.hit_tokens += self.length

    @property
    def length(self) -> int:
        """Positions in the KV."""
        return len(self.tokens)

    @property
    def pages(self) -> NDArray[np.int32]:
        """The block table [pages in use], a view: p is in page pages[p // page_positions]."""
        return self._pages[: self._num_pages]

    def beyond_promise(self, length: int) -> int:
        """Pages that nobody promised which `length` positions would take."""
        return max(0, self._pool.pages_for(length) - max(self._promised, self._num_pages))

    def fits(self, pages: int) -> int:
        """Positions that can be written with so many pages that nobody promised."""
        return (max(self._promised, self._num_pages) + pages) * self._pool.page_positions

    def append(self, tokens: Sequence[int]) -> None:
        """Makes room for the next len(tokens) positions; the forward that follows fills them.

        OutOfMemoryError: beyond what was promised, and nothing is left."""
        length = len(self.tokens) + len(tokens)
        if length > self.capacity:
            raise ValueError(f"position {length - 1} is past the session's {self.capacity}")
        while self._num_pages * self._pool.page_positions < length:
            if self._num_pages < self._promised:
                self._pool.unreserve(1)
            elif not self._pool.num_unreserved:
                raise OutOfMemoryError("the KV cache has no page left: raise --kv-memory")
            self._add(self._pool.take())
        self.tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on. Nothing to do for the KV: it is overwritten."""
        shared = len(self._path[1:]) * self._pool.page_positions
        if not shared <= length <= len(self.tokens):
            raise ValueError(f"can't truncate {len(self.tokens)} positions to {length}")
        del self.tokens[length:]
        while (self._num_pages - 1) * self._pool.page_positions >= length and self._num_pages:
            self._num_pages -= 1
            self._pool.give_back(int(self._pages[self._num_pages]))
            if self._num_pages < self._promised:
                self._pool.reserve(1)

    def publish(self) -> None:
        """Shares all full pages: their positions must be computed, and never be taken back."""
        cache, size = self._pool.cache, self._pool.page_positions
        while cache is not None and len(self._path) <= self.length // size:
            i = len(self._path) - 1
            block = self._block(i * size, (i + 1) * size)
            node = cache.put(self._path[-1], block, int(self._pages[i]))
            if node is None:  # somebody was faster: the same bits once are enough
                (node,) = cache.find(self._path[-1], block)
                self._pool.give_back(int(self._pages[i]))
                self._pages[i] = node.page
            cache.hold([node])
            self._path.append(node)

    def adopt(self, tokens: Sequence[int]) -> int:
        """Takes over full pages of `tokens` that others have computed meanwhile; returns how many
        positions. `tokens`: what is going to be in the session, from its beginning."""
        cache, size = self._pool.cache, self._pool.page_positions
        if cache is None or self.length != (len(self._path) - 1) * size:
            return 0
        found = cache.find(self._path[-1], self._keys(tokens, self.length))
        cache.hold(found)
        own = min(len(found), max(0, self._promised - self._num_pages))
        self._pool.unreserve(own)
        self._share(found, tokens)
        cache.stats.hit_tokens += len(found) * size
        return len(found) * size

    def next_block(self, tokens: Sequence[int]) -> tuple[int, Block] | None:
        """What the session is about to compute, where that is a full page: equal for two sessions
        that would compute the same."""
        size = self._pool.page_positions
        if not self._path or self.length % size or len(tokens) < self.length + size:
            return None
        return id(self._path[-1]), tuple(self._keys(tokens, self.length, self.length + size))

    def digest(self, kv: KvCache) -> str:
        """sha256 of the K and V bits of all positions."""
        return kv.digest(self.pages, self.length)

    def close(self, *, keep: bool = False) -> None:
        """Gives everything back; may be called twice. keep: what is in it is good, and may serve
        later sessions as long as nobody needs the pages."""
        if not self._is_open:
            return
        self._is_open = False
        cache = self._pool.cache
        self._pool.unreserve(max(0, self._promised - self._num_pages))
        shared = len(self._path[1:])
        if keep and cache is not None:
            self.publish()
            shared = len(self._path[1:])
            rest = self._block(shared * self._pool.page_positions, self.length)
            if rest and cache.put(self._path[-1], rest, int(self._pages[shared])):
                shared += 1
        for page in self._pages[shared : self._num_pages]:
            self._pool.give_back(int(page))
        if cache is not None:
            cache.release(self._path)
        self._path = []
        self._num_pages = self.capacity = 0
        self.tokens = []

    def _share(self, found: Sequence[CachedPage], tokens: Sequence[int]) -> None:
        for node in found:
            node.proven = True
            self._add(node.page)
        self._path.extend(found)
        self.tokens.extend(tokens[self.length : self._num_pages * self._pool.page_positions])

    def _add(self, page: int) -> None:
        self._pages[self._num_pages] = page
        self._num_pages += 1

    def _block(self, start: int, end: int) -> Block:
        return tuple(self._keys(self.tokens, start, end))

    def _keys(
        self, tokens: Sequence[int], start: int = 0, end: int | None = None
    ) -> Sequence[Hashable]:
        if not self._content:
            return tokens[start:end]
        get = self._content.get
        return [get(i, token) for i, token in enumerate(tokens[start:end], start)]
