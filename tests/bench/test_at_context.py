"""Steps behind a context are the steps of an ordinary sequence, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from draftproof.bench.at_context import CHUNK, PlayerAtContext
from tiny_models import TinyModels


def positions(first: int, count: int) -> Any:
    return np.repeat(np.arange(first, first + count, dtype=np.int32)[:, None], 3, axis=1)


def test_bits_are_those_of_one_sequence(tiny: TinyModels, load: Callable[..., Any]) -> None:
    loaded = load(tiny.path("qwen3", "Q8_0"), threads=1)
    player, kv, context = loaded.player, loaded.kv, CHUNK + 44
    moved = PlayerAtContext(player, kv, context, 4)
    tokens = np.array([5, 6, 7, 8], np.int32)
    segments, rows = np.array([[4, 0, 0]], np.int32), np.arange(4, dtype=np.int32)
    flags = moved.forward(tokens, positions(0, 4), segments, moved.pages, rows)
    assert not flags.any()
    found = player.logits().copy()
    # The same sequence in chunks of another size, on the same pages.
    whole = np.concatenate([np.arange(CHUNK) % 64, np.arange(44) % 64, tokens]).astype(np.int32)
    for begin in range(0, len(whole), 100):
        part = whole[begin : begin + 100]
        marked = np.arange(max(0, len(part) - 4), len(part), dtype=np.int32)
        segment = np.array([[len(part), begin, 0]], np.int32)
        player.forward(part, positions(begin, len(part)), segment, moved.pages, marked)
    assert np.array_equal(found.view(np.uint32), player.logits()[-4:].view(np.uint32))


def test_too_small_a_cache(tiny: TinyModels, load: Callable[..., Any]) -> None:
    loaded = load(tiny.path("qwen3", "Q8_0"), threads=1)
    too_many = loaded.kv.num_pages * loaded.kv.page_positions
    with pytest.raises(ValueError, match="need"):
        PlayerAtContext(loaded.player, loaded.kv, too_many, 1)
