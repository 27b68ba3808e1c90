"""Draftproof's logits for every position of a prompt, straight from the player.

Owns the building of the arrays of one `Player.forward`; the engine's own scheduling isn't involved,
so a mistake here and a mistake there can't hide each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def all_logits(loaded: Any, token_ids: NDArray[np.int32], chunk: int) -> NDArray[np.float32]:
    """float32 [n, vocab] of one sequence [n] at positions 0..n-1, prefilled `chunk` rows at a time.

    Uses the pages 0, 1, ... of the model's KV cache: whatever lay there is overwritten."""
    page = loaded.kv.page_positions
    table = np.arange(-(-len(token_ids) // page), dtype=np.int32)
    assert len(table) <= loaded.kv.num_pages, "the KV cache of this model is too small for the test"
    parts = []
    for start in range(0, len(token_ids), chunk):
        tokens = np.ascontiguousarray(token_ids[start : start + chunk], dtype=np.int32)
        rows = len(tokens)
        positions = np.repeat(np.arange(start, start + rows, dtype=np.int32)[:, None], 3, axis=1)
        bad = loaded.player.forward(
            tokens,
            np.ascontiguousarray(positions),
            np.array([[rows, start, 0]], dtype=np.int32),
            table,
            np.arange(rows, dtype=np.int32),
        )
        assert not bad.any(), f"values that are not finite in rows {start + np.flatnonzero(bad)}"
        parts.append(loaded.player.logits().copy())
    return np.concatenate(parts)
