"""What may be wanted of a prompt besides an answer: how likely its tokens are, what the model makes
of it. A reader sees the marked rows of every step, in order, and keeps what it needs of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from draftproof.engine.batch import BatchRunner


class LogprobReader:
    """logprobs[i]: of token i + 1 of the prompt, given those before it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self.logprobs: list[float] = []

    def read(self, runner: BatchRunner, marked: int, start: int, rows: int) -> None:
        """Rows start .. start+rows-1 of the prompt are the marked rows from `marked` on."""
        following = self._tokens[start + 1 : start + rows + 1]
        if following:
            found = runner.logprobs(marked, following, 0)
            self.logprobs.extend(one.logprob for one in found)


class HiddenReader:
    """The hidden rows behind the output norm: their mean, or the last one. Rows are added one by
    one in float64, so that the chunks that they come in change nothing."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling
        self._count = 0
        self._sum: NDArray[np.float64] | None = None  # [width]

    def read(self, runner: BatchRunner, marked: int, start: int, rows: int) -> None:
        """As LogprobReader."""
        hidden = runner.hidden()[marked : marked + rows]
        if self._pooling == "last":
            self._sum, self._count = hidden[-1].astype(np.float64), 1
            return
        if self._sum is None:
            self._sum = np.zeros(hidden.shape[1], np.float64)
        for row in hidden:
            self._sum += row
        self._count += rows

    def values(self, normalize: bool) -> tuple[float, ...]:
        """The mean, or the last row; of length 1 if `normalize` and it isn't all zeros."""
        if self._sum is None:
            raise RuntimeError("no row has been read")
        mean: list[float] = (self._sum / self._count).tolist()
        length = math.sqrt(math.fsum(x * x for x in mean)) if normalize else 1.0
        return tuple(x / length for x in mean) if length > 0.0 else tuple(mean)
