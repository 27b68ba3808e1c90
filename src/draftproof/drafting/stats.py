"""Counts of one request's speculation, and the numbers made of them.

One source for the log line, `--json`, Python and the server. How a try is counted: its step emits
`emitted` tokens, of which the last one is the step's own, as in plain decoding (the bonus token, or
the token at which the answer was cut); the others are accepted drafts. So accepted drafts are those
whose KV rows stay, and rolled_back is the number of KV rows that were taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.config import SpeculativeConfig

FORWARD_KINDS = ("prefill", "decode", "verify", "probe", "replay")
PLAIN_REASONS = (
    "disabled",
    "no_match",
    "not_paying",
    "measuring",  # the plain step's own time has to be looked at again
    "context_end",
    "batch_full",
)


@dataclass(slots=True)
class SpeculationStats:
    """tries: verify steps with a draft token. drafted = accepted + rejected + discarded.
    steps: emitting steps (a try in mode replay counts once); completion tokens = accepted + steps.
    accepted_per_position[i]: tries that accepted draft token i; rejected_per_position[i]: tries
    whose first disagreement was draft token i. plain_steps: steps without a draft, by reason.
    by_source: tries, drafted and accepted of each source that drafted. shared_forwards: forwards
    in which rows of other requests took part.
    k: draft tokens of a step at most; controlled: a controller chooses how many of them.

    The ledger, in plain steps: modelled_plain = tokens of all steps after the prompt's, as plain
    decoding takes one step for each; modelled = V(m) of their steps + the time spent on drafting.
    plain_seconds: a plain step, as last estimated. drafting_seconds includes reading the prompt.
    """

    drafter: str = "off"
    k: int = 0
    controlled: bool = False
    verify: str = "exact"
    tries: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    discarded: int = 0
    replay_mismatches: int = 0
    steps: int = 0
    forwards: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FORWARD_KINDS, 0))
    plain_steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLAIN_REASONS, 0))
    accepted_per_position: list[int] = field(default_factory=list)
    rejected_per_position: list[int] = field(default_factory=list)
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)
    shared_forwards: int = 0
    drafting_seconds: float = 0.0
    plain_seconds: float = 0.0
    modelled_plain: float = 0.0
    modelled: float = 0.0

    @classmethod
    def of(cls, config: SpeculativeConfig) -> SpeculationStats:
        k = config.largest_draft
        return cls(
            drafter=config.drafter,
            k=k,
            controlled=config.is_controlled,
            verify=config.verify,
            accepted_per_position=[0] * k,
            rejected_per_position=[0] * k,
        )

    def count_plain_step(self, emitted: int) -> None:
        self.steps += emitted > 0

    def count_try(self, drafted: int, agreed: int, emitted: int, source: str = "none") -> int:
        """One settled try; returns the accepted count.

        drafted: draft tokens. agreed: how many of them the sampler produced. emitted: tokens handed
        on, agreed + 1 unless the answer was cut. source: who drafted.
        """
        accepted = max(0, emitted - 1)
        own = self.by_source.setdefault(source, {"tries": 0, "drafted": 0, "accepted": 0})
        own["tries"] += 1
        own["drafted"] += drafted
        own["accepted"] += accepted
        self.tries += 1
        self.steps += emitted > 0
        self.drafted += drafted
        self.accepted += accepted
        for i in range(accepted):
            self.accepted_per_position[i] += 1
        if emitted <= agreed:
            self.discarded += drafted - accepted
        else:
            self.rejected += drafted - accepted
            if agreed < drafted:
                self.rejected_per_position[agreed] += 1
        return accepted

    @property
    def rolled_back(self) -> int:
        return self.rejected + self.discarded

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted, 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per try, bonus included: 1 + accepted / tries, 0 without tries."""
        return 1.0 + self.accepted / self.tries if self.tries else 0.0

    @property
    def time_saved_ms(self) -> float:
        """Modelled: plain decoding's time minus this one's; below 0 where speculation cost time."""
        return 1000 * self.plain_seconds * (self.modelled_plain - self.modelled)

    @property
    def modelled_speedup(self) -> float:
        """Modelled plain time / modelled time, 1 before the first step."""
        return self.modelled_plain / self.modelled if self.modelled else 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "k": self.k,
            "verify": self.verify,
            "tries": self.tries,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "discarded": self.discarded,
            "rolled_back": self.rolled_back,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "replay_mismatches": self.replay_mismatches,
            "forwards": dict(self.forwards),
            "controlled": self.controlled,
            "by_source": {source: dict(counts) for source, counts in self.by_source.items()},
            "accepted_per_position": _trimmed(self.accepted_per_position),
            "plain_steps": dict(self.plain_steps),
            "drafting_ms": 1000 * self.drafting_seconds,
            "time_saved_ms": self.time_saved_ms,
            "modelled_speedup": self.modelled_speedup,
            "shared_forwards": self.shared_forwards,
        }

    def line(self) -> str:
        """For people; the percentage is rounded down."""
        percent = 100 * self.accepted // self.drafted if self.drafted else 0
        return (
            f"[SPEC] tries={self.tries} hits={self.accepted} kv_rolls={self.rolled_back} "
            f"({percent}% draft hit)"
        )


def _trimmed(counts: list[int]) -> list[int]:
    """Without the zeros at the end."""
    used = max((i + 1 for i, count in enumerate(counts) if count), default=0)
    return counts[:used]
