"""The prefix cache: a tree of KV pages that earlier sessions computed, by what they hold.

Owns which page holds which tokens behind which others, who uses it, and which one goes when pages
are needed. Because K and V of a position depend on the tokens up to it and on nothing else, a page
that is found here has the bits that computing it again would give.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from draftproof.engine.block_pool import BlockPool

Block = tuple[Hashable, ...]
"""What a page holds, per position: a token id, or the opaque key of a piece of an image. Compared
whole, so that no two prefixes are ever taken for each other."""

_MOST_PROVEN = 0.75  # of all pages: as many are safe from requests that nobody continues


class CachedPage:
    """A node of the tree: `page` holds `block` behind the blocks of its parents.

    users: open sessions. used: when it was last of use. proven: a later session has found it, or it
    is the first to continue a page that is proven, as the next turn of a chat does. A root has page
    -1 and no block; a page with fewer positions than it has room for has no children.
    """

    __slots__ = ("block", "children", "page", "parent", "proven", "used", "users")

    def __init__(self, block: Block, page: int, parent: CachedPage | None) -> None:
        self.block = block
        self.page = page
        self.parent = parent
        self.children: dict[Block, CachedPage] = {}
        self.users = 0
        self.used = 0
        self.proven: bool = parent is not None and parent.proven and not parent.children


@dataclass
class PrefixStats:
    """queries: sessions that looked. hits: those that found something. hit_tokens: positions found.
    evictions: pages given up."""

    queries: int = 0
    hits: int = 0
    hit_tokens: int = 0
    evictions: int = 0


class PrefixCache:
    """copy_page(source, target): copies a whole page of the KV cache.

    The page that goes is the one that was of use longest ago: among those that have not proven
    useful, or, where the proven ones take more than three quarters of all pages, among those. So a
    chat outlives any number of requests that nobody continues, a new one has time for its second
    turn, and one that was left for good makes room for others.
    """

    def __init__(self, pool: BlockPool, copy_page: Callable[[int, int], None]) -> None:
        self.stats = PrefixStats()
        self._pool = pool
        self._copy_page = copy_page
        self._roots: dict[str, CachedPage] = {}
        self._unused: dict[CachedPage, None] = {}  # pages without users
        self._clock = 0  # pages that came in
        pool.cache = self

    @property
    def num_unused(self) -> int:
        """Pages that can be given up."""
        return len(self._unused)

    def root(self, salt: str) -> CachedPage:
        """Where prefixes of `salt` begin; sessions of different salts share nothing. Hold it."""
        if salt not in self._roots:
            self._roots[salt] = CachedPage((), -1, None)
        return self._roots[salt]

    def find(self, start: CachedPage, keys: Sequence[Hashable]) -> list[CachedPage]:
        """The full pages behind `start` that hold the beginning of `keys`."""
        size = self._pool.page_positions
        found: list[CachedPage] = []
        node = start
        for at in range(0, len(keys) - size + 1, size):
            child = node.children.get(tuple(keys[at : at + size]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def find_part(
        self, behind: CachedPage, keys: Sequence[Hashable]
    ) -> tuple[CachedPage, int] | None:
        """The page behind `behind` that shares most of its beginning with `keys`, and how much."""
        best, most = None, 0
        for child in behind.children.values():
            shared = 0
            for ours, theirs in zip(keys, child.block, strict=False):
                if ours != theirs:
                    break
                shared += 1
            if shared > most:
                best, most = child, shared
        return None if best is None else (best, most)

    def copy(self, source: CachedPage) -> int:
        """A page of the caller's own with what `source` holds."""
        self.hold([source])  # so that it isn't the one that goes
        page = self._pool.take()
        self._copy_page(source.page, page)
        source.proven = True
        self.release([source])
        return page

    def put(self, behind: CachedPage, block: Block, page: int) -> CachedPage | None:
        """Takes over `page`, which holds `block` behind `behind`. None: it was known already, and
        the page stays the caller's; look it up with `find`."""
        for known in list(behind.children.values()):
            if known.block[: len(block)] == block:
                return None
            if known.block == block[: len(known.block)] and not known.users:
                self._pool.give_back(self._remove(known))  # the new page holds more
        node = CachedPage(block, page, behind)
        self._clock += 1
        node.used = self._clock
        behind.children[block] = node
        self._unused[node] = None
        return node

    def hold(self, nodes: Sequence[CachedPage]) -> None:
        """One more user of each."""
        for node in nodes:
            node.users += 1
            self._unused.pop(node, None)

    def release(self, nodes: Sequence[CachedPage]) -> None:
        """One user less. Every node is as fresh as what was built on it."""
        for node in nodes:
            node.users -= 1
            node.used = self._clock
            if not node.users and node.page >= 0:
                self._unused[node] = None
        for node in nodes[:1]:
            self._forget_root(node)

    def evict(self) -> int:
        """A page that nobody uses, for other purposes."""
        proven = sum(node.proven for node in self._unused)
        too_many = proven > _MOST_PROVEN * self._pool.num_pages
        leaves = [node for node in self._unused if not node.children]
        node = min(leaves, key=lambda node: (node.proven != too_many, node.used))
        self.stats.evictions += 1
        return self._remove(node)

    def _remove(self, node: CachedPage) -> int:
        del self._unused[node]
        parent = node.parent
        if parent is not None:
            del parent.children[node.block]
            self._forget_root(parent)
        return node.page

    def _forget_root(self, node: CachedPage) -> None:
        if node.parent is None and not node.children and not node.users:
            self._roots = {salt: root for salt, root in self._roots.items() if root is not node}
