"""The C++ side: weights, programs, KV cache, kernels and sampler. Numbers in, numbers out; no
policy.

Arrays are C-contiguous numpy arrays of exactly the dtype named. A wrong shape, dtype, index or size
raises ValueError that names the argument; memory that can't be had raises MemoryError.
Every call releases the GIL while it computes. Objects are not thread-safe: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Buffer, Iterable, Sequence  # type: ignore[attr-defined,unused-ignore]

import numpy as np
from numpy.typing import NDArray

ARITHMETIC_VERSION: int

def isa_rows() -> list[str]:
    """The rows of the dispatch table that this machine can run, slowest first: always "scalar"."""

def cpu_features() -> dict[str, bool]: ...
def probe_arithmetic() -> None:
    """Raises RuntimeError if the build fuses a*b+c or has no true fma (see fp_env.h)."""

def mix_rows(
    table: NDArray[np.float32],
    indices: NDArray[np.int32],
    weights: NDArray[np.float32],
    out: NDArray[np.float32],
    column: int = 0,
) -> None:
    """out[r, column:column+width] = sum of weights[r, i] * table[indices[r, i]], i = 0..3 in that
    order, every step rounded to float32. table [n, width], indices and weights [rows, 4]."""

def quantize(
    data: Buffer, source_type: int, ggml_type: int, rows: int, width: int, threads: int = 1
) -> NDArray[np.uint8]:
    """Rows [rows, width] of F32, F16 or BF16 as GGUF tensor data of type `ggml_type` (F32, F16,
    BF16, Q8_0, Q5_0, Q4_K, Q6_K), flat. The same bytes on every machine. ValueError: sizes that
    don't fit, a value that isn't finite."""

class Weights:
    """One arena of packed tensors. Weight ids count from 0 in the order they were added."""

    def __init__(self, arena_bytes: int, threads: int = 1) -> None: ...
    def add_linear(
        self, name: str, ggml_type: int, data: Buffer, out_features: int, in_features: int
    ) -> int:
        """Packs rows [out_features, in_features] in GGUF block format `ggml_type` into panels.
        ValueError: wrong number of bytes, unsupported type, a scale or weight that is not finite
        (names the tensor and the row)."""
    def add_experts(
        self,
        name: str,
        ggml_type: int,
        data: Buffer,
        experts: int,
        out_features: int,
        in_features: int,
    ) -> int:
        """The same for [experts, out_features, in_features], to be used by `Program.moe`."""
    def add_vector(self, name: str, data: NDArray[np.float32]) -> int:
        """A norm weight or a bias [n]."""
    @property
    def packed_bytes(self) -> int: ...
    @staticmethod
    def packed_size(ggml_type: int, out_features: int, in_features: int, experts: int = 1) -> int:
        """Bytes of the arena that `add_linear` or `add_experts` will take."""

class KvCache:
    """Keys and values in pages of `page_positions` positions (all layers of a position in one
    page). Which page belongs to whom is the caller's business."""

    page_positions: int
    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, kv_type: str, num_pages: int
    ) -> None:
        """kv_type: "f32" | "f16" | "bf16" | "q8_0". Memory is reserved, and touched when used."""
    @property
    def page_bytes(self) -> int: ...
    @property
    def num_pages(self) -> int: ...
    def digest(self, pages: NDArray[np.int32], length: int) -> str:
        """sha256 (hex) of the K and V bits of the first `length` positions behind a block table."""
    def copy_page(self, src: int, dst: int) -> None: ...

