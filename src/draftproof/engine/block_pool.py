"""Which KV pages are free, and how many are promised. Numbers only; the memory is the KvCache's."""

from __future__ import annotations

from draftproof.errors import OutOfMemoryError


class BlockPool:
    """A free list of pages. Sessions reserve their worst case on opening, so that a running session
    never finds the pool empty; pages are taken only when a position is written."""

    def __init__(self, num_pages: int, page_positions: int) -> None:
        self.page_positions = page_positions
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._reserved = 0

    def pages_for(self, positions: int) -> int:
        return -(-positions // self.page_positions)

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def num_unreserved(self) -> int:
        """Pages that no open session counts on."""
        return self.num_pages - self._reserved

    def reserve(self, pages: int) -> None:
        if pages > self.num_unreserved:
            raise OutOfMemoryError(
                f"the KV cache has {self.num_unreserved} of {self.num_pages} pages left, "
                f"{pages} are needed: lower --ctx or max_tokens"
            )
        self._reserved += pages

    def unreserve(self, pages: int) -> None:
        self._reserved -= pages

    def free_pages(self, pages: int) -> list[int]:
        """At most so many pages that hold nothing; they stay free."""
        return self._free[-pages:]

    def take(self) -> int:
        return self._free.pop()

    def give_back(self, page: int) -> None:
        self._free.append(page)
