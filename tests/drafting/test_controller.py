"""The controller in a simulated world: V(m) and acceptance are known, so the best policy is too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.config import SpeculativeConfig
from draftproof.drafting import (
    NO_DRAFT,
    AutoDrafter,
    Controller,
    Draft,
    Drafter,
    DraftMemory,
    SpeculationStats,
    VerifyCost,
)
from draftproof.drafting.controller import LONG_REQUEST, SHORTEST_LOSS
from draftproof.drafting.verify_cost import GRID, Measurement

VOCAB = 1000
PLAIN_SECONDS = 0.05
FLAT = (1.0, 1.02, 1.1, 1.3, 1.9, 3.2, 6.0)
STEEP = (1.0, 1.06, 1.3, 2.1, 3.6, 6.6, 13.0)
USELESS = (1.0, 1.9, 3.7, 7.2, 14.0, 28.0, 56.0)  # a batch costs as much as its rows
COSTS = {"flat": FLAT, "steep": STEEP, "useless": USELESS}


class Scripted:
    """Drafts `length` tokens; tells after how many of them the first wrong one comes.

    The true continuation of any history of n tokens is n, n + 1, ... (modulo VOCAB)."""

    def __init__(
        self,
        right: Callable[[int], int],
        *,
        source: str = "scripted",
        match_length: int = 8,
        length: int = 63,
    ) -> None:
        """right(n): how many tokens of a draft after n tokens are right."""
        self.right = right
        self.source, self.match_length, self.length = source, match_length, length
        self.observed: list[tuple[int, int]] = []

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, history: Sequence[int], k: int) -> Draft:
        n, right = len(history), self.right(len(history))
        tokens = [
            (n + i + (i >= right)) % VOCAB  # wrong from there on
            for i in range(min(k, self.length))
        ]
        return Draft(tuple(tokens), self.source, self.match_length) if tokens else NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        self.observed.append((len(draft.tokens), accepted))


@dataclass
class World:
    """Plays one request: the true times are V(m) * PLAIN_SECONDS, a question takes `asking` plain
    steps."""

    drafter: Drafter
    costs: Sequence[float]
    asking: float = 0.0
    learns: bool = True
    memory: DraftMemory = field(default_factory=DraftMemory)
    config: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    history: list[int] = field(default_factory=lambda: [0])
    lengths: list[int] = field(default_factory=list)  # draft tokens of every step

    def __post_init__(self) -> None:
        self.measurement = Measurement(PLAIN_SECONDS, dict(zip(GRID, self.costs, strict=True)))
        self.true = VerifyCost(self.measurement)
        if self.memory.verify_cost.measurement is None:
            self.memory.verify_cost.use(self.measurement)
        self.stats = SpeculationStats.of(self.config)
        self.now = 0.0
        self.controller = Controller(
            self.drafter, self.config, self.stats, self.memory, VOCAB, self._clock
        )
        self.seconds = 0.0
        self.controller.start(self.history)

    def _clock(self) -> float:
        """Every second look finds that `asking` has passed."""
        self.now += self.asking * PLAIN_SECONDS / 2
        return self.now

    def step(self, room: int = 63) -> int:
        """Tokens emitted."""
        before = self.now
        draft = self.controller.propose(self.history, room)
        agreed = 0
        for token in draft.tokens:
            if token != (len(self.history) + agreed) % VOCAB:
                break
            agreed += 1
        rows = 1 + len(draft.tokens)
        taken = self.true.cost(rows) * PLAIN_SECONDS
        if self.learns:
            self.memory.verify_cost.observe(rows, len(self.history), taken)
        self.seconds += taken + (self.now - before) / 2
        self.history += [(len(self.history) + i) % VOCAB for i in range(agreed + 1)]
        if draft.tokens:
            self.controller.settle(draft, agreed, agreed + 1)
        else:
            self.controller.settle_plain(1, self.controller.reason)
        self.lengths.append(len(draft.tokens))
        return agreed + 1

    @property
    def speed(self) -> float:
        """Tokens per plain step, truly."""
        return self.stats.modelled_plain * PLAIN_SECONDS / self.seconds


def constant(acceptance: float, seed: int) -> Callable[[int], int]:
    """Every draft token is right with the same probability."""
    draws = random.Random(seed)

    def right(_: int) -> int:
        count = 0
        while count < 63 and draws.random() < acceptance:
            count += 1
        return count

    return right


def best_fixed(acceptance: float, costs: Sequence[float]) -> float:
    """Tokens per plain step of the best fixed k, 0 included: exact expectations."""
    true = VerifyCost(Measurement(PLAIN_SECONDS, dict(zip(GRID, costs, strict=True))))
    return max(sum(acceptance**i for i in range(k + 1)) / true.cost(k + 1) for k in range(64))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# ("useless" at 1.0 is left out: a single wrong draft would cost more than the ledger ever allows.)
@pytest.mark.parametrize(
    ("shape", "acceptance"),
    [
        (shape, acceptance)
        for shape in COSTS
        for acceptance in (0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 1.0)
        if (shape, acceptance) != ("useless", 1.0)
    ],
)
def test_regret_after_200_steps(shape: str, acceptance: float) -> None:
    """Less than 5 % behind the best fixed k, learning included; mean of several seeds against the
    exact expectation of the best policy."""
    costs = COSTS[shape]
    speeds = []
    for seed in range(25):
        world = World(Scripted(constant(acceptance, seed)), costs)
        for _ in range(200):
            world.step()
        speeds.append(world.stats.modelled_plain / (world.seconds / PLAIN_SECONDS))
    assert mean(speeds) >= 0.95 * best_fixed(acceptance, costs)


def test_where_drafts_are_right_they_become_long() -> None:
    world = World(Scripted(lambda _: 63), FLAT)
    for _ in range(40):
        world.step()
    assert world.lengths[-1] == 63
    assert world.stats.acceptance_rate == 1.0


def test_where_batches_cost_their_rows_nothing_is_drafted() -> None:
    world = World(Scripted(constant(0.7, 1)), USELESS)
    for _ in range(300):
        world.step()
    assert world.stats.plain_steps["not_paying"] > 290
    assert world.stats.modelled_speedup >= 0.99


def phases(*lengths: int) -> Callable[[int], int]:
    """Drafts are right for so many tokens, then wrong for so many, and so on."""
    ends: list[int] = []
    for length in lengths:
        ends.append((ends[-1] if ends else 0) + length)

    def right(n: int) -> int:
        place = n % ends[-1]
        i = next(i for i, end in enumerate(ends) if place < end)
        return ends[i] - place if i % 2 == 0 else 0

    return right


ADVERSARIES: dict[str, Callable[[int], int]] = {
    "always wrong": lambda _: 0,
    "wrong after a long copy": phases(150, 10**6),
    "in turns, short": phases(3, 5),
    "in turns, long": phases(40, 160),
    "wrong as soon as it is trusted": phases(12, 60),
    "right once in a while": lambda n: int(n % 17 == 0),
}


@pytest.mark.parametrize("asking", [0.0, 0.002, 0.02, 0.3])
@pytest.mark.parametrize("shape", COSTS)
@pytest.mark.parametrize("name", ADVERSARIES)
def test_the_ledger_holds(name: str, shape: str, asking: float) -> None:
    """At every length that a request could have ended at."""
    costs = COSTS[shape]
    world = World(Scripted(ADVERSARIES[name]), costs, asking)
    short = max(world.true.cost(4) - 1.0, SHORTEST_LOSS)
    tokens = 0
    while tokens < 600:
        tokens += world.step()
        lost = world.stats.modelled - world.stats.modelled_plain
        if tokens >= LONG_REQUEST:
            assert world.stats.modelled_speedup >= 0.99
        else:
            # The first question comes before anybody knows what a question costs.
            assert lost <= max(short, 0.01 * tokens) + asking + 1e-9  # sums of floats
    assert tokens == world.stats.modelled_plain


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 63)), min_size=1, max_size=50),
    st.sampled_from(sorted(COSTS)),
    st.integers(0, 64),
)
def test_the_ledger_holds_whatever_happens(
    script: list[tuple[int, int]], shape: str, match_length: int
) -> None:
    """Right counts and draft lengths of any kind, repeated; V known."""
    drafter = Scripted(lambda n: script[n % len(script)][0], match_length=match_length)
    world = World(drafter, COSTS[shape])
    tokens = 0
    while tokens < 200:
        drafter.length = script[tokens % len(script)][1]
        tokens += world.step()
        if tokens >= LONG_REQUEST:
            assert world.stats.modelled_speedup >= 0.99


def test_repetition_is_taken_up_again_at_once() -> None:
    """Prose, then a copy: what is proposed is watched while nothing is drafted."""
    prose = 400
    world = World(Scripted(lambda n: 0 if n < prose else 10**6), FLAT)
    while len(world.history) < prose:
        world.step()
    late = world.lengths[len(world.lengths) // 2 :]
    assert mean([length > 0 for length in late]) < 0.2
    world.lengths.clear()
    for _ in range(30):
        world.step()
    assert next(i for i, length in enumerate(world.lengths) if length) < 8
    assert max(world.lengths) > 30


def test_a_machine_that_turns_slow_is_noticed() -> None:
    """Batches become as dear as their rows while everything is drafted: it stops."""
    world = World(Scripted(constant(0.8, 3)), FLAT)
    for _ in range(60):
        world.step()
    assert mean(world.lengths[-20:]) > 4
    world.true = VerifyCost(Measurement(PLAIN_SECONDS, dict(zip(GRID, USELESS, strict=True))))
    for _ in range(300):
        world.step()
    assert mean(world.lengths[-100:]) < 1


def test_auto_takes_the_better_drafter() -> None:
    good, bad = Scripted(lambda _: 6, source="good"), Scripted(lambda _: 0, source="bad")
    world = World(AutoDrafter([bad, good]), FLAT)
    for _ in range(100):
        world.step()
    sources = world.stats.by_source
    assert sources["good"]["drafted"] > 10 * sources.get("bad", {"drafted": 0})["drafted"]
    assert len(good.observed) == sources["good"]["tries"]  # each hears of its own drafts
    assert sum(counts["accepted"] for counts in sources.values()) == world.stats.accepted


@pytest.mark.parametrize("k", [0, 1, 5, 63])
def test_a_fixed_k_is_kept(k: int) -> None:
    """Whatever it costs; the ledger says so."""
    world = World(Scripted(lambda _: 0), STEEP, config=SpeculativeConfig("window", k))
    for _ in range(50):
        if k:
            world.step(room=k)
    assert set(world.lengths) <= {k}
    if k:
        assert world.stats.time_saved_ms < 0
        assert world.stats.modelled_speedup == pytest.approx(1 / world.true.cost(k + 1), rel=0.02)


def test_the_room_and_the_vocabulary_are_kept() -> None:
    class Reckless(Scripted):
        def propose(self, history: Sequence[int], k: int) -> Draft:
            return Draft((1, 2, VOCAB, 3), "reckless", 9)

    world = World(Reckless(lambda _: 0), FLAT, config=SpeculativeConfig("window", 60))
    assert world.controller.propose([0], 60).tokens == (1, 2)
    assert world.controller.propose([0, 1], 1).tokens == (1,)


def test_the_choice_minds_the_others_in_the_batch() -> None:
    """What one draft costs, all wait for."""

    def chosen(others: int) -> int:
        world = World(Scripted(constant(0.75, 2)), STEEP)
        for _ in range(100):
            world.step()
        draft = world.controller.propose(world.history, 63, others, others)
        return len(draft.tokens)

    assert chosen(0) > chosen(40)


def test_what_one_request_taught_the_next_one_starts_with() -> None:
    memory = DraftMemory()
    first = World(Scripted(lambda _: 0), FLAT, memory=memory)
    for _ in range(300):
        first.step()
    second = World(Scripted(lambda _: 0), FLAT, memory=memory)
    for _ in range(20):
        second.step()
    assert second.stats.tries <= 1


def test_statistics_add_up() -> None:
    for name, right in ADVERSARIES.items():
        world = World(Scripted(right), STEEP, asking=0.001)
        emitted = sum(world.step() for _ in range(200))
        stats = world.stats
        assert stats.drafted == stats.accepted + stats.rejected + stats.discarded, name
        assert emitted == stats.accepted + stats.steps
        assert stats.tries + sum(stats.plain_steps.values()) == 200
        assert stats.tries == sum(counts["tries"] for counts in stats.by_source.values())
        assert stats.drafted == sum(counts["drafted"] for counts in stats.by_source.values())
        assert sum(stats.accepted_per_position) == stats.accepted
        saved = (stats.modelled_plain - stats.modelled) * stats.plain_seconds * 1000
        assert stats.to_dict()["time_saved_ms"] == pytest.approx(saved)
        assert stats.to_dict()["drafting_ms"] > 0


def test_remembering_is_per_request() -> None:
    memory = DraftMemory()
    for config in (
        SpeculativeConfig(),
        SpeculativeConfig(remember=False),
        SpeculativeConfig("window"),
        SpeculativeConfig("off"),
    ):
        stats = SpeculationStats.of(config)
        Controller(Scripted(lambda _: 0), config, stats, memory, VOCAB).finish([1, 2, 3, 4])
    assert memory.store.requests == 1
