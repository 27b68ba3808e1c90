"""The step loop: shared batches, prefill in chunks, memory, refusals, and its speed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from engine_support import VOCAB, World, assert_stats_add_up, oracle, outcome_of
from fake_native import FakeKvCache, NullPlayer
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.config import SpeculativeConfig
from draftproof.engine import Engine
from draftproof.errors import ContextLengthError, InvalidRequestError, OutOfMemoryError
from draftproof.request import Request, SamplingParams

PROMPTS = ([3, 7, 1, 9, 3, 7, 1, 9, 3, 7, 1, 4, 2], [5, 5, 5, 5, 5, 5, 5, 5], [20], [8, 2] * 9)
GREEDY = SamplingParams(max_tokens=40)
SEEDED = SamplingParams(max_tokens=33, temperature=0.7, seed=5)


@pytest.mark.parametrize("verify", ["exact", "replay"])
def test_requests_that_share_a_batch_equal_each_alone(verify: str) -> None:
    world = World(num_pages=400, branching=19)
    spec = SpeculativeConfig("window", 8, verify)
    asked = [(prompt, sampling) for prompt in PROMPTS for sampling in (GREEDY, SEEDED)]
    alone = [outcome_of(world.run(prompt, sampling)) for prompt, sampling in asked]
    world.player.batches.clear()
    requests = [world.request(prompt, sampling, spec) for prompt, sampling in asked]
    world.run_all(requests)
    assert [outcome_of(request) for request in requests] == alone
    assert sum(request.stats.drafted for request in requests) > 30
    # They did travel together: fewer steps than the longest two answers need.
    assert len(world.player.batches) < 2 * 40 * (2 if verify == "replay" else 1)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
            st.integers(1, 20),
            st.integers(1, 63),
            st.sampled_from(["exact", "replay"]),
            st.sampled_from([0.0, 0.8]),
        ),
        min_size=2,
        max_size=5,
    ),
    st.integers(1, 40),
    st.integers(64, 80),
)
def test_any_mix_equals_each_alone(asked: list[Any], chunk: int, max_rows: int) -> None:
    """Requests of any kind, prefill chunk and row budget; the pool is too small for all at once."""
    world = World(num_pages=60, prefill_chunk=chunk, max_rows=max_rows)
    plain_world = World()
    plain, requests = [], []
    for prompt, limit, k, verify, temperature in asked:
        sampling = SamplingParams(max_tokens=limit, temperature=temperature, seed=1)
        lone = plain_world.run(prompt, sampling)
        plain.append(outcome_of(lone))
        spec = oracle(lone.output_ids, k, verify=verify, acceptance=0.8)
        requests.append(world.request(prompt, sampling, spec))
    world.run_all(requests)
    assert [outcome_of(request) for request in requests] == plain


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 256])
def test_prefill_chunks(chunk: int) -> None:
    prompt = [(5 * i * i + i) % VOCAB for i in range(90)]
    whole = outcome_of(World(context=200).run(prompt, GREEDY))
    world = World(context=200, prefill_chunk=chunk)
    assert outcome_of(world.run(prompt, GREEDY)) == whole
    assert max(world.player.batches) == min(chunk, 90)
    assert world.player.batches.count(1) >= 39


def test_a_long_prompt_does_not_stop_a_running_answer() -> None:
    world = World(prefill_chunk=8, num_pages=200)
    first = world.request([3, 1], GREEDY)
    world.engine.add(first)
    for _ in range(5):
        world.engine.step()
    second = world.request([(7 * i) % VOCAB for i in range(80)], GREEDY)
    world.engine.add(second)
    for _ in range(10):
        before = first.num_output
        world.engine.step()
        assert first.num_output == before + 1
    assert second.num_output == 1


def test_one_request_fails_and_the_others_go_on() -> None:
    alone = World(num_pages=200).run(PROMPTS[0], GREEDY)
    world = World(num_pages=200, fails_at=lambda tokens: tokens[:2] == [5, 5] and len(tokens) > 12)
    good, bad = world.request(PROMPTS[0], GREEDY), world.request(PROMPTS[1], GREEDY)
    world.run_all([good, bad])
    assert bad.finish_reason == "numeric_error"
    assert bad.num_output == 5
    assert outcome_of(good) == outcome_of(alone)


@pytest.mark.parametrize("chunk", [3, 256])
def test_a_prompt_that_fails(chunk: int) -> None:
    world = World(prefill_chunk=chunk, fails_at=lambda tokens: len(tokens) == 2)
    request = world.run(PROMPTS[0], GREEDY)
    assert request.finish_reason == "numeric_error"
    assert request.num_output == 0


def test_abort_frees_pages_and_spares_the_others() -> None:
    world = World(num_pages=200)
    alone = outcome_of(world.run(PROMPTS[0], GREEDY))
    stays, goes, waits = (world.request(PROMPTS[0], GREEDY) for _ in range(3))
    world.engine.add(stays)
    world.engine.add(goes)
    for _ in range(6):
        world.engine.step()
    world.engine.add(waits)
    world.engine.abort(goes)
    world.engine.abort(waits)
    while world.engine.has_work:
        world.engine.step()
    assert goes.num_output == 6
    assert waits.num_output == 0
    assert outcome_of(stays) == alone
    assert world.engine.pool.num_free == 200


def test_a_request_waits_while_the_pool_is_promised_to_others() -> None:
    world = World(num_pages=16)  # 64 positions
    requests = [world.request(PROMPTS[0], GREEDY) for _ in range(3)]
    alone = outcome_of(World().run(PROMPTS[0], GREEDY))
    world.run_all(requests)
    assert [outcome_of(request) for request in requests] == [alone] * 3
    assert max(world.player.batches[1:]) == len(PROMPTS[0])


def test_a_step_that_fails_leaves_no_trace() -> None:
    world = World()
    alone = outcome_of(world.run(PROMPTS[0], GREEDY))
    request = world.request(PROMPTS[0], GREEDY, SpeculativeConfig("window", 4))
    world.engine.add(request)
    forward = world.player.forward
    for i in range(200):
        if i % 3 == 1 and world.engine.has_work:

            def broken(*_: object) -> None:
                raise MemoryError("no scratch")

            world.player.forward = broken  # type: ignore[assignment,method-assign]
            with pytest.raises(MemoryError):
                world.engine.step()
            world.player.forward = forward  # type: ignore[method-assign]
        world.engine.step()
    assert outcome_of(request) == alone
    assert_stats_add_up(request.stats, request.num_output)


def test_a_drafter_is_not_trusted() -> None:
    world = World()
    alone = world.run(PROMPTS[0], GREEDY)
    wild = [*alone.output_ids[:7], 99, -5, VOCAB, *alone.output_ids[10:]]
    request = world.run(PROMPTS[0], GREEDY, oracle(wild, 8))
    assert outcome_of(request) == outcome_of(alone)
    assert request.stats.drafted > 0


def refusal(kind: type[Exception], world: World, prompt: list[int], **sampling: Any) -> str:
    with pytest.raises(kind) as caught:
        world.engine.add(world.request(prompt, SamplingParams(**sampling)))
    assert not world.engine.has_work
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals() -> None:
    world = World(context=128, num_pages=10)
    assert "empty" in refusal(InvalidRequestError, world, [])
    assert "0..23" in refusal(InvalidRequestError, world, [1, VOCAB])
    assert "0..23" in refusal(InvalidRequestError, world, [1, -1])
    message = refusal(ContextLengthError, world, [1] * 128)
    assert "128 tokens" in message
    assert "context 128" in message
    message = refusal(OutOfMemoryError, world, [1, 2], max_tokens=60)
    assert "62" in message
    assert "40" in message


@pytest.mark.parametrize("drafter", ["off", "window"])
def test_python_takes_at_most_a_fifth_of_a_millisecond_per_step(drafter: str) -> None:
    """Against a player that answers at once, drafting included: the median of 1,000 steps."""
    kv: Any = FakeKvCache(300, 16)
    player: Any = NullPlayer()
    engine = Engine(
        player,
        kv,
        context=4096,
        vocab_size=VOCAB,
        max_rows=256,
        max_logit_rows=64,
        prefill_chunk=256,
    )
    prompt = [(i * i * 7 + i // 3) % VOCAB for i in range(2000)]
    request = Request(prompt, SamplingParams(max_tokens=2000), SpeculativeConfig(drafter, 4))
    engine.add(request)
    while not request.num_output:
        engine.step()
    times = []
    for _ in range(350):
        begin = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begin)
    times.sort()
    assert request.finish_reason is None
    assert times[len(times) // 2] < 0.2e-3
