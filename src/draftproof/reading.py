"""Scores and embeddings: prompts that are played for the sake of their rows, not of an answer.

They share the engine's steps with everything else, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event

from draftproof.config import SpeculativeConfig, check_choice
from draftproof.engine import Engine, Inbox, Mailbox, cancel
from draftproof.engine.row_readers import HiddenReader, LogprobReader
from draftproof.errors import InvalidRequestError, NumericError
from draftproof.outputs import Embedding, Score
from draftproof.request import Request, RowReader
from draftproof.sampling import SamplingParams
from draftproof.vision.prompt import ReadPrompt

Start = Callable[[Sequence[Request], Mailbox], None]
"""Puts requests into the queue."""

POOLINGS = ("mean", "last")
_AT_ONCE = 32  # texts in the queue


def score(ids: Sequence[int], engine: Engine, start: Start) -> Score:
    """Raises as a request does, and NumericError."""
    reader = LogprobReader(ids)
    _play([(ids, reader)], engine, start)
    return Score(tuple(ids), tuple(reader.logprobs))


def embed(
    texts: Sequence[Sequence[int]],
    pooling: str,
    normalize: bool,
    engine: Engine,
    start: Start,
    given_up: Event | None = None,
) -> list[Embedding]:
    """One per text, in order. Raises as a request does, NumericError, and CancelledError soon
    after `given_up` is set."""
    check_choice("pooling", pooling, POOLINGS)
    if not isinstance(normalize, bool):
        raise InvalidRequestError(f"normalize must be true or false, got {normalize!r}")
    readers = [HiddenReader(pooling) for _ in texts]
    for some in _in_parts(list(zip(texts, readers, strict=True))):
        _play(some, engine, start, given_up)
    return [
        Embedding(reader.values(normalize), len(ids))
        for ids, reader in zip(texts, readers, strict=True)
    ]


def _play(
    wanted: Sequence[tuple[Sequence[int], RowReader]],
    engine: Engine,
    start: Start,
    given_up: Event | None = None,
) -> None:
    """Returns when all have been read."""
    if any(isinstance(ids, ReadPrompt) and ids.pictures for ids, _ in wanted):
        raise InvalidRequestError("prompt has pictures: scores and embeddings are of text")
    off = SpeculativeConfig("off")
    requests = [Request(ids, SamplingParams(), off, reader=reader) for ids, reader in wanted]
    for request in requests:
        engine.check(request)
    arrivals = Inbox(given_up)
    try:
        start(requests, arrivals.put)
        while any(request.finish_reason is None for request in requests):
            arrivals.get()
    finally:
        cancel(requests)
    if any(request.finish_reason == "numeric_error" for request in requests):
        raise NumericError("a value that is not finite appeared while the prompt was computed")


def _in_parts(
    wanted: list[tuple[Sequence[int], HiddenReader]],
) -> Iterator[list[tuple[Sequence[int], HiddenReader]]]:
    for i in range(0, len(wanted), _AT_ONCE):
        yield wanted[i : i + _AT_ONCE]
