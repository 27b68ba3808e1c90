"""The engine: requests in, tokens out, one step at a time."""

from draftproof.engine.engine import Engine
from draftproof.engine.logits_trail import LogitsTrail

__all__ = ["Engine", "LogitsTrail"]