class Program:
    """A list of operations over row buffers, recorded once, played for any batch of rows.

    A buffer is [rows, width] float32. Its space is "rows" (one per batch row) or "logits" (one per
    marked row). Widths and weight shapes are checked when an operation is recorded."""

    def __init__(self, weights: Weights, kv: KvCache) -> None: ...
    def buffer(self, name: str, width: int, space: str = "rows") -> int: ...
    def embed(self, out: int, table: int) -> None:
        """out = row `token` of the linear weight `table`; rows given as vectors are copied."""
    def vectors(self, out: int, column: int = 0) -> None:
        """out = columns column.. of the row's vector; zeros for a row that has a token."""
    def add_vectors(self, x: int, column: int) -> None:
        """x += columns column.. of the row's vector; rows that have a token stay as they are."""
    def layer_norm(self, out: int, x: int, weight: int, bias: int, eps: float) -> None: ...
    def gelu(self, x: int, formula: str) -> None:
        """In place. formula: "tanh" | "erf" (exact)."""
    def join_rows(self, out: int, x: int) -> None:
        """out (space "logits") = every marked row of x behind the rows before it, as many as fit
        the width: marking rows 3, 7, ... joins fours."""
    @property
    def vector_width(self) -> int:
        """Columns of `vectors` that a forward needs; 0 = takes none."""
    def rms_norm(self, out: int, x: int, weight: int, eps: float) -> None:
        """Over the whole row; if the weight is shorter (and divides the width), per group of its
        length."""
    def linear(
        self,
        outs: Sequence[int],
        x: int,
        weights: Sequence[int],
        biases: Sequence[int] = ...,
        residual: int = -1,
    ) -> None:
        """outs[i] = x W_i^T (+ bias_i) (+ residual, if given, for the one output). Bias -1 =
        none."""
    def swiglu_linear(self, out: int, x: int, gate: int, up: int) -> None:
        """out = silu(x G^T) * (x U^T)."""
    def rope(
        self,
        xs: Sequence[int],
        head_dim: int,
        turns: NDArray[np.uint64],
        axes: NDArray[np.uint8],
        magnitude: float = 1.0,
    ) -> None:
        """Half-split rotary embedding in place on every head of every buffer. turns[j] =
        round(2^64 inv_freq_j / 2 pi), axes[j] in 0..2: which of the three positions of the row
        frequency j uses. magnitude: factor of cos and sin, before they are rounded."""
    def attention(self, out: int, q: int, k: int, v: int, layer: int, causal: bool = True) -> None:
        """Stores k and v of every row, then attention of q over the row's own sequence: up to the
        row, or (causal=False) over all positions up to the end of its segment."""
    def moe(
        self,
        out: int,
        x: int,
        router: int,
        gate: int,
        up: int,
        down: int,
        used: int,
        renormalise: bool,
        residual: int = -1,
    ) -> None:
        """out = sum of p_e * down_e(silu(gate_e x) * up_e x) over the `used` likeliest experts e,
        likeliest first (the lower index among equals), + residual. p = softmax of `router` [rows,
        experts], which is overwritten; renormalise: p divided by the sum of the chosen ones.
        gate, up, down: weights of `add_experts`."""
    def select_logit_rows(self, out: int, x: int) -> None:
        """out (space "logits") = the marked rows of x."""
    def hidden(self, x: int) -> None:
        """Declares the buffer (space "logits") that `Player.hidden` shows."""
    def logits(self, x: int) -> None:
        """Declares the buffer (space "logits") that `Player.logits` shows."""

