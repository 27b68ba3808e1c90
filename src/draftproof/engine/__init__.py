"""The engine: requests in, tokens out, one step at a time."""

from draftproof.engine.engine import Engine

__all__ = ["Engine"]
