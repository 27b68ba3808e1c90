"""The prefix cache: a hit has the bits of computing it again; who shares, who doesn't, who goes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from engine_support import OFF, VOCAB, World, oracle, outcome_of
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.config import SpeculativeConfig
from draftproof.engine import scheduler
from draftproof.request import Request, SamplingParams

GREEDY = SamplingParams(max_tokens=12)
SEEDED = SamplingParams(max_tokens=12, temperature=0.8, seed=3)
LONG = [(5 * i * i + i) % VOCAB for i in range(42)]


def world(**options: Any) -> World:
    return World(prefix_cache=True, **options)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("spec", [OFF, SpeculativeConfig("window", 4)], ids=["off", "window"])
def test_a_hit_has_the_bits_of_computing_again(
    sampling: SamplingParams, spec: SpeculativeConfig
) -> None:
    cold = outcome_of(World().run(LONG, sampling))
    one = world(prefill_chunk=16)
    first, again = one.run(LONG, sampling, spec), one.run(LONG, sampling, spec)
    assert outcome_of(first) == outcome_of(again) == cold
    assert first.num_cached == 0
    assert again.num_cached == len(LONG) - 1  # the last row is computed for its logits
    if spec is not OFF:
        assert min(first.stats.drafted, again.stats.drafted) > 0


def test_the_next_turn_finds_the_answer_too_and_no_rejected_draft() -> None:
    one = world()
    turn = one.run(LONG, GREEDY, SpeculativeConfig("window", 8))
    wrong = one.run(LONG, GREEDY, oracle([0] * 30, 8))
    assert wrong.stats.rejected + turn.stats.rejected > 8
    follow = [*turn.tokens, 3, 1, 4, 1, 5]
    cold = outcome_of(World().run(follow, SEEDED))
    hit = one.run(follow, SEEDED, oracle(cold.token_ids, 4, acceptance=0.7))
    assert outcome_of(hit) == cold
    assert hit.num_cached == len(turn.tokens) - 1
    assert hit.stats.rejected > 0


def test_a_changed_first_line_costs_what_is_behind_it() -> None:
    one = world()
    one.run(LONG, GREEDY)
    changed = one.run([*LONG[:17], 23, *LONG[18:]], GREEDY)
    assert changed.num_cached == 17


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    one = world(prefill_chunk=8)
    request = one.request(LONG, GREEDY)
    one.engine.add(request)
    for _ in range(3):
        one.engine.step()
    one.engine.abort(request)
    assert one.engine.step() == []
    again = one.run(LONG, GREEDY)
    assert again.num_cached == 24
    assert outcome_of(again) == outcome_of(World().run(LONG, GREEDY))


def test_salts_and_contents_keep_apart() -> None:
    one = world()
    image = {i: ("image", 7, i) for i in range(10, 20)}
    assert one.run(LONG, GREEDY, cache_salt="a").num_cached == 0
    assert one.run(LONG, GREEDY, cache_salt="b").num_cached == 0
    assert one.run(LONG, GREEDY, content_keys=image).num_cached == 0
    other = {i: ("image", 8, i) for i in range(10, 20)}
    assert one.run(LONG, GREEDY, content_keys=other).num_cached == 10
    assert one.run(LONG, GREEDY, content_keys=image).num_cached == 41
    assert one.run(LONG, GREEDY, cache_salt="a").num_cached == 41
    assert one.run(LONG, GREEDY).num_cached == 10


def test_what_failed_is_not_kept() -> None:
    one = world(fails_at=lambda tokens: len(tokens) == 30)
    assert one.run(LONG, GREEDY).finish_reason == "numeric_error"
    assert one.engine.pool.num_free == one.num_pages


def test_copies_in_one_batch_compute_the_prompt_once() -> None:
    alone = outcome_of(World().run(LONG, GREEDY))
    one = world(num_pages=200, prefill_chunk=16)
    copies = [one.request(LONG, GREEDY) for _ in range(5)]
    one.run_all(copies)
    assert [outcome_of(copy) for copy in copies] == [alone] * 5
    assert copies[0].num_cached == 0
    assert all(copy.num_cached == 40 for copy in copies[1:])
    assert one.engine.totals.prompt_tokens == 42 + 4 * 2


def test_side_requests_do_not_evict_a_chat() -> None:
    one = world(num_pages=40)
    chat = list(LONG)
    for _ in range(3):
        chat = [*one.run(chat, GREEDY).tokens, 1, 2]
    for i in range(30):
        side = [(i * 7 + 3 * j * j + 1) % VOCAB for j in range(30)]
        one.run([i % VOCAB, *side], GREEDY)
    assert one.engine.prefix_cache is not None
    assert one.engine.prefix_cache.stats.evictions > 100
    assert one.run(chat, GREEDY).num_cached == len(chat) - 3


def test_a_chat_that_was_left_makes_room_for_others() -> None:
    one = world(num_pages=40)

    def talk(first: int, turns: int) -> tuple[list[int], int]:
        chat, cached = [first, *LONG[:20]], 0
        for _ in range(turns):
            request = one.run(chat, GREEDY)
            cached += request.num_cached
            chat = [*request.tokens, 1, 2]
        return chat, cached

    left, _ = talk(0, 4)
    for first in range(1, 5):
        _, cached = talk(first, 4)
        assert cached > 100  # the newest chat always finds its turns
    assert one.run(left, GREEDY).num_cached < 8


def test_making_room_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promises far below the need: the youngest go back to the queue, several times over."""
    monkeypatch.setattr(scheduler, "PROMISED_ANSWER", 3)
    for cached in (False, True):
        prompts = [[i, *LONG[: 5 + i]] for i in range(6)]
        asked = [SamplingParams(max_tokens=60, temperature=0.5 * (i % 2), seed=i) for i in range(6)]
        alone = [outcome_of(World().run(p, s)) for p, s in zip(prompts, asked, strict=True)]
        one = World(num_pages=24, prefix_cache=cached)
        specs = [OFF, SpeculativeConfig("window", 6), SpeculativeConfig("window", 6, "replay")]
        requests = [
            one.request(p, s, specs[i % 3])
            for i, (p, s) in enumerate(zip(prompts, asked, strict=True))
        ]
        one.run_all(requests)
        assert [outcome_of(request) for request in requests] == alone
        assert one.engine.scheduler.preemptions > 3
        assert all(r.stats.drafted > 0 for i, r in enumerate(requests) if i % 3)
        assert sum(r.stats.rejected for r in requests) > 0
        assert not cached or one.engine.prefix_cache.stats.hits > 3  # type: ignore[union-attr]
        assert requests[0].time_last == min(r.time_last for r in requests[::3])


