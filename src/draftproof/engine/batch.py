"""Segments -> the arrays of one native call -> target tokens. Owns the arrays; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftproof.engine.logit_edits import SegmentEdits, narrow
from draftproof.outputs import TokenLogprob

if TYPE_CHECKING:
    from draftproof._native import Player
    from draftproof.engine.scheduler import Segment
    from draftproof.vision.prompt import VisionPrompt

FAILED = -1  # the sampler's word for a row without finite logits


class BatchRunner:
    """All arrays are allocated once, for the largest step, and passed as views."""

    def __init__(
        self, player: Player, max_rows: int, max_logit_rows: int, context: int, vocab_size: int
    ) -> None:
        self._player = player
        self._vocab_size = vocab_size
        self._tokens: NDArray[np.int32] = np.zeros(max_rows, np.int32)  # [rows]
        self._positions: NDArray[np.int32] = np.zeros((max_rows, 3), np.int32)  # [rows, 3 axes]
        self._segments: NDArray[np.int32] = np.zeros((max_rows, 3), np.int32)  # [segments, 3]
        self._logit_rows: NDArray[np.int32] = np.zeros(max_logit_rows, np.int32)  # [marked]
        # One value per marked row, for the sampler.
        self._temperature: NDArray[np.float32] = np.zeros(max_logit_rows, np.float32)
        self._top_k: NDArray[np.int32] = np.zeros(max_logit_rows, np.int32)
        self._top_p: NDArray[np.float32] = np.ones(max_logit_rows, np.float32)
        self._min_p: NDArray[np.float32] = np.zeros(max_logit_rows, np.float32)
        self._seed: NDArray[np.uint64] = np.zeros(max_logit_rows, np.uint64)
        self._output_index: NDArray[np.uint32] = np.zeros(max_logit_rows, np.uint32)
        self._choice_index: NDArray[np.uint32] = np.zeros(max_logit_rows, np.uint32)
        self._edits: list[SegmentEdits] = []
        # Text has the same position on all three rotary axes.
        count = np.arange(max(context, max_rows), dtype=np.int32)
        self._text_positions: NDArray[np.int32] = np.repeat(count[:, None], 3, axis=1)

    def run(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Plays all rows; returns the target tokens of every segment [its num_logits].

        A target is -1 where the row's logits can't be used. A segment without marked rows yields
        [], or [-1] if one of its rows failed: a broken prompt row spoils all that follow.
        """
        row = marked = entry = 0
        self._edits.clear()
        features: list[NDArray[np.float32]] = []
        for i, segment in enumerate(segments):
            rows, marks = len(segment.tokens), segment.num_logits
            self._tokens[row : row + rows] = segment.tokens
            if segment.request.vision is None:
                self._positions[row : row + rows] = self._text_positions[
                    segment.start : segment.start + rows
                ]
            else:
                self._place(segment, slice(row, row + rows), segment.request.vision, features)
            self._segments[i] = (rows, segment.start, entry)
            row += rows
            entry += len(segment.session.pages)
            if marks:
                self._mark(segment, slice(marked, marked + marks), row - marks)
                marked += marks
        flags = self._player.forward(
            self._tokens[:row],
            self._positions[:row],
            self._segments[: len(segments)],
            _block_tables(segments),
            self._logit_rows[:marked],
            *_joined(features),
        )
        targets = self._sample(marked) if marked else []
        failed = flags.tolist() if flags.any() else None
        return _split(segments, targets, failed)

    def _place(
        self,
        segment: Segment,
        span: slice,
        vision: VisionPrompt,
        features: list[NDArray[np.float32]],
    ) -> None:
        """Positions of a segment whose prompt has pictures, and the features that it needs."""
        start, rows = segment.start, len(segment.tokens)
        prompt_rows = min(max(len(vision.positions) - start, 0), rows)
        positions = self._positions[span]
        positions[:prompt_rows] = vision.positions[start : start + prompt_rows]
        later = np.arange(start + prompt_rows, start + rows, dtype=np.int32) + vision.delta
        positions[prompt_rows:] = later[:, None]
        feature_of = vision.feature_of[start : start + prompt_rows]
        shown = feature_of[feature_of >= 0]
        if len(shown):
            # Features stand in the order of their rows: those of a segment are a run.
            before = sum(len(part) for part in features)
            features.append(vision.features[shown[0] : shown[-1] + 1])
            tokens = self._tokens[span][:prompt_rows]
            tokens[feature_of >= 0] = -1 - before - (shown - shown[0])

    def logits(self) -> NDArray[np.float32]:
        """[marked rows of the last run, vocab]: a view, overwritten by the next run."""
        return self._player.logits()

    def hidden(self) -> NDArray[np.float32]:
        """[marked rows of the last run, width] behind the output norm: a view, as of `logits`."""
        return self._player.hidden()

    def logprobs(self, first_row: int, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
        """Of tokens[i] in marked row first_row + i of the last run, with the `top` likeliest."""
        rows = self._text_positions[first_row : first_row + len(tokens), 0]
        chosen, ids, values = self._player.logprobs(
            np.ascontiguousarray(rows),
            np.array(tokens, np.int32),
            min(top, self._vocab_size),
            self._vocab_size,
        )
        width = ids.size // len(tokens)
        id_list, value_list = ids.tolist(), values.tolist()
        found = []
        for i, (token, logprob) in enumerate(zip(tokens, chosen.tolist(), strict=True)):
            span = slice(i * width, (i + 1) * width)
            best = tuple(zip(id_list[span], value_list[span], strict=True))
            found.append(TokenLogprob(token, logprob, best))
        return found

    def _mark(self, segment: Segment, span: slice, first_row: int) -> None:
        request = segment.request
        sampling = request.sampling
        count = segment.num_logits
        self._logit_rows[span] = self._text_positions[first_row : first_row + count, 0]
        self._output_index[span] = self._text_positions[
            request.num_output : request.num_output + count, 0
        ]
        self._temperature[span] = sampling.temperature
        self._top_k[span] = sampling.top_k
        self._top_p[span] = narrow(sampling.top_p)
        self._min_p[span] = narrow(sampling.min_p)
        self._seed[span] = request.seed
        self._choice_index[span] = request.choice_index
        if request.edits is not None:
            self._edits.append(request.edits.rows_of(segment, span.start))

    def _sample(self, marked: int) -> list[int]:
        targets: list[int] = self._player.sample(
            self._temperature[:marked],
            self._top_k[:marked],
            self._top_p[:marked],
            self._min_p[:marked],
            self._seed[:marked],
            self._output_index[:marked],
            self._choice_index[:marked],
            self._vocab_size,
            self._edits,
        ).tolist()
        return targets


def _joined(parts: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.float32], ...]:
    """The argument `vectors` of a forward, if there is any."""
    if len(parts) < 2:
        return tuple(parts)
    return (np.concatenate(parts),)


def _block_tables(segments: Sequence[Segment]) -> NDArray[np.int32]:
    if len(segments) == 1:
        return segments[0].session.pages
    return np.concatenate([segment.session.pages for segment in segments])


def _split(
    segments: Sequence[Segment], targets: list[int], failed: list[int] | None
) -> list[list[int]]:
    """Targets per segment; `failed` [rows] holds the flags of the forward if any is set."""
    split: list[list[int]] = []
    row = marked = 0
    for segment in segments:
        rows, marks = len(segment.tokens), segment.num_logits
        own = targets[marked : marked + marks]
        if failed is not None:
            flags = failed[row : row + rows]
            if segment.kind == "prefill":
                own = [FAILED] if any(flags) else own
            else:
                own = [FAILED if bad else t for t, bad in zip(own, flags, strict=True)]
        split.append(own)
        row += rows
        marked += marks
    return split