class Player:
    """Plays a program. Owns the scratch memory and the threads."""

    def __init__(
        self, program: Program, max_rows: int, max_logit_rows: int, threads: int, isa: str = ""
    ) -> None:
        """isa: a row of the dispatch table; "" = the best of this machine."""
    isa: str
    threads: int
    @property
    def begun_ops(self) -> int:
        """Operations of the running forward that have begun; may be read from any thread."""
    @property
    def num_ops(self) -> int: ...
    def forward(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        segments: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        vectors: NDArray[np.float32] | None = None,
    ) -> NDArray[np.uint8]:
        """tokens [rows] (-1 - i: row i of `vectors`), positions [rows, 3] (rotary positions),
        segments [n, 3]: (number of rows, KV index of its first row, first entry in
        `block_tables`), in row order, together covering all rows; the rows of a segment belong to
        one sequence and stand one behind the other. logit_rows: ascending indices of the marked
        rows. Returns [rows]: 0, or 1 where a row met a value that is not finite."""
    def hidden(self) -> NDArray[np.float32]:
        """[marked rows of the last forward, width]: the buffer that the program declares with
        `Program.hidden`, a view like `logits`. ValueError: it declares none."""
    def logits(self) -> NDArray[np.float32]:
        """[marked rows of the last forward, vocab]: a view, overwritten by the next forward."""
    def values(self, buffer: int) -> NDArray[np.float32]:
        """[marked rows of the last forward, width]: a view of a buffer of the space "logits",
        overwritten by the next forward."""
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
        edits: Iterable[
            tuple[
                int,
                int,
                NDArray[np.int32],
                int,
                NDArray[np.float32],
                NDArray[np.int32],
                NDArray[np.float32],
                NDArray[np.int32],
                int,
                NDArray[np.uint32] | None,
            ]
        ] = (),
    ) -> NDArray[np.int32]:
        """One token id per marked row of the last forward, chosen among ids < vocab_size; -1 where
        the logits are not finite or nothing may be chosen. temperature 0 = greedy (lowest id wins a
        tie); top_k 0 = off; top_p 1 = off; min_p 0 = off. edits: changes to logits before that, for
        consecutive rows each: first row, rows, tokens before the last of them, how many of those
        are the prompt, penalties (repetition, frequency, presence), ids with a bias, their biases,
        banned ids, rows in which these are banned, masks [rows, words of 32 ids] or None."""
    def logprobs(
        self, rows: NDArray[np.int32], ids: NDArray[np.int32], top: int, vocab_size: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """Of ids[i] in marked row rows[i] of the last forward: its logprob [n]; then the `top`
        likeliest ids there and their logprobs, [n * top] each. NaN (and id -1) where logits are not
        finite."""
    def counters(self) -> dict[str, int]:
        """Calls per kernel since the start, e.g. {"linear.q4_k.m8": 12, "attention": 3}.

        "attention.heads_apart": attention whose query heads of a KV head went to several
        threads."""

class SuffixMatch:
    """The longest earlier occurrence of the end of a timeline."""

    @property
    def length(self) -> int:
        """Tokens shared, 0 = no match."""
    @property
    def source(self) -> int:
        """Absolute position of the token behind the newest occurrence."""
    @property
    def count(self) -> int:
        """Occurrences of that length."""

class SuffixDraft:
    """One continuation of the longest match. length, source, count: as in SuffixMatch."""

    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def length(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def support(self) -> int:
        """Votes for the first token (the most recent continuation: 1)."""
    @property
    def voters(self) -> int:
        """Occurrences that were asked (the most recent continuation: 1)."""

class SuffixIndex:
    """Finds the longest earlier occurrence of the end of a timeline; no limit on its length. The
    definitions and the bounds of work are in suffix_index.h. Worst case O(log n) places written per
    appended token (at most 64), O(log^2 n) read per question. One thread at a time."""

    bytes_per_token: int
    chunk_tokens: int
    max_tokens: int
    def __init__(self) -> None: ...
    def append(self, tokens: Sequence[int]) -> None:
        """ValueError: a token below 0; nothing is appended then."""
    def append_break(self) -> None:
        """A place that no match and no copy crosses."""
    def truncate(self, end: int) -> None:
        """As if everything from position `end` on had never been appended. IndexError: not within
        begin..end."""
    def drop_first_run(self) -> None:
        """Forgets the oldest tokens up to and including the first break."""
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def max_append_updates(self) -> int:
        """Places written by the costliest append of one token so far."""
    @property
    def max_query_reads(self) -> int:
        """Places read by the costliest question so far."""
    def longest_match(self, of: SuffixIndex | None = None) -> SuffixMatch:
        """The end of `of` (None: this index) looked up here. ValueError: `of` is another index and
        has breaks."""
    def drafts(
        self, k: int, of: SuffixIndex | None = None, max_candidates: int = 16
    ) -> tuple[SuffixDraft, SuffixDraft]:
        """At most k tokens behind the longest match: the most recent continuation, and the vote of
        the newest `max_candidates` occurrences (1..64)."""
