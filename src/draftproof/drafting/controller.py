"""How many draft tokens, and whose: chosen every step so that tokens come soonest, and so that a
request never loses more than its allowance.

Owns the choice, the ledger and what is learned from how drafts fared. Knows V(m) and acceptance;
knows no model, no batch. The choice changes when tokens come, never which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof.config import SpeculativeConfig
from draftproof.drafting.acceptance import Acceptance
from draftproof.drafting.auto import AutoDrafter
from draftproof.drafting.drafter import NO_DRAFT, Draft, Drafter, cut
from draftproof.drafting.stats import SpeculationStats
from draftproof.drafting.store import RequestStore
from draftproof.drafting.verify_cost import VerifyCost

# The ledger's promise, in modelled time: a request may lose LONG_LOSS plain steps per token; one
# shorter than LONG_REQUEST what a step with three wrong drafts loses, if that is more.
LONG_REQUEST = 64
LONG_LOSS = 0.01
SHORT_LOSS_ROWS = 4

_REMEMBERED = ("auto", "suffix")  # the drafters that look into the store fill it
SHORTEST_LOSS = 0.1  # plain steps that any request may lose
_CAUTION = 2.5  # what a plain step at stake counts beyond its time while nothing is gained yet
_START_GAIN = 0.04  # tokens that a draft must promise after a step without one
_RECENT = 0.95  # what a step still counts one step later in the request's own speed


@dataclass(frozen=True)
class TokenText:
    """What tokens say. token_bytes: the bytes of a token id. encode: plain text to token ids, no
    control tokens."""

    token_bytes: Callable[[int], bytes]
    encode: Callable[[str], list[int]]


@dataclass
class DraftMemory:
    """What outlives a request, one per loaded model: what tokens say (None: nobody knows), finished
    requests to draft from, what steps cost, how drafts fared."""

    token_text: TokenText | None = None
    store: RequestStore = field(default_factory=RequestStore)
    verify_cost: VerifyCost = field(default_factory=VerifyCost)
    acceptance: Acceptance = field(default_factory=Acceptance)


class Controller:
    """One per request; the engine's only door to drafting.

    With a fixed k it passes on what the drafter says and only keeps the books. Otherwise k is
    chosen: of every candidate and length, the one with the highest gain
    E - 1 - speed * (V(1 + k) - 1), where E is the expected number of tokens and `speed` the tokens
    that this request got per plain step of late. (The k that maximises tokens per second over many
    steps maximises E - speed * V in each: the renewal-reward rule.) Whatever the drafter proposes
    is compared with what came, drafted or not, so that a drafter that has become right again is
    noticed at no cost.
    """

    def __init__(
        self,
        drafter: Drafter,
        config: SpeculativeConfig,
        stats: SpeculationStats,
        memory: DraftMemory,
        vocab_size: int,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """clock: seconds of work, for the time spent on drafting."""
        self.reason = "no_match"  # why the last proposal was empty
        self._drafter = drafter
        self._is_controlled = config.is_controlled
        self._is_replay = config.verify == "replay"
        remembers = config.remember and config.drafter in _REMEMBERED
        self._store = memory.store if remembers else None
        self._scope = config.scope
        self._stats = stats
        self._cost = memory.verify_cost
        self._acceptance = Acceptance(memory.acceptance)
        self._vocab_size = vocab_size
        self._clock = clock
        self._candidates: list[Draft] = []
        self._seen = 0  # tokens of the history that the last proposal was made from
        self._context = 0
        self._other_rows = 0
        self._was_drafting = False
        self._asking = 0.0  # the last proposal's time, in plain steps
        self._usual_asking = 0.0
        self._recent_tokens = self._recent_steps = 4.0

    def start(self, prompt: Sequence[int]) -> None:
        """Once, before the first step."""
        start = self._clock()
        self._drafter.start(prompt)
        self._stats.drafting_seconds += self._clock() - start

    def propose(
        self, history: Sequence[int], room: int, other_rows: int = 0, other_requests: int = 0
    ) -> Draft:
        """The draft of the next step: at most `room` tokens, none = a plain step, see `reason`.

        other_rows, other_requests: what else travels in the step and waits for it.
        """
        start = self._clock()
        came = history[self._seen :]
        for candidate in self._candidates:
            self._acceptance.learn(candidate, came)
        self._seen = self._context = len(history)
        self._other_rows = other_rows
        self._candidates = []
        if self._is_controlled and not self._can_afford_to_ask():
            self.reason = "not_paying"
            self._was_drafting = False
            return NO_DRAFT
        if self._is_controlled and other_rows == 0 and self._cost.is_unsure:
            self.reason = "measuring"
            return NO_DRAFT
        self._candidates = self._ask(history, room)
        draft = self._choose(other_requests) if self._is_controlled else self._likeliest()
        self.reason = "not_paying" if self._candidates else "no_match"
        self._was_drafting = bool(draft.tokens)
        self._charge(self._clock() - start)
        return draft

    @property
    def is_controlled(self) -> bool:
        """Whether the length of a draft is ours to choose."""
        return self._is_controlled

    @property
    def speed(self) -> float:
        """Tokens per plain step of late, at least 1."""
        return max(1.0, self._recent_tokens / self._recent_steps)

    def chances(self, draft: Draft) -> list[float]:
        """[i]: how likely token i of a proposal and all before it are right."""
        return self._acceptance.survival(draft)[: len(draft.tokens)]

    def grant(self, draft: Draft, k: int, other_rows: int) -> Draft:
        """The first `k` tokens of the last proposal: that is what travels, beside so many rows of
        others."""
        self._other_rows = other_rows
        granted = cut(draft, k, self._vocab_size)
        if draft.tokens and not granted.tokens:
            self.reason = "not_paying"
        self._was_drafting = bool(granted.tokens)
        return granted

    def settle(self, draft: Draft, agreed: int, emitted: int) -> None:
        """A draft was verified: `agreed` of its tokens came, `emitted` tokens were handed on."""
        accepted = self._stats.count_try(len(draft.tokens), agreed, emitted, draft.source)
        self._drafter.observe(draft, accepted)
        steps = self._slowdown(1 + len(draft.tokens))
        self._book(steps + emitted if self._is_replay else steps, emitted)

    def settle_plain(self, emitted: int, reason: str) -> None:
        """A step without a draft."""
        self._stats.count_plain_step(emitted)
        self._stats.plain_steps[reason] += 1
        self._book(1.0, emitted)

    def finish(self, history: Sequence[int]) -> None:
        """After the last step of a request that wasn't cancelled: later ones may draft from it."""
        if self._store is not None:
            self._store.add(self._scope, history)

    def _ask(self, history: Sequence[int], room: int) -> list[Draft]:
        drafter = self._drafter
        if isinstance(drafter, AutoDrafter):
            found = drafter.candidates(history, room)
        else:
            found = [drafter.propose(history, room)]
        drafts = [cut(draft, room, self._vocab_size) for draft in found]
        return [draft for draft in drafts if draft.tokens]

    def _likeliest(self) -> Draft:
        if len(self._candidates) < 2:
            return self._candidates[0] if self._candidates else NO_DRAFT
        return max(self._candidates, key=lambda draft: sum(self._acceptance.survival(draft)))

    def _choose(self, other_requests: int) -> Draft:
        """The beginning of a candidate that gains most and can be afforded; NO_DRAFT if none."""
        budget = self._budget() - self._usual_asking
        speed = self.speed
        weight = speed * (1 + other_requests) + self._caution()
        slowdowns = self._slowdowns(max((len(d.tokens) for d in self._candidates), default=0))
        best, best_k = NO_DRAFT, 0
        best_gain = 0.0 if self._was_drafting else _START_GAIN
        for draft in self._candidates:
            expected = 0.0
            for k, alive in enumerate(self._acceptance.survival(draft), 1):
                expected += alive
                loss = slowdowns[k] - 1.0
                gain = expected - weight * loss
                if gain > best_gain and loss <= budget:
                    best, best_k, best_gain = draft, k, gain
        return cut(best, best_k, self._vocab_size)

    def _caution(self) -> float:
        """The price of risk: an allowance lost on the first guesses is missing for better ones.
        Nothing once a whole plain step is gained. Not more where something was lost: that would
        keep a request from ever winning it back."""
        gained = self._stats.modelled_plain - self._stats.modelled
        return _CAUTION * min(1.0, max(0.0, 1.0 - gained))

    def _slowdowns(self, k: int) -> Sequence[float]:
        """[i]: the step's time with i draft tokens over that without, i in 0..k."""
        if self._other_rows == 0:
            return self._cost.table(self._context)[1 : k + 2]
        return [self._slowdown(1 + i) for i in range(k + 1)]

    def _slowdown(self, rows: int) -> float:
        others = self._other_rows
        cost = self._cost.cost(others + rows, self._context)
        return cost / self._cost.cost(others + 1, self._context) if others else cost

    # --- the ledger ------------------------------------------------------------------------------

    def _allowance(self) -> float:
        """Plain steps that may have been lost once the next token is out."""
        tokens = self._stats.modelled_plain + 1
        if tokens >= LONG_REQUEST:
            return LONG_LOSS * tokens
        # Where a wrong draft costs next to nothing, looking for one still costs something.
        lost = self._cost.cost(SHORT_LOSS_ROWS, self._context) - 1.0
        return max(min(lost, LONG_LOSS * LONG_REQUEST), LONG_LOSS * tokens, SHORTEST_LOSS)

    def _budget(self) -> float:
        """What the next step may lose, in plain steps."""
        return self._allowance() + self._stats.modelled_plain - self._stats.modelled

    def _can_afford_to_ask(self) -> bool:
        """Asking takes time as well, and is in vain if not even one draft token could follow."""
        return self._budget() >= self._usual_asking + self._slowdown(2) - 1.0

    def _charge(self, seconds: float) -> None:
        self._stats.drafting_seconds += seconds
        plain = self._cost.plain_seconds(self._context)
        self._asking = seconds / plain if plain else 0.0
        share = 0.1 if self._usual_asking else 1.0
        self._usual_asking += share * (self._asking - self._usual_asking)

    def _book(self, steps: float, emitted: int) -> None:
        steps += self._asking
        self._asking = 0.0
        tokens = max(1, emitted)  # plain decoding would have met the end in one step as well
        stats = self._stats
        stats.plain_seconds = self._cost.plain_seconds(self._context)
        stats.modelled += steps
        stats.modelled_plain += tokens
        self._recent_tokens = _RECENT * self._recent_tokens + tokens
        self._recent_steps = _RECENT * self._recent_steps + steps
