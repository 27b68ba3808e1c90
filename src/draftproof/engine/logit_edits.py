"""What one request changes in its logits, as the arrays of a native call: penalties, bias, what a
grammar allows, tokens that may not come yet.

Owns those arrays; the arithmetic is in csrc/logit_edits.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from draftproof.engine.scheduler import Segment
    from draftproof.request import Request


class SegmentEdits(NamedTuple):
    """Edits of `rows` consecutive marked rows from first_row on, for `Player.sample`.

    tokens [.. + rows - 1]: those before the last of the rows, the first num_prompt of them being
    the prompt. penalties: repetition, frequency, presence. banned: ids that can't be chosen in the
    first banned_rows rows. masks [rows, words]: bit id % 32 of word id // 32 allows an id.
    """

    first_row: int
    rows: int
    tokens: NDArray[np.int32]
    num_prompt: int
    penalties: NDArray[np.float32]
    bias_ids: NDArray[np.int32]
    bias: NDArray[np.float32]
    banned: NDArray[np.int32]
    banned_rows: int
    masks: NDArray[np.uint32] | None


class LogitEdits:
    """One per request that edits anything; see `of`."""

    def __init__(self, request: Request) -> None:
        sampling = request.sampling
        self._request = request
        self._penalties: NDArray[np.float32] = np.array(
            [
                sampling.repetition_penalty,
                narrow(sampling.frequency_penalty),
                narrow(sampling.presence_penalty),
            ],
            np.float32,
        )
        pairs = sampling.bias_pairs
        self._bias_ids: NDArray[np.int32] = np.array([token for token, _ in pairs], np.int32)
        self._bias: NDArray[np.float32] = np.array([narrow(b) for _, b in pairs], np.float32)
        self._banned: NDArray[np.int32] = np.array(sorted(request.stop_ids), np.int32)
        # Filled as the request goes on; what lies before `_known` is committed.
        size = request.capacity if sampling.penalizes else 0
        self._tokens: NDArray[np.int32] = np.zeros(size, np.int32)
        self._known = 0

    @classmethod
    def of(cls, request: Request) -> LogitEdits | None:
        """None if the request takes its logits as they are."""
        sampling = request.sampling
        edits = sampling.penalizes or sampling.logit_bias or sampling.min_tokens or request.grammar
        return cls(request) if edits else None

    def rows_of(self, segment: Segment, first_row: int) -> SegmentEdits:
        """For the segment's marked rows, which begin at marked row first_row of the batch."""
        request = self._request
        rows = segment.num_logits
        num_prompt, tokens = request.num_prompt, self._before(segment)
        if not len(tokens):  # nobody looks at them
            num_prompt, tokens = 0, np.zeros(rows - 1, np.int32)
        masks = request.grammar.masks(segment.draft.tokens) if request.grammar else None
        banned_rows = min(rows, max(0, request.sampling.min_tokens - request.num_output))
        return SegmentEdits(
            first_row,
            rows,
            tokens,
            num_prompt,
            self._penalties,
            self._bias_ids,
            self._bias,
            self._banned,
            banned_rows,
            masks,
        )

    def _before(self, segment: Segment) -> NDArray[np.int32]:
        """All tokens up to the end of the segment, draft tokens included."""
        if not len(self._tokens):
            return self._tokens
        start, end = segment.start, segment.start + len(segment.tokens)
        if self._known < start:
            self._tokens[self._known : start] = self._request.tokens[self._known : start]
            self._known = start
        self._tokens[start:end] = segment.tokens
        return self._tokens[:end]


def narrow(value: float) -> float:
    """Values that would be float32 denormals count as 0: whether numpy keeps or flushes them would
    depend on the caller's floating-point environment."""
    return value if abs(value) >= 2.0**-126 else 0.0
