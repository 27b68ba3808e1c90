"""Who gets rows: running answers first, prompts without holding them up, nobody left waiting."""

from __future__ import annotations

import pytest
from engine_support import VOCAB, World, outcome_of

from draftproof.request import SamplingParams

GREEDY = SamplingParams(max_tokens=60)
LONG = [(7 * i + i // 5) % VOCAB for i in range(300)]


@pytest.mark.parametrize("streams", [1, 4])
def test_a_prompt_holds_no_answer_up_for_long(streams: int) -> None:
    world = World(context=400, num_pages=800)
    answers = [world.request([3, 1, i], GREEDY) for i in range(streams)]
    for answer in answers:
        world.engine.add(answer)
    for _ in range(4):
        world.engine.step()
    cost = world.engine.memory.verify_cost.cost
    prompt = world.request(LONG, GREEDY)
    world.engine.add(prompt)
    world.player.batches.clear()
    while not prompt.num_output:
        before = [answer.num_output for answer in answers]
        world.engine.step()
        assert [answer.num_output for answer in answers] == [n + 1 for n in before]
        assert cost(world.player.batches[-1], 0) <= cost(streams, 0) + 2.0
    assert len(world.player.batches) < 30  # and it gets on
    assert world.player.batches[0] > 12


def test_a_prompt_that_holds_nobody_up_gets_a_whole_chunk() -> None:
    world = World(context=400, num_pages=400)
    world.run(LONG, SamplingParams(max_tokens=1))
    assert world.player.batches == [256, 44]


def test_a_short_prompt_does_not_wait_for_a_long_one_and_both_end() -> None:
    world = World(context=400, num_pages=800, prefill_chunk=16)
    long, short = world.request(LONG, GREEDY), world.request([1, 2, 3], GREEDY)
    world.engine.add(long)
    world.engine.add(short)
    world.engine.step()
    assert short.num_output == 1
    assert long.session is not None
    assert long.session.length == 13
    # Ever new short ones don't stop the long one.
    more = []
    for i in range(40):
        more.append(world.request([i % VOCAB, 4], SamplingParams(max_tokens=3)))
        world.engine.add(more[-1])
        world.engine.step()
    assert long.num_output > 0
    while world.engine.has_work:
        world.engine.step()
    assert outcome_of(long) == outcome_of(World(context=400, num_pages=400).run(LONG, GREEDY))


def test_arrival_decides_and_no_more_than_max_running_take_part() -> None:
    world = World(num_pages=400, max_running=3)
    requests = [world.request([i, 2, 3], SamplingParams(max_tokens=5)) for i in range(9)]
    world.run_all(requests)
    starts = [request.time_start for request in requests]
    assert starts == sorted(starts)
    assert len(world.player.batches) == 15
    assert max(world.player.batches[1:5]) == 3
