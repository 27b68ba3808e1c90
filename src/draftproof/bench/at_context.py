"""Steps behind a context that is really there: V(m) with the attention that real steps have.

Fills the first pages of a model's KV cache with a prompt of arbitrary tokens and moves every step
behind it. The times depend on how many positions there are, not on what they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from draftproof._native import KvCache, Player

CHUNK = 256  # prompt rows per step


class PlayerAtContext:
    """A player whose position 0 is position `context` of one sequence over pages 0, 1, 2, ...

    Takes over the first pages of the cache; what they held is lost."""

    def __init__(self, player: Player, kv: KvCache, context: int, room: int) -> None:
        """Computes `context` rows. room: positions that steps may need behind it. ValueError: the
        cache is too small."""
        self._player = player
        self._context = context
        needed = -(-(context + room) // kv.page_positions)
        if needed > kv.num_pages:
            raise ValueError(f"{context + room} positions need {needed} pages of {kv.num_pages}")
        self.pages: NDArray[np.int32] = np.arange(needed, dtype=np.int32)
        for begin in range(0, context, CHUNK):
            rows = np.arange(min(CHUNK, context - begin), dtype=np.int32)
            positions = np.repeat((rows + np.int32(begin))[:, None], 3, axis=1)
            segments = np.array([[len(rows), begin, 0]], np.int32)
            last = np.array([len(rows) - 1], np.int32)
            player.forward(rows % np.int32(64), positions, segments, self.pages, last)

    def forward(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        segments: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
    ) -> NDArray[np.uint8]:
        """As Player.forward, `context` positions later."""
        shift = np.int32(self._context)
        moved = segments + np.array([0, shift, 0], np.int32)
        return self._player.forward(tokens, positions + shift, moved, block_tables, logit_rows)

    def sample(self, *arguments: Any) -> NDArray[np.int32]:
        return self._player.sample(*arguments)
