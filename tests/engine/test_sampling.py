"""Penalties, bias, logprobs: checked at the door, right at every row, equal under speculation."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_support import OFF, VOCAB, World, assert_same, oracle, outcome_of
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.config import SpeculativeConfig
from draftproof.errors import InvalidRequestError
from draftproof.sampling import SamplingParams

PROMPT = [3, 7, 1, 9, 3, 7, 1, 9, 3, 7, 1, 4, 2]

# --- at the door ---------------------------------------------------------------------------------

BAD: list[dict[str, Any]] = [
    {"temperature": math.nan},
    {"temperature": math.inf},
    {"temperature": -0.1},
    {"temperature": 1e-9},
    {"temperature": "1"},
    {"top_k": -1},
    {"top_k": 1.5},
    {"top_p": 0.0},
    {"top_p": 1.01},
    {"top_p": math.nan},
    {"min_p": -0.1},
    {"min_p": math.inf},
    {"seed": -1},
    {"seed": 2**64},
    {"max_tokens": 0},
    {"min_tokens": -1},
    {"min_tokens": True},
    {"min_tokens": 5, "max_tokens": 4},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": -1.0},
    {"repetition_penalty": math.nan},
    {"repetition_penalty": math.inf},
    {"presence_penalty": 2.1},
    {"presence_penalty": math.nan},
    {"frequency_penalty": -2.1},
    {"frequency_penalty": -math.inf},
    {"logit_bias": {1: math.nan}},
    {"logit_bias": {1: 100.5}},
    {"logit_bias": {-1: 1.0}},
    {"logit_bias": {"1": 1.0}},
    {"logit_bias": {2**31: 1.0}},
    {"logit_bias": dict.fromkeys(range(10_000), 1.0)},
    {"logit_bias": [(1, 2.0), (1, 3.0)]},
    {"logit_bias": [1, 2]},
    {"logit_bias": 3},
    {"logprobs": -1},
    {"logprobs": 21},
    {"logprobs": True},
    {"stop": ["x"] * 10_000},
    {"stop": ["x" * 5_000]},
    {"stop": [""]},
    {"stop": [3]},
    {"stop": 3},
    {"stop_token_ids": list(range(10_000))},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": 3},
    {"ignore_eos": 1},
]


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: f"{fields}"[:40])
def test_a_mistake_names_its_field(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**fields)
    message = str(caught.value)
    assert message.startswith(next(iter(fields)))
    assert len(message) < 200
    assert "\n" not in message


def test_logit_bias_is_kept_as_sorted_pairs() -> None:
    pairs = ((2, 1.0), (7, -3.5))
    assert SamplingParams(logit_bias={7: -3.5, 2: 1}).logit_bias == pairs
    assert SamplingParams(logit_bias=pairs) == SamplingParams(logit_bias={7: -3.5, 2: 1})
    assert hash(SamplingParams(logit_bias={2: 1})) == hash(SamplingParams(logit_bias=((2, 1.0),)))


def test_a_bias_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidRequestError, match=f"logit_bias names token {VOCAB}"):
        World().run(PROMPT, SamplingParams(max_tokens=3, logit_bias={VOCAB: 1.0}))


# --- what they do --------------------------------------------------------------------------------


def test_bias_forces_and_forbids() -> None:
    world = World()
    plain = world.run(PROMPT, SamplingParams(max_tokens=20)).output_ids
    forced = world.run(PROMPT, SamplingParams(max_tokens=20, logit_bias={5: 100.0}))
    assert forced.output_ids == [5] * 20
    banned = dict.fromkeys(plain[:3], -100.0)
    assert not {*plain[:3]} & {*world.run(PROMPT, SamplingParams(logit_bias=banned)).output_ids}


def test_penalties_make_a_repeating_model_say_more() -> None:
    world = World(branching=0)
    plain = world.run(PROMPT, SamplingParams(max_tokens=60))
    for field in ("presence_penalty", "frequency_penalty"):
        for temperature in (0.0, 0.5):
            penalized = world.run(
                PROMPT, SamplingParams(max_tokens=60, temperature=temperature, **{field: 2.0})
            )
            assert len({*penalized.output_ids}) > len({*plain.output_ids}), field


def test_the_prompt_counts_for_repetition_only() -> None:
    world = World(branching=0)  # logits depend on the last two tokens only
    first = SamplingParams(max_tokens=1)
    (likeliest,) = world.run(PROMPT, first).output_ids
    prompt = [likeliest, *PROMPT]
    for field in ("presence_penalty", "frequency_penalty"):
        penalized = SamplingParams(max_tokens=1, **{field: 2.0})
        assert world.run(prompt, penalized).output_ids == [likeliest]
    strong = SamplingParams(max_tokens=1, repetition_penalty=100.0)
    assert world.run(prompt, strong).output_ids != [likeliest]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_min_tokens(temperature: float) -> None:
    """End tokens are never chosen too early, and nothing else changes; stop strings are text."""
    free = World()
    rest = SamplingParams(max_tokens=40, temperature=temperature, seed=3)
    plain = free.run(PROMPT, rest).output_ids
    end = plain[4]
    for least in (0, 1, 4, 5, 12, 40):
        sampling = replace(rest, min_tokens=least)
        request = World(eos_ids=(end,)).run(PROMPT, sampling)
        assert end not in request.output_ids[:least]
        assert request.num_output > least or request.finish_reason == "length"
        if least <= plain.index(end):
            assert request.output_ids == plain[: plain.index(end) + 1]
        named = World().run(PROMPT, replace(sampling, stop_token_ids=(end,)))
        assert named.output_ids == request.output_ids
        assert named.stop_reason == (end if named.finish_reason == "stop" else None)
    letters = free.run(PROMPT, rest).text
    stop = letters[4]
    for least in (0, 4, 5, 12):
        stopped = free.run(PROMPT, replace(rest, min_tokens=least, stop=(stop,)))
        at = letters.find(stop, least)
        assert stopped.output_ids == plain[: at + 1 if at >= 0 else None]
        assert stopped.text == (letters[:at] if at >= 0 else letters)
        assert stopped.stop_reason == (stop if at >= 0 else None)


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_logprobs_are_those_of_the_raw_logits(top: int) -> None:
    """Whatever was done to the logits afterwards."""
    world = World()
    edited = {"logit_bias": {3: 4.0}, "repetition_penalty": 1.5, "temperature": 0.9, "seed": 5}
    request = world.run(PROMPT, SamplingParams(max_tokens=30, logprobs=top, **edited))
    assert [entry.token_id for entry in request.logprobs] == request.output_ids
    chosen = {}
    for entry in request.logprobs:
        assert len(entry.top) == top
        values = [value for _, value in entry.top]
        assert values == sorted(values, reverse=True)
        chosen |= {i: True for i, (token, _) in enumerate(entry.top) if token == entry.token_id}
        assert all(value == entry.logprob for token, value in entry.top if token == entry.token_id)
        assert np.exp(values).sum() <= 1.0 + 1e-6
    if top > 1:
        assert len(chosen) > 1  # not always the likeliest was chosen


def test_no_logprobs_unless_asked_for() -> None:
    assert World().run(PROMPT, SamplingParams(max_tokens=5)).logprobs == []


# --- under speculation ---------------------------------------------------------------------------

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    seed=st.integers(0, 5),
    max_tokens=st.integers(20, 40),
    min_tokens=st.sampled_from([0, 10, 20]),
    stop=st.sampled_from([(), ("c",), ("ab", "de")]),
    stop_token_ids=st.sampled_from([(), (4, 9)]),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.3]),
    presence_penalty=st.sampled_from([0.0, -0.5, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.2, 0.4]),
    logit_bias=st.sampled_from([None, {2: 1.5, 5: -100.0}]),
    logprobs=st.sampled_from([None, 0, 3]),
)


def test_any_mix_is_what_each_alone_is_without_drafts() -> None:
    """Text, ids, logprobs, reasons, logits and KV: alone and plain, or drafted in one batch."""
    counts: Counter[str] = Counter()

    @settings(max_examples=120, deadline=None)
    @given(
        params=st.lists(PARAMS, min_size=1, max_size=4),
        k=st.sampled_from([1, 3, 8]),
        acceptance=st.sampled_from([0.5, 0.9, 1.0]),
        verify=st.sampled_from(["exact", "replay"]),
        chunk=st.sampled_from([3, 256]),
    )
    def check(
        params: list[SamplingParams], k: int, acceptance: float, verify: str, chunk: int
    ) -> None:
        prompts = [PROMPT[i:] for i in range(len(params))]
        alone = World(eos_ids=(11,))
        plain = [alone.run(prompt, p, OFF) for prompt, p in zip(prompts, params, strict=True)]
        together = World(eos_ids=(11,), prefill_chunk=chunk)
        requests = []
        for prompt, p, one in zip(prompts, params, plain, strict=True):
            recording = [*one.output_ids, *range(8)]
            config = oracle(recording, k, acceptance=acceptance, verify=verify)
            requests.append(together.request(prompt, p, config))
        together.run_all(requests)
        for one, request in zip(plain, requests, strict=True):
            drafted = request.stats.drafted or len(one.output_ids) < 2
            assert_same(outcome_of(one), outcome_of(request), drafted=int(drafted))
            assert request.stats.replay_mismatches == 0
            for name in ("accepted", "rejected", "discarded", "shared_forwards"):
                counts[name] += getattr(request.stats, name)

    check()
    assert len(+counts) == 4, counts


@pytest.mark.parametrize("drafter", ["window", "suffix", "resync"])
def test_real_drafters(drafter: str) -> None:
    for field, value in (("repetition_penalty", 1.05), ("frequency_penalty", 0.01)):
        world = World(branching=0)
        sampling = SamplingParams(max_tokens=80, logprobs=2, **{field: value})
        request = world.run(PROMPT, sampling, SpeculativeConfig(drafter, 4))
        plain = outcome_of(world.run(PROMPT, sampling))
        assert_same(plain, outcome_of(request), drafted=request.stats.drafted)
        assert request.stats.accepted > 0
