"""Every error a user can cause, each with what is wrong, where, and what to do."""

from __future__ import annotations


class DraftproofError(Exception):
    """Base of all errors that Draftproof raises on purpose. `str(error)` is one line for people."""


class ModelFileError(DraftproofError):
    """A model file that is broken, incomplete, or of a kind that can't be loaded."""


class ModelNotFoundError(DraftproofError):
    """No such file, no such name in the catalogue, or it can't be fetched."""


class InvalidRequestError(DraftproofError):
    """A parameter out of range or a contradiction; the message names the parameter."""


class GrammarError(InvalidRequestError):
    """A grammar (JSON schema, regex, Lark) that can't be compiled or followed within its limits."""


class ContextLengthError(InvalidRequestError):
    """The prompt doesn't fit into the context; the message has both numbers, in tokens."""

    def __init__(self, message: str, prompt_tokens: int = 0, context: int = 0) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.context = context


class OutOfMemoryError(DraftproofError):
    """The model or its KV cache doesn't fit into the memory of this machine."""


class QueueFullError(DraftproofError):
    """Too many requests wait already. retry_after: seconds after which to try again."""

    def __init__(self, retry_after: float, waiting: int) -> None:
        super().__init__(
            f"the queue is full ({waiting} requests wait): try again in {retry_after:.0f} seconds"
        )
        self.retry_after = retry_after


class EngineStoppedError(DraftproofError):
    """The engine was closed, or failed, while this request waited for its answer."""


class NumericError(DraftproofError):
    """A value that is not finite appeared while computing a request."""
