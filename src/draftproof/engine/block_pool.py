"""Which KV pages are free, and how many are promised. Numbers only; the memory is the KvCache's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftproof.errors import OutOfMemoryError

if TYPE_CHECKING:
    from draftproof.engine.prefix_cache import PrefixCache


class BlockPool:
    """A free list of pages. Sessions reserve what they are sure to need on opening; pages are taken
    only when a position is written. cache: gives up pages that no session uses."""

    def __init__(self, num_pages: int, page_positions: int) -> None:
        self.page_positions = page_positions
        self.num_pages = num_pages
        self.cache: PrefixCache | None = None
        self._free = list(range(num_pages - 1, -1, -1))
        self._reserved = 0  # pages promised and not yet taken

    def pages_for(self, positions: int) -> int:
        return -(-positions // self.page_positions)

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Pages that no open session uses: free, or kept by the cache until somebody needs them."""
        return len(self._free) + (self.cache.num_unused if self.cache is not None else 0)

    @property
    def num_unreserved(self) -> int:
        """Pages that no open session uses or counts on."""
        return self.num_available - self._reserved

    def reserve(self, pages: int) -> None:
        """Raises OutOfMemoryError if there aren't as many that nobody counts on."""
        if pages > self.num_unreserved:
            raise OutOfMemoryError(
                f"the KV cache has {self.num_unreserved} of {self.num_pages} pages left, "
                f"{pages} are needed: lower --ctx or max_tokens, or raise --kv-memory"
            )
        self._reserved += pages

    def unreserve(self, pages: int) -> None:
        self._reserved -= pages

    def free_pages(self, pages: int) -> list[int]:
        """So many pages that hold nothing, and stay free; there must be as many available."""
        while len(self._free) < pages and self.cache is not None:
            self._free.append(self.cache.evict())
        return self._free[-pages:]

    def take(self) -> int:
        if not self._free and self.cache is not None:
            return self.cache.evict()
        return self._free.pop()

    def give_back(self, page: int) -> None:
        self._free.append(page)
