"""The claim on a scripted model: whatever is drafted and however it is verified, text, ids, reason,
counts, logits and KV are those of plain decoding. Every comparison requires that drafts were made.
"""

from __future__ import annotations

from collections import Counter

import pytest
from engine_support import (
    ACCEPTANCES,
    OFF,
    VOCAB,
    WINDOW_KS,
    World,
    assert_same,
    oracle,
    outcome_of,
)

from draftproof.config import SpeculativeConfig
from draftproof.request import Request, SamplingParams

PROMPT = [3, 7, 1, 9, 3, 7, 1, 9, 3, 7, 1, 4, 2]
GREEDY = SamplingParams(max_tokens=60)
SEEDED = SamplingParams(max_tokens=60, temperature=0.15, top_k=8, seed=11)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
MODES = pytest.mark.parametrize("verify", ["exact", "replay"])


def compare(
    world: World, sampling: SamplingParams, speculation: SpeculativeConfig, prompt: list[int]
) -> Request:
    plain = world.run(prompt, sampling)
    request = world.run(prompt, sampling, speculation)
    assert_same(outcome_of(plain), outcome_of(request), drafted=request.stats.drafted)
    assert request.stats.replay_mismatches == 0
    return request


def recording_of(world: World, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """What plain decoding says if nothing ends it: drafts go past every end."""
    free = World(context=world.context, model_seed=world.model_seed, branching=world.branching)
    endless = SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_tokens=100,
    )
    return free.run(prompt, endless).output_ids


@SAMPLINGS
@MODES
@pytest.mark.parametrize("k", WINDOW_KS)
def test_window(sampling: SamplingParams, verify: str, k: int) -> None:
    # A model that rarely leaves the path of the last two tokens repeats itself and is drafted.
    for seed in range(3):
        world = World(branching=0 if seed == 2 else 19, model_seed=seed)
        compare(world, sampling, SpeculativeConfig("window", k, verify), PROMPT)


@SAMPLINGS
@MODES
@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("k", [1, 3, 8, 63])
def test_oracle(sampling: SamplingParams, verify: str, acceptance: float, k: int) -> None:
    world = World()
    recording = recording_of(world, PROMPT, sampling)
    config = oracle(recording, k, verify=verify, acceptance=acceptance)
    stats = compare(world, sampling, config, PROMPT).stats
    if acceptance == 0.0:
        assert stats.accepted == 0
        assert stats.rejected > 0
    if acceptance == 1.0:
        assert stats.rejected == 0
        assert stats.accepted >= 60 - 1 - stats.tries


@MODES
@pytest.mark.parametrize("place", range(8))
def test_a_rejection_at_every_position(verify: str, place: int) -> None:
    """KV included: after the rejection it is as if nothing had ever been drafted."""
    world = World()
    config = oracle(recording_of(world, PROMPT, GREEDY), 8, verify=verify, wrong_in_draft=(place,))
    request = compare(world, GREEDY, config, PROMPT)
    assert request.stats.rejected_per_position[place] > 0
    assert sum(request.stats.rejected_per_position) == request.stats.rejected_per_position[place]


@MODES
def test_wrong_at_every_output_position(verify: str) -> None:
    world = World()
    recording = recording_of(world, PROMPT, GREEDY)
    for place in range(1, 60):
        compare(world, GREEDY, oracle(recording, 5, verify=verify, wrong_at=(place,)), PROMPT)


@MODES
@pytest.mark.parametrize("k", [1, 4, 7, 16])
def test_every_limit_inside_a_draft(verify: str, k: int) -> None:
    world = World()
    recording = recording_of(world, PROMPT, GREEDY)
    discarded = 0
    for limit in range(2, 20):
        sampling = SamplingParams(max_tokens=limit)
        request = compare(world, sampling, oracle(recording, k, verify=verify), PROMPT)
        assert request.finish_reason == "length"
        assert request.num_output == limit
        discarded += request.stats.discarded
    assert discarded > 0


@MODES
@pytest.mark.parametrize("k", [1, 4, 7, 16])
def test_an_end_token_at_every_place_of_a_draft(verify: str, k: int) -> None:
    """Each token that the model produces is declared to be the end token in turn."""
    free = World()
    recording = recording_of(free, PROMPT, GREEDY)
    places = Counter[int]()
    for token in set(recording[1:60]):
        end = recording.index(token)
        if end == 0:
            continue
        world = World(eos_ids=(token,))
        request = compare(world, GREEDY, oracle(recording, k, verify=verify), PROMPT)
        assert request.finish_reason == "stop"
        assert request.output_ids == recording[: end + 1]
        # The end token is counted and kept, but it is no text.
        assert len(request.text) == end
        places[(end - 1) % (k + 1)] += 1
        # ignore_eos: the same token is a token like any other.
        ignoring = SamplingParams(max_tokens=60, ignore_eos=True)
        assert world.run(PROMPT, ignoring).output_ids == recording[:60]
    assert len(places) >= min(3, k + 1)


@MODES
def test_stop_token_ids(verify: str) -> None:
    world = World()
    recording = recording_of(world, PROMPT, GREEDY)
    sampling = SamplingParams(max_tokens=60, stop_token_ids=(recording[9],), ignore_eos=True)
    request = compare(world, sampling, oracle(recording, 4, verify=verify), PROMPT)
    assert request.finish_reason == "stop"
    assert request.output_ids == recording[: recording.index(recording[9]) + 1]


