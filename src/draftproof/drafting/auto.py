"""`auto`: asks several drafters and leaves the choice to who knows their record.

Owns the list of drafters. The choice by learned acceptance and cost is the controller's.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.acceptance import Acceptance
from draftproof.drafting.drafter import NO_DRAFT, Draft, Drafter


class AutoDrafter:
    """drafters: in order of preference among equals."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)
        self._maker: dict[str, Drafter] = {}  # by source, of the last question
        self._prior = Acceptance()

    def start(self, prompt: Sequence[int]) -> None:
        for drafter in self.drafters:
            drafter.start(prompt)

    def candidates(self, history: Sequence[int], k: int) -> list[Draft]:
        """One draft of each drafter that has one."""
        found: list[Draft] = []
        for drafter in self.drafters:
            draft = drafter.propose(history, k)
            if draft.tokens:
                self._maker[draft.source] = drafter
                found.append(draft)
        return found

    def propose(self, history: Sequence[int], k: int) -> Draft:
        """The candidate that promises most before anything is learned."""
        found = self.candidates(history, k)
        return max(found, key=lambda d: sum(self._prior.survival(d)), default=NO_DRAFT)

    def observe(self, draft: Draft, accepted: int) -> None:
        maker = self._maker.get(draft.source)
        if maker is not None:
            maker.observe(draft, accepted)
