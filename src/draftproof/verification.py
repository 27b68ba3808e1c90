"""Draft tokens against target tokens: what is accepted. Pure; no model, no KV.

A draft token is accepted if and only if the sampler produced it. Because a row's arithmetic doesn't
depend on the rows beside it, the batched targets are the targets of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.drafting import Draft
from draftproof.outputs import Origin


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """accepted: the agreeing prefix of the draft. bonus: the sampler's token after it, -1 where the
    logits were not finite."""

    accepted: tuple[int, ...]
    bonus: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """What plain decoding would have produced, in order."""
        return (*self.accepted, self.bonus)


def verify(draft: Sequence[int], targets: Sequence[int]) -> VerifyResult:
    """draft [k], targets [k + 1]: targets[i] is what the sampler chose after draft[:i].

    ValueError if the lengths don't fit.
    """
    if len(targets) != len(draft) + 1:
        raise ValueError(f"{len(draft)} draft tokens need {len(draft) + 1} targets")
    agreed = 0
    while agreed < len(draft) and draft[agreed] == targets[agreed]:
        agreed += 1
    return VerifyResult(tuple(draft[:agreed]), targets[agreed])


def origins(draft: Draft, accepted: int, step: int) -> tuple[Origin, ...]:
    """Of the accepted tokens of a draft and of the step's own token behind them."""
    own = Origin("bonus" if draft.tokens else "plain", step, draft.tokens[accepted:])
    return (*(Origin(draft.source, step) for _ in range(accepted)), own)


@dataclass(slots=True)
class Replay:
    """The rest of a probe in mode `replay`: its tokens are decoded again, one row per step.

    draft: what was probed. expected: accepted tokens and bonus, as the probe saw them.
    """

    draft: Draft
    expected: tuple[int, ...]
    done: int = 0

    def check(self, target: int) -> bool:
        """Counts one replayed row; False if it disagrees with the probe: then the replay holds."""
        agrees = target == self.expected[self.done]
        self.done += 1
        return agrees

    def origin(self, step: int) -> Origin:
        """Of the next token."""
        return origins(self.draft, len(self.expected) - 1, step)[self.done]

    @property
    def is_complete(self) -> bool:
        return self.done == len(self.expected)