@MODES
@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_stop_strings_inside_drafts_and_across_tokens(verify: str, length: int, k: int) -> None:
    world = World()
    recording = recording_of(world, PROMPT, GREEDY)
    letters = "".join(chr(ord("a") + token) for token in recording[:60])
    for at in range(2, 30, 3):
        stop = letters[at : at + length]
        sampling = SamplingParams(max_tokens=60, stop=(stop,))
        request = (
            compare(world, sampling, oracle(recording, k, verify=verify), PROMPT)
            if (letters.find(stop) + length > 1)
            else None
        )
        if request is None:
            continue
        assert request.finish_reason == "stop"
        assert request.text == letters[: letters.find(stop)]
        assert request.num_output == letters.find(stop) + length


def test_a_stop_at_the_limit_is_a_stop() -> None:
    world = World()
    recording = recording_of(world, PROMPT, GREEDY)
    end = recording.index(recording[9])
    sampling = SamplingParams(max_tokens=end + 1, stop_token_ids=(recording[9],))
    assert compare(world, sampling, oracle(recording, 4), PROMPT).finish_reason == "stop"


@MODES
@pytest.mark.parametrize("context", [20, 31, 32, 33])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_the_context_end(verify: str, context: int, k: int) -> None:
    """Nothing is written past the context (the pool has no page for it), the reason is `length`."""
    world = World(context=context, num_pages=-(-context // 4))
    recording = recording_of(World(), PROMPT, GREEDY)
    sampling = SamplingParams()
    request = compare(world, sampling, oracle(recording, k, verify=verify), PROMPT)
    assert request.finish_reason == "length"
    assert len(request.tokens) == context
    assert request.kv_length == context - 1


@MODES
def test_values_that_are_not_finite(verify: str) -> None:
    """The request ends before them, wherever the failing row is in a draft; a failing row that
    plain decoding would never reach harms nobody."""
    recording = recording_of(World(), PROMPT, GREEDY)
    whole = [*PROMPT, *recording]
    for place in range(1, 12):
        prefix = whole[: len(PROMPT) + place]
        world = World(fails_at=lambda tokens, prefix=prefix: tokens == prefix)
        request = compare(world, GREEDY, oracle(recording, 4, verify=verify), PROMPT)
        assert request.finish_reason == "numeric_error"
        assert request.output_ids == recording[:place]
    wrong = [*whole[: len(PROMPT) + 3], (whole[len(PROMPT) + 3] or 2) - 1]
    world = World(fails_at=lambda tokens: tokens[: len(wrong)] == wrong)
    config = oracle(recording, 4, verify=verify, wrong_at=(3,))
    request = compare(world, GREEDY, config, PROMPT)
    assert request.finish_reason == "length"
    assert request.output_ids == recording[:60]


def test_text_that_repeats_is_drafted_well() -> None:
    """Not only equal but useful: a cycle is accepted in full after its first round."""
    world = World(branching=0, context=512, num_pages=128)
    request = compare(world, SamplingParams(max_tokens=400), SpeculativeConfig("window", 8), PROMPT)
    assert request.stats.acceptance_rate > 0.9
    assert request.stats.forwards["verify"] + request.stats.forwards["decode"] < 130


def test_forwards_are_counted_by_kind() -> None:
    world = World(prefill_chunk=5)
    recording = recording_of(world, PROMPT, GREEDY)
    plain = world.run(PROMPT, GREEDY).stats.forwards
    assert plain == {"prefill": 3, "decode": 59, "verify": 0, "probe": 0, "replay": 0}
    exact = world.run(PROMPT, GREEDY, oracle(recording, 4)).stats
    assert exact.forwards == {"prefill": 3, "decode": 0, "verify": 12, "probe": 0, "replay": 0}
    replay = world.run(PROMPT, GREEDY, oracle(recording, 4, verify="replay")).stats
    assert replay.forwards == {"prefill": 3, "decode": 0, "verify": 0, "probe": 12, "replay": 59}
    same = ("tries", "drafted", "accepted", "rejected", "discarded", "rolled_back")
    assert {key: exact.to_dict()[key] for key in same} == {
        key: replay.to_dict()[key] for key in same
    }


def test_replay_notices_a_native_side_that_breaks_the_contract() -> None:
    """A fake whose batched rows differ from single ones: replay counts it and keeps the one-row
    answer, which is plain decoding's."""
    world = World()
    recording = recording_of(world, PROMPT, GREEDY)
    plain = world.run(PROMPT, GREEDY)
    honest = world.player.sample

    def dishonest(*args, **kwargs):  # type: ignore[no-untyped-def]
        targets = honest(*args, **kwargs)
        if len(targets) > 1:
            targets[1] = (targets[1] + 1) % VOCAB
        return targets

    world.player.sample = dishonest  # type: ignore[method-assign]
    request = world.run(PROMPT, GREEDY, oracle(recording, 4, verify="replay", wrong_at=(3, 9)))
    assert request.stats.replay_mismatches > 0
    assert outcome_of(request) == outcome_of(plain)


def test_off_drafts_nothing() -> None:
    request = World().run(PROMPT, GREEDY, OFF)
    assert request.stats.drafted == 0
    assert request.stats.plain_steps["disabled"] == 59
    assert request.stats.line() == "[SPEC] tries=0 hits=0 kv_rolls=0 (0% draft hit)"
