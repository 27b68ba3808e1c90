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


class ContextLengthError(InvalidRequestError):
    """The prompt doesn't fit into the context; the message has both numbers."""


class OutOfMemoryError(DraftproofError):
    """The model or its KV cache doesn't fit into the memory of this machine."""


class NumericError(DraftproofError):
    """A value that is not finite appeared while computing a request."""
