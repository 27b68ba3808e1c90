"""Small programs around one operation: vectors in, the operation, all rows out as "logits".

Owns the wiring and the arrays of a call. Knows no arithmetic: inputs of operations with several
inputs are cut out of the vectors by float32 unit matrices, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from blocks import F32_TYPE
from numpy.typing import NDArray

from draftproof._native import KvCache, Player, Program, Weights

Rows = NDArray[np.float32]
MAX_ROWS = 160
ARENA_BYTES = 64 << 20  # reserved; only what is packed is touched


def bits(x: Rows) -> NDArray[np.uint32]:
    """Float32 as its bits: the only way these tests compare."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


class Bench:
    """A program that begins with vectors [rows, width]; players of any row and thread count."""

    def __init__(
        self,
        width: int,
        *,
        kv_heads: int = 1,
        head_dim: int = 16,
        kv_type: str = "f32",
        pages: int = 1,
        table: tuple[int, NDArray[np.uint8], int] | None = None,
    ) -> None:
        """table: (type, blocks, tokens) of the embedding; None = one token, never looked up."""
        self.width = width
        self.kv = KvCache(1, kv_heads, head_dim, kv_type, pages)
        self.weights = Weights(ARENA_BYTES)
        self.program = Program(self.weights, self.kv)
        self.x = self.program.buffer("x", width)
        type_, data, vocab = table or (F32_TYPE, np.zeros(4 * width, np.uint8), 1)
        self.program.embed(self.x, self.weight(type_, data, vocab, width))
        self._players: dict[tuple[str, int], Player] = {}
        self._max_rows = MAX_ROWS

    def float_weight(self, values: Rows) -> int:
        """A float32 linear weight [out, in]."""
        data = np.ascontiguousarray(values, np.float32)
        return self.weights.add_linear("float", F32_TYPE, data, *data.shape)

    def weight(self, ggml_type: int, data: NDArray[np.uint8], out: int, width: int) -> int:
        return self.weights.add_linear("w", ggml_type, np.ascontiguousarray(data), out, width)

    def experts(
        self, ggml_type: int, data: NDArray[np.uint8], experts: int, out: int, width: int
    ) -> int:
        """data [experts * out, bytes of a row]."""
        data = np.ascontiguousarray(data)
        return self.weights.add_experts("e", ggml_type, data, experts, out, width)

    def vector(self, values: Rows) -> int:
        return self.weights.add_vector("v", np.ascontiguousarray(values, np.float32))

    def buffer(self, width: int) -> int:
        return self.program.buffer("b", width)

    def cut(self, start: int, width: int) -> int:
        """A buffer with columns start .. start+width-1 of the vectors."""
        return self.picked(range(start, start + width))

    def picked(self, columns: Sequence[int]) -> int:
        """A buffer with these columns of the vectors (-0 becomes +0)."""
        unit = np.zeros((len(columns), self.width), np.float32)
        unit[np.arange(len(columns)), np.array(columns)] = 1.0
        out = self.buffer(len(columns))
        self.program.linear([out], self.x, [self.float_weight(unit)])
        return out

    def show(self, *buffers: tuple[int, int]) -> None:
        """Makes (buffer, width) the result; several are put side by side by unit matrices."""
        total = sum(width for _, width in buffers)
        out = self.program.buffer("shown", total, "logits")
        if len(buffers) == 1:
            self.program.select_logit_rows(out, buffers[0][0])
        else:
            before = -1
            start = 0
            for buffer, width in buffers:
                marked = self.program.buffer("marked", width, "logits")
                self.program.select_logit_rows(marked, buffer)
                place = np.zeros((total, width), np.float32)
                place[start + np.arange(width), np.arange(width)] = 1.0
                last = start + width == total
                sum_ = out if last else self.program.buffer("sum", total, "logits")
                weight = self.float_weight(place)
                self.program.linear([sum_], marked, [weight], residual=before)
                before = sum_
                start += width
        self.program.logits(out)

    def player(self, isa: str, threads: int = 1) -> Player:
        key = (isa, threads)
        if key not in self._players:
            player = Player(self.program, self._max_rows, self._max_rows, threads, isa)
            assert player.isa == isa
            assert player.threads == threads
            self._players[key] = player
        return self._players[key]


def arrays(
    rows: int,
    *,
    first: int = 0,
    pages: Sequence[int] | NDArray[np.int32] | None = None,
    segments: Sequence[tuple[int, int, int]] | None = None,
    positions: NDArray[np.int32] | None = None,
) -> dict[str, Any]:
    """The arguments of `Player.forward` for one sequence that starts at KV index `first`."""
    if segments is None:
        segments = [(rows, first, 0)]
    if pages is None:
        pages = np.zeros(max(first + n + 63 for n, first, _ in segments) // 64, np.int32)
    if positions is None:
        index = np.concatenate([np.arange(f, f + n) for n, f, _ in segments])
        positions = np.repeat(index[:, None], 3, axis=1).astype(np.int32)
    return {
        "tokens": -1 - np.arange(rows, dtype=np.int32),
        "positions": np.ascontiguousarray(positions, np.int32),
        "segments": np.array(segments, np.int32),
        "block_tables": np.asarray(pages, np.int32),
        "logit_rows": np.arange(rows, dtype=np.int32),
    }


def play(player: Player, vectors: Rows, **where: Any) -> Rows:
    """The result of every row [rows, width]; no row may be flagged."""
    out, flags = play_flagged(player, vectors, **where)
    assert not flags.any()
    return out


def play_flagged(player: Player, vectors: Rows, **where: Any) -> tuple[Rows, NDArray[np.uint8]]:
    vectors = np.ascontiguousarray(vectors, np.float32)
    flags = player.forward(**arrays(len(vectors), **where), vectors=vectors)
    return player.logits().copy(), flags


def one_by_one(player: Player, vectors: Rows, *, first: int = 0, **where: Any) -> Rows:
    """The same rows, each in a call of its own, in order."""
    alone = [
        play(player, vectors[i : i + 1], first=first + i, **where) for i in range(len(vectors))
    ]
    return np.concatenate(alone)


class Alone:
    """The reference: each row in a call of its own, computed when it is first asked for."""

    def __init__(self, player: Player, vectors: Rows, **where: Any) -> None:
        self._player = player
        self.vectors = vectors
        self._where = where
        self._rows: dict[int, Rows] = {}

    def last(self, count: int) -> Rows:
        """The results of the last `count` rows; only for operations without memory."""
        return self.at(range(len(self.vectors) - count, len(self.vectors)))

    def at(self, indices: Sequence[int] | NDArray[np.intp] | range) -> Rows:
        for i in map(int, indices):
            if i not in self._rows:
                self._rows[i] = play(self._player, self.vectors[i : i + 1], **self._where)
        return np.concatenate([self._rows[int(i)] for i in indices])


def counted(player: Player, before: dict[str, int]) -> dict[str, int]:
    """Kernel calls since `before` (Player.counters())."""
    after = player.counters()
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}
