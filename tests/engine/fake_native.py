"""A native side in Python: a scripted model behind the contract of `_native.pyi`.

The next-token distribution is a deterministic function of all tokens so far, which the fake reads
back through the block tables as attention would: stale, missing or foreign KV changes the answer.
It mostly depends on the last two tokens, so that texts repeat and drafts are sometimes right.
Every argument is checked as strictly as the real one checks it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE_ROWS = 61


class FakeKvCache:
    """One int64 per position instead of keys and values."""

    def __init__(self, num_pages: int, page_positions: int = 4) -> None:
        self.num_pages = num_pages
        self.page_positions = page_positions
        self.page_bytes = 8 * page_positions
        self.cells: NDArray[np.int64] = np.full((num_pages, page_positions), -99, np.int64)

    def digest(self, pages: NDArray[np.int32], length: int) -> str:
        assert pages.dtype == np.int32
        assert len(pages) * self.page_positions >= length
        return hashlib.sha256(self.cells[pages].ravel()[:length].tobytes()).hexdigest()

    def copy_page(self, src: int, dst: int) -> None:
        self.cells[dst] = self.cells[src]


class FakePlayer:
    """branching: of so many contexts one leaves the path of the last two tokens (0: none does).
    fails_at(tokens): True where a row's values are not finite."""

    isa = "fake"
    threads = 1

    def __init__(
        self,
        kv: FakeKvCache,
        vocab: int,
        *,
        max_rows: int = 384,
        max_logit_rows: int = 128,
        seed: int = 0,
        branching: int = 7,
        fails_at: Callable[[list[int]], bool] | None = None,
    ) -> None:
        self.kv = kv
        self.vocab = vocab
        self.max_rows = max_rows
        self.max_logit_rows = max_logit_rows
        self.branching = branching
        self.fails_at = fails_at
        self.batches: list[int] = []  # rows of every forward
        rng = np.random.default_rng(seed)
        self._table = rng.normal(0.0, 2.0, (TABLE_ROWS, vocab)).astype(np.float32)
        self._mix = rng.integers(1, 2**31, 1 << 14, dtype=np.int64)
        self._logits: NDArray[np.float32] = np.zeros((0, vocab), np.float32)

    def forward(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        segments: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        vectors: NDArray[np.float32] | None = None,
    ) -> NDArray[np.uint8]:
        for array in (tokens, positions, segments, block_tables, logit_rows):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
        rows = len(tokens)
        assert 1 <= rows <= self.max_rows
        assert len(logit_rows) <= self.max_logit_rows
        assert positions.shape == (rows, 3)
        assert segments.shape[1] == 3
        assert segments[:, 0].sum() == rows
        assert (np.diff(logit_rows) > 0).all()
        self.batches.append(rows)
        flags = np.zeros(rows, np.uint8)
        choices = np.zeros(rows, np.int64)
        row = 0
        entries = [int(entry) for entry in segments[:, 2]] + [len(block_tables)]
        for i, (count, start, entry) in enumerate(segments.tolist()):
            pages = block_tables[entry : entries[i + 1]]
            assert len(pages) * self.kv.page_positions >= start + count
            assert ((pages >= 0) & (pages < self.kv.num_pages)).all()
            # Attention comes after all K and V of the segment are stored, and looks back only.
            for j in range(count):
                position = start + j
                assert (positions[row + j] == position).all()
                assert 0 <= tokens[row + j] < self.vocab
                page = pages[position // self.kv.page_positions]
                self.kv.cells[page, position % self.kv.page_positions] = tokens[row + j]
            seen = self.kv.cells[pages].ravel()
            for j in range(count):
                history = seen[: start + j + 1]
                choices[row + j] = self._choice(history)
                if self.fails_at is not None and self.fails_at(history.tolist()):
                    flags[row + j] = 1
            row += count
        self._logits = self._table[choices[logit_rows]]
        self._logits[flags[logit_rows] == 1] = np.nan
        return flags

    def _choice(self, history: NDArray[np.int64]) -> int:
        last = int(history[-1]) * 31 + (int(history[-2]) * 17 if len(history) > 1 else 0)
        if self.branching:
            whole = int((history * self._mix[: len(history)]).sum())
            if whole % self.branching == 0:
                return whole % TABLE_ROWS
        return last % TABLE_ROWS

    def logits(self) -> NDArray[np.float32]:
        return self._logits

    def sample(
        self,
        temperature: NDArray[np.float32],
        top_k: NDArray[np.int32],
        top_p: NDArray[np.float32],
        min_p: NDArray[np.float32],
        seed: NDArray[np.uint64],
        output_index: NDArray[np.uint32],
        choice_index: NDArray[np.uint32],
        vocab_size: int,
        edits: Sequence[Any] = (),
    ) -> NDArray[np.int32]:
        """Inverse transform of the softmax with a number made of (seed, output index)."""
        marked = len(self._logits)
        for array, dtype in (
            (temperature, np.float32),
            (top_k, np.int32),
            (top_p, np.float32),
            (min_p, np.float32),
            (seed, np.uint64),
            (output_index, np.uint32),
            (choice_index, np.uint32),
        ):
            assert array.dtype == dtype
            assert array.shape == (marked,)
        result = np.zeros(marked, np.int32)
        rows = self._logits[:, :vocab_size].copy()
        unusable = ~np.isfinite(rows).all(axis=1)
        for segment in edits:
            for i in range(segment.rows):
                _edit(rows[segment.first_row + i], segment, i)
        for i, row in enumerate(rows):
            if unusable[i] or row.max() == -np.inf:
                result[i] = -1
            elif temperature[i] == 0.0:
                result[i] = row.argmax()
            else:
                weights = np.exp((row - row.max()) / temperature[i]).cumsum()
                key = (int(seed[i]), int(output_index[i]), int(choice_index[i]))
                u = np.random.default_rng(key).random()
                result[i] = int(np.searchsorted(weights, u * weights[-1]))
        return result

    def logprobs(
        self, rows: NDArray[np.int32], ids: NDArray[np.int32], top: int, vocab_size: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        assert rows.dtype == ids.dtype == np.int32
        assert len(rows) == len(ids)
        logits = self._logits[rows, :vocab_size]
        values = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
        best = np.argsort(-logits, axis=1, kind="stable")[:, :top].astype(np.int32)
        chosen = np.take_along_axis(values, np.maximum(ids, 0)[:, None], axis=1)
        return chosen.ravel(), best.ravel(), np.take_along_axis(values, best, axis=1).ravel()

    def counters(self) -> dict[str, int]:
        return {}


def _edit(row: NDArray[np.float32], segment: Any, i: int) -> None:
    """Row i of a segment's edits, in the order of csrc/logit_edits.h."""
    for array, dtype in (
        (segment.tokens, np.int32),
        (segment.penalties, np.float32),
        (segment.bias_ids, np.int32),
        (segment.bias, np.float32),
        (segment.banned, np.int32),
    ):
        assert array.dtype == dtype
        assert array.flags.c_contiguous
    tokens = segment.tokens[: len(segment.tokens) + 1 - segment.rows + i]
    assert len(tokens) >= segment.num_prompt
    output = tokens[segment.num_prompt :].tolist()
    repetition, frequency, presence = segment.penalties
    for token in {*tokens.tolist()}:
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        if token in output:
            row[token] -= frequency * np.float32(output.count(token))
            row[token] -= presence
    row[segment.bias_ids] += segment.bias
    if segment.masks is not None:
        assert segment.masks.shape == (segment.rows, -(-len(row) // 32))
        allowed = np.unpackbits(segment.masks[i].view(np.uint8), bitorder="little")[: len(row)]
        row[allowed == 0] = -np.inf
    if i < segment.banned_rows:
        kept = row.copy()
        row[segment.banned[segment.banned < len(row)]] = -np.inf
        if row.max() == -np.inf:
            row[:] = kept


class NullPlayer:
    """Answers at once with token 1: what remains is the engine's own time."""

    isa = "null"
    threads = 1

    def __init__(self, max_rows: int = 256) -> None:
        self._flags = np.zeros(max_rows, np.uint8)
        self._targets = np.ones(max_rows, np.int32)

    def forward(self, tokens: NDArray[np.int32], *_: Any) -> NDArray[np.uint8]:
        return self._flags[: len(tokens)]

    def sample(self, temperature: NDArray[np.float32], *_: Any) -> NDArray[np.int32]:
        return self._targets[: len(temperature)]