REQUESTS = st.tuples(
    st.lists(st.integers(0, 2), min_size=1, max_size=8),  # what the prompt is made of
    st.sampled_from([1, 7, 25, 60, 60]),  # max_tokens
    st.sampled_from([0.0, 0.9]),
    st.sampled_from(["off", "window", "replay"]),
    st.sampled_from([0, 0, 1, 2, 6]),  # steps before the next one comes
    st.sampled_from([None, None, None, 2, 9]),  # cancelled after so many steps
)


def test_no_neighbour_changes_a_bit() -> None:
    """Random mixes on a small pool, with prefixes in common, cancelled ones, and preemption."""
    parts = ([3, 7, 1, 9, 4], [8, 8, 8, 8, 8, 8, 8], [5, 1, 2])
    counts: Counter[str] = Counter()

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(REQUESTS, min_size=4, max_size=10),
        st.sampled_from([20, 20, 24, 30, 60]),
        st.integers(1, 30),
        st.sampled_from([1, 2, 3, 8, 40]),  # few: they will be preempted
    )
    def check(asked: list[Any], num_pages: int, chunk: int, promised: int) -> None:
        plain = World(context=80)
        one = world(num_pages=num_pages, prefill_chunk=chunk, context=80)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "PROMISED_ANSWER", promised)
            running: list[tuple[Request, Request, int | None]] = []
            steps = 0
            for pieces, limit, temperature, drafter, pause, cancel in asked:
                prompt = [token for piece in pieces for token in parts[piece]]
                sampling = SamplingParams(max_tokens=limit, temperature=temperature, seed=11)
                spec = OFF if drafter == "off" else SpeculativeConfig("window", 5)
                if drafter == "replay":
                    spec = SpeculativeConfig("window", 5, "replay")
                request = one.request(prompt, sampling, spec)
                one.engine.add(request)
                until = None if cancel is None else steps + cancel
                running.append((request, plain.run(prompt, sampling), until))
                for _ in range(pause):
                    steps = _step(one, running, steps)
            while one.engine.has_work:
                steps = _step(one, running, steps)
        for request, lone, _ in running:
            if request.finish_reason is not None:
                assert outcome_of(request) == outcome_of(lone)
                counts["cached"] += request.num_cached
                counts["rejected"] += request.stats.rejected
                counts["shared"] += request.stats.shared_forwards
            else:
                assert request.cancelled
                assert request.output_ids == lone.output_ids[: request.num_output]
                counts["cancelled"] += request.num_output > 0
        pool = one.engine.pool
        assert pool.num_available == pool.num_unreserved == num_pages
        counts["preemptions"] += one.engine.scheduler.preemptions

    check()
    for name in ("cached", "rejected", "shared", "cancelled", "preemptions"):
        assert counts[name] > 0, name


def _step(one: World, running: list[tuple[Request, Request, int | None]], steps: int) -> int:
    for request, _, until in running:
        if until == steps and request.finish_reason is None:
            one.engine.abort(request)
    one.engine.step()
    return steps + 1
