"""Records a model's operations by name: buffers are made when first written, weights found by
tensor name. The native Program checks every shape. Knows no maths and no model family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof._native import KvCache, Program, Weights


class ProgramBuilder:
    """weights: tensor name -> (weight id, width of its output). A vector's width is its length.

    Buffers are named by the model's file; a name means one buffer [rows, width] for the whole
    program, so layers share them.
    """

    def __init__(
        self,
        weights: Weights,
        kv: KvCache,
        ids: Mapping[str, tuple[int, int]],
        *,
        hidden_size: int,
        head_dim: int,
        eps: float,
        turns: NDArray[np.uint64],
        magnitude: float = 1.0,
        axes: NDArray[np.uint8] | None = None,
    ) -> None:
        """magnitude: of cosine and sine. axes [len(turns)]: which of a row's three positions each
        frequency turns by; None: the first, as text has it."""
        self.program = Program(weights, kv)
        self._ids = ids
        self._hidden_size = hidden_size
        self._head_dim = head_dim
        self._eps = eps
        self._turns = turns
        self._magnitude = magnitude
        self._axes = np.zeros(len(turns), np.uint8) if axes is None else axes
        self._buffers: dict[str, tuple[int, int]] = {}

    def embed(self, out: str, table: str) -> None:
        """out [rows, hidden] = the embedding of each row's token."""
        self.program.embed(self._written(out, self._hidden_size), self._ids[table][0])

    def vectors(self, out: str, width: int, *, column: int = 0) -> None:
        """out [rows, width] = columns column.. of each row's vector."""
        self.program.vectors(self._written(out, width), column)

    def add_vectors(self, x: str, *, column: int) -> None:
        """x += columns column.. of the row's vector, in rows that have one."""
        self.program.add_vectors(self._buffers[x][0], column)

    def layer_norm(self, out: str, x: str, name: str) -> None:
        """By the vectors `name`.weight and `name`.bias."""
        source, width = self._buffers[x]
        space = "logits" if x.startswith("last") else "rows"
        self.program.layer_norm(
            self._written(out, width, space),
            source,
            self._ids[name + ".weight"][0],
            self._ids[name + ".bias"][0],
            self._eps,
        )

    def gelu(self, x: str, formula: str) -> None:
        """In place; formula: "tanh" or "erf"."""
        self.program.gelu(self._buffers[x][0], formula)

    def join_rows(self, out: str, x: str, count: int) -> None:
        """out = `count` rows of x side by side, ending at each marked row; a name like last*."""
        source, width = self._buffers[x]
        self.program.join_rows(self._written(out, count * width, "logits"), source)

    def buffer(self, name: str) -> int:
        """The number of a buffer, for `Player.values`."""
        return self._buffers[name][0]

    def rms_norm(self, out: str, x: str, weight: str) -> None:
        """Over whole rows, or over each head where the weight has head_dim values."""
        source, width = self._buffers[x]
        space = "logits" if x.startswith("last") else "rows"
        self.program.rms_norm(
            self._written(out, width, space), source, self._ids[weight][0], self._eps
        )

    def linear(
        self,
        outs: Sequence[str],
        x: str,
        weights: Sequence[str],
        *,
        biases: Sequence[str] = (),
        residual: str | None = None,
    ) -> None:
        """outs[i] = x W_i^T (+ bias_i) (+ residual); the input is quantized once for all of
        them."""
        space = "logits" if x.startswith("last") else "rows"
        self.program.linear(
            [
                self._written(out, self._ids[w][1], space)
                for out, w in zip(outs, weights, strict=True)
            ],
            self._buffers[x][0],
            [self._ids[w][0] for w in weights],
            [self._ids[b][0] for b in biases],
            -1 if residual is None else self._buffers[residual][0],
        )

    def swiglu_linear(self, out: str, x: str, gate: str, up: str) -> None:
        """out = silu(x G^T) * (x U^T)."""
        self.program.swiglu_linear(
            self._written(out, self._ids[gate][1]),
            self._buffers[x][0],
            self._ids[gate][0],
            self._ids[up][0],
        )

    def moe(
        self,
        out: str,
        x: str,
        router: str,
        experts: Sequence[str],
        *,
        used: int,
        renormalise: bool,
        residual: str,
    ) -> None:
        """out = residual + the sum of p_e * (silu(x G_e^T) * (x U_e^T)) D_e^T over the `used`
        likeliest experts e, p = softmax(router). experts: the weights G, U, D of all experts.
        renormalise: p divided by the sum of the chosen ones."""
        gate, up, down = (self._ids[name][0] for name in experts)
        self.program.moe(
            self._written(out, self._ids[experts[2]][1]),
            self._buffers[x][0],
            self._buffers[router][0],
            gate,
            up,
            down,
            used,
            renormalise,
            self._buffers[residual][0],
        )

    def rope(self, xs: Sequence[str]) -> None:
        """Rotates every head of the buffers by the row's position."""
        self.program.rope(
            [self._buffers[x][0] for x in xs],
            self._head_dim,
            self._turns,
            self._axes,
            self._magnitude,
        )

    def attention(
        self, out: str, q: str, k: str, v: str, *, layer: int, causal: bool = True
    ) -> None:
        """Stores k and v, then attention of q over the row's sequence up to the row, or over all of
        its segment."""
        query, width = self._buffers[q]
        self.program.attention(
            self._written(out, width),
            query,
            self._buffers[k][0],
            self._buffers[v][0],
            layer,
            causal,
        )

    def select_logit_rows(self, out: str, x: str) -> None:
        """From here on only the rows whose logits are wanted; their buffers are called last*."""
        source, width = self._buffers[x]
        self.program.select_logit_rows(self._written(out, width, "logits"), source)

    def hidden(self, x: str) -> None:
        """What the model says of a row, before the LM head: for embeddings."""
        self.program.hidden(self._buffers[x][0])

    def logits(self, x: str) -> None:
        self.program.logits(self._buffers[x][0])

    def _written(self, name: str, width: int, space: str = "rows") -> int:
        if name not in self._buffers:
            self._buffers[name] = (self.program.buffer(name, width, space), width)
        return self._buffers[name][0]
