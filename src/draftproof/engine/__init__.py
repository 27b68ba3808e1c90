"""The engine: requests in, tokens out, one step at a time; and the thread that plays it."""

from draftproof.engine.engine import Engine
from draftproof.engine.front import Arrival, EngineThread, Inbox, Mailbox, cancel, received
from draftproof.engine.logits_trail import LogitsTrail

__all__ = [
    "Arrival",
    "Engine",
    "EngineThread",
    "Inbox",
    "LogitsTrail",
    "Mailbox",
    "cancel",
    "received",
]
