"""What the engine has done since the model was loaded: sums, for people who watch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftproof.engine.scheduler import Segment
    from draftproof.request import Request

SUMMED = ("tries", "drafted", "accepted", "rejected", "discarded", "replay_mismatches", "steps")


@dataclass
class Totals:
    """The fields are those of outputs.EngineMetrics."""

    requests_finished: int = 0
    requests_cancelled: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    rows: int = 0
    step_seconds: float = 0.0
    forward_seconds: float = 0.0
    speculation: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0))
    accepted_per_position: list[int] = field(default_factory=list)

    def count_step(self, segments: Sequence[Segment], seconds: float) -> None:
        """One native call of `seconds`."""
        self.steps += 1
        self.forward_seconds += seconds
        for segment in segments:
            self.rows += len(segment.tokens)
            if segment.kind == "prefill":
                self.prompt_tokens += len(segment.tokens)

    def count_request(self, request: Request) -> None:
        """A request that leaves."""
        if request.cancelled:
            self.requests_cancelled += 1
        else:
            self.requests_finished += 1
        for name in SUMMED:
            self.speculation[name] += getattr(request.stats, name)
        accepted = request.stats.accepted_per_position
        # A new list: somebody may be reading the old one.
        self.accepted_per_position = [
            a + b for a, b in zip_longest(self.accepted_per_position, accepted, fillvalue=0)
        ]
