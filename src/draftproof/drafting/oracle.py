"""`oracle`: drafts a recorded plain run with chosen errors. For tests and for measuring.

It makes exactness tests mean something (a wrong token at every place) and gives any acceptance rate
on any model, random weights included.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from draftproof.drafting.drafter import NO_DRAFT, Draft


class OracleDrafter:
    """recording: the completion's token ids of a plain run of the same request. A draft never goes
    past its end. See SpeculativeConfig for acceptance, wrong_at, wrong_in_draft and seed."""

    def __init__(
        self,
        recording: Sequence[int],
        acceptance: float = 1.0,
        wrong_at: Collection[int] = (),
        wrong_in_draft: Collection[int] = (),
        seed: int = 0,
    ) -> None:
        draws = random.Random(seed)
        chosen = frozenset(wrong_at)
        # One draw per output position, whatever k: runs with different k err at the same places.
        self._drafted = tuple(
            _wrong(token) if draws.random() >= acceptance or i in chosen else token
            for i, token in enumerate(recording)
        )
        self._recording = tuple(recording)
        self._wrong_in_draft = tuple(wrong_in_draft)
        self._num_prompt = 0

    def start(self, prompt: Sequence[int]) -> None:
        self._num_prompt = len(prompt)

    def propose(self, history: Sequence[int], k: int) -> Draft:
        begin = len(history) - self._num_prompt
        tokens = list(self._drafted[begin : begin + k])
        if not tokens:
            return NO_DRAFT
        for place in self._wrong_in_draft:
            if -len(tokens) <= place < len(tokens):
                right = self._recording[begin + place % len(tokens)]
                tokens[place] = _wrong(right)
        return Draft(tuple(tokens), "oracle")

    def observe(self, draft: Draft, accepted: int) -> None:
        pass


def _wrong(token: int) -> int:
    """A token that isn't `token` and exists in every vocabulary."""
    return token - 1 if token > 0 else 1
