"""The oracle errs exactly where it is told to; the statistics add up and read well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.config import SpeculativeConfig
from draftproof.drafting import NO_DRAFT, OracleDrafter, SpeculationStats, make_drafter
from draftproof.drafting.stats import FORWARD_KINDS, PLAIN_REASONS

RECORDING = [5, 0, 7, 7, 3, 1, 9, 2]
PROMPT = [1, 2, 3]


def drafts(oracle: OracleDrafter, k: int) -> list[tuple[int, ...]]:
    """One draft per output position, as if every step had emitted one token."""
    oracle.start(PROMPT)
    return [oracle.propose([*PROMPT, *RECORDING[:i]], k).tokens for i in range(len(RECORDING) + 1)]


def test_right_everywhere() -> None:
    expected = [tuple(RECORDING[i : i + 3]) for i in range(len(RECORDING) + 1)]
    assert drafts(OracleDrafter(RECORDING), 3) == expected
    oracle = OracleDrafter(RECORDING)
    oracle.start(PROMPT)
    assert oracle.propose([*PROMPT, *RECORDING, 1, 1], 3) == NO_DRAFT


def test_wrong_at_output_positions() -> None:
    for i, draft in enumerate(drafts(OracleDrafter(RECORDING, wrong_at=(0, 4)), 4)):
        right = [token == RECORDING[i + j] for j, token in enumerate(draft)]
        assert right == [i + j not in (0, 4) for j in range(len(draft))]
        assert all(token >= 0 for token in draft)


@pytest.mark.parametrize("place", [0, 2, -1])
def test_wrong_inside_every_draft(place: int) -> None:
    for i, draft in enumerate(drafts(OracleDrafter(RECORDING, wrong_in_draft=(place,)), 3)):
        wrong = {j for j, token in enumerate(draft) if token != RECORDING[i + j]}
        inside = -len(draft) <= place < len(draft)
        assert wrong == ({place % len(draft)} if inside else set())


def test_acceptance_is_seeded_per_position_whatever_k() -> None:
    recording = list(range(10, 2010))

    def rights(k: int, acceptance: float, seed: int) -> list[bool]:
        oracle = OracleDrafter(recording, acceptance, seed=seed)
        oracle.start([])
        out: list[bool] = []
        while len(out) < len(recording):
            draft = oracle.propose(recording[: len(out)], k).tokens
            out += [
                token == right for token, right in zip(draft, recording[len(out) :], strict=False)
            ]
        return out

    assert rights(1, 0.7, 3) == rights(16, 0.7, 3)
    assert rights(1, 0.7, 3) != rights(1, 0.7, 4)
    assert 0.66 < sum(rights(4, 0.7, 3)) / len(recording) < 0.74
    assert all(rights(4, 1.0, 3))
    assert not any(rights(4, 0.0, 3))


def test_made_by_name() -> None:
    config = SpeculativeConfig("oracle", 3, recording=tuple(RECORDING), wrong_at=(0,))
    drafter = make_drafter(config)
    drafter.start(PROMPT)
    assert drafter.propose(PROMPT, 3).tokens == (4, 0, 7)
    assert make_drafter(SpeculativeConfig("off")).propose([1] * 50, 4) == NO_DRAFT
    assert make_drafter(SpeculativeConfig("window")).propose([1] * 50, 4).tokens == (1, 1, 1, 1)


def test_the_line() -> None:
    stats = SpeculationStats.of(SpeculativeConfig("window", 4))
    stats.count_try(drafted=4, agreed=4, emitted=5)
    stats.count_try(drafted=4, agreed=1, emitted=2)
    assert stats.line() == "[SPEC] tries=2 hits=5 kv_rolls=3 (62% draft hit)"
    assert stats.mean_acceptance_length == 3.5
    assert stats.acceptance_rate == 0.625
    assert stats.accepted_per_position == [2, 1, 1, 1]
    assert stats.rejected_per_position == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("agreed", "emitted", "accepted", "rejected", "discarded"),
    [
        (0, 1, 0, 4, 0),  # all wrong, bonus
        (2, 3, 2, 2, 0),  # two right, bonus
        (4, 5, 4, 0, 0),  # all right, bonus
        (4, 1, 0, 0, 4),  # cut at the first draft token: the step's own token
        (4, 4, 3, 0, 1),  # cut at the last one
        (2, 2, 1, 0, 3),  # cut before the disagreement: nobody knows about the rest
        (0, 0, 0, 0, 4),  # no finite logits, nothing emitted
    ],
)
def test_one_try(agreed: int, emitted: int, accepted: int, rejected: int, discarded: int) -> None:
    stats = SpeculationStats.of(SpeculativeConfig("window", 4))
    assert stats.count_try(4, agreed, emitted) == accepted
    assert (stats.rejected, stats.discarded) == (rejected, discarded)
    assert stats.steps == min(emitted, 1)


@given(st.lists(st.tuples(st.integers(1, 63), st.integers(0, 63), st.integers(0, 64))))
def test_sums(tries: list[tuple[int, int, int]]) -> None:
    stats = SpeculationStats.of(SpeculativeConfig("window", 63))
    tokens = 0
    for drafted, agreed, emitted in tries:
        agreed = min(agreed, drafted)
        emitted = min(emitted, agreed + 1)
        stats.count_try(drafted, agreed, emitted)
        tokens += emitted
    assert stats.drafted == stats.accepted + stats.rejected + stats.discarded
    assert tokens == stats.accepted + stats.steps
    assert sum(stats.accepted_per_position) == stats.accepted


def test_keys_are_always_there() -> None:
    values = SpeculationStats.of(SpeculativeConfig("off")).to_dict()
    assert list(values) == [
        "drafter",
        "k",
        "verify",
        "tries",
        "drafted",
        "accepted",
        "rejected",
        "discarded",
        "rolled_back",
        "acceptance_rate",
        "mean_acceptance_length",
        "replay_mismatches",
        "forwards",
        "controlled",
        "by_source",
        "accepted_per_position",
        "plain_steps",
        "drafting_ms",
        "time_saved_ms",
        "modelled_speedup",
        "shared_forwards",
    ]
    assert values["drafter"] == "off"
    assert values["verify"] == "exact"
    assert values["forwards"] == dict.fromkeys(FORWARD_KINDS, 0)
    assert all(values[key] == 0 for key in list(values)[3:12])
    assert values["plain_steps"] == dict.fromkeys(PLAIN_REASONS, 0)
    assert values["time_saved_ms"] == values["drafting_ms"] == 0
    assert values["modelled_speedup"] == 1
