"""SuffixIndex against its slow twin and within its bounds; the suffix drafter; the store."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest
import suffix_twin as twin
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof._native import SuffixDraft, SuffixIndex
from draftproof.drafting import NO_DRAFT, Draft
from draftproof.drafting.store import RequestStore
from draftproof.drafting.suffix import LOWEST_ACCEPTANCE, TOKENS_PER_MATCHED, SuffixDrafter

MAX_UPDATES = 64
STREAMS: dict[str, Callable[[int], int]] = {
    "all equal": lambda _: 7,
    "period 2": lambda i: i & 1,
    "random over 2": lambda i: random.Random(i).getrandbits(1),
    "random over 150000": lambda i: random.Random(i).randrange(150_000),
}


def stream(name: str, begin: int, end: int) -> list[int]:
    return [STREAMS[name](i) for i in range(begin, end)]


def index_of(tokens: Sequence[int]) -> SuffixIndex:
    index = SuffixIndex()
    index.append(tokens)
    return index


def facts(draft: SuffixDraft, base: int = 0) -> twin.TwinDraft:
    return twin.TwinDraft(
        draft.length,
        draft.source - base if draft.count else 0,
        draft.count,
        draft.tokens,
        draft.support,
        draft.voters,
    )


def check(index: SuffixIndex, history: twin.Timeline, k: int, candidates: int) -> None:
    """The index of `history`, asked for its own end."""
    recent, frequent = index.drafts(k, max_candidates=candidates)
    assert facts(recent, index.begin) == twin.draft(history, history, k, own=True)
    assert facts(frequent, index.begin) == twin.draft(
        history, history, k, own=True, max_candidates=candidates
    )


# ---- the index: the same answers as the twin

symbols = st.integers(1, 4).flatmap(
    lambda n: st.lists(
        st.one_of(
            st.lists(st.integers(0, n - 1), min_size=1, max_size=12),
            st.tuples(st.integers(0, n - 1), st.integers(20, 60)).map(lambda r: [r[0]] * r[1]),
            st.just("break"),
            st.just("drop"),
            st.tuples(st.just("truncate"), st.floats(0, 1)),
        ),
        max_size=14,
    )
)


@settings(max_examples=300, deadline=None)
@given(symbols, st.lists(st.integers(0, 3), max_size=8), st.integers(0, 9), st.integers(1, 17))
def test_equals_the_twin_after_every_change(
    changes: list[object], asked: list[int], k: int, candidates: int
) -> None:
    index, history, base = SuffixIndex(), list[int | None](), 0
    foreign = index_of(asked)
    for change in changes:
        if isinstance(change, list):
            index.append(change)
            history += change
        elif change == "break":
            index.append_break()
            history.append(None)
        elif change == "drop":
            index.drop_first_run()
            gone = history.index(None) + 1 if None in history else 0
            del history[:gone]
            base += gone
        elif isinstance(change, tuple):
            length = int(change[1] * len(history))
            index.truncate(base + length)
            del history[length:]
        assert (index.begin, index.end) == (base, base + len(history))
        check(index, history, k, candidates)
        recent, frequent = index.drafts(k, foreign, candidates)
        assert facts(recent, base) == twin.draft(history, asked, k, own=False)
        assert facts(frequent, base) == twin.draft(
            history, asked, k, own=False, max_candidates=candidates
        )
    assert index.max_append_updates <= MAX_UPDATES


@pytest.mark.parametrize("period", [1, 2, 3, 31, 64])
def test_equals_the_twin_on_long_periods(period: int) -> None:
    draws = random.Random(period)
    history = [draws.randrange(5) for _ in range(period)] * (200 // period + 1)
    for place in (40, 90, 150):
        history[place] = 9
    index = SuffixIndex()
    for i, token in enumerate(history):
        index.append([token])
        if i % 17 == 0:
            check(index, history[: i + 1], 5, 16)


def test_a_match_has_no_upper_limit_and_is_exact() -> None:
    block = list(range(5000))
    for length in (*range(1, 140), 1023, 1024, 1025, 4096, 4999, 5000):
        match = index_of([*block, 20_001, 20_002, *block[5000 - length :]]).longest_match()
        assert (match.length, match.source, match.count) == (length, 5000, 1)


def test_large_ids_do_not_collide() -> None:
    ids = [0, 1, 2**17, 151_935, 2**31 - 1]
    history = random.Random(3).choices(ids, k=400)
    check(index_of(history), history, 8, 16)


def test_bad_arguments_change_nothing() -> None:
    index = index_of([1, 2, 1])
    with pytest.raises(ValueError, match=">= 0"):
        index.append([3, -1])
    with pytest.raises(IndexError, match="truncate"):
        index.truncate(4)
    with pytest.raises(ValueError, match="max_candidates"):
        index.drafts(4, max_candidates=0)
    broken = index_of([1])
    broken.append_break()
    with pytest.raises(ValueError, match="breaks"):
        index.drafts(4, broken)
    check(index, [1, 2, 1], 4, 16)


# ---- the index: undo, work, memory


@pytest.mark.parametrize("name", STREAMS)
def test_truncated_equals_never_appended(name: str) -> None:
    kept, gone, later = stream(name, 0, 3000), stream(name, 9000, 11_500), stream(name, 3100, 3400)
    undone = index_of(kept)
    for token in gone:
        undone.append([token])
    undone.truncate(len(kept))
    fresh = index_of(kept)
    for token in later:
        assert [facts(d) for d in undone.drafts(6)] == [facts(d) for d in fresh.drafts(6)]
        undone.append([token])
        fresh.append([token])
    assert undone.memory_bytes <= fresh.memory_bytes + 2 * SuffixIndex.chunk_tokens * 30


@pytest.mark.parametrize("name", STREAMS)
def test_work_and_memory_are_bounded(name: str) -> None:
    n, k = 100_000, 63
    index = index_of(stream(name, 0, n))
    times = []
    for token in stream(name, n, n + 200):
        begin = time.perf_counter()
        index.append([token])
        index.drafts(k)
        times.append(time.perf_counter() - begin)
    assert index.max_append_updates <= MAX_UPDATES
    log = math.log2(n)
    # Descent: 1.44 log n nodes of 2 log n blocks; range: 2 blocks per node; votes: k of 16 voters.
    assert index.max_query_reads <= 1.45 * log * (2 * log + 1) + 4.5 * log + 16 * (2 * log + k)
    assert index.memory_bytes <= SuffixIndex.bytes_per_token * (n + 2 * SuffixIndex.chunk_tokens)
    assert SuffixIndex.bytes_per_token <= 32
    assert sorted(times)[100] < 200e-6
    index.truncate(0)
    assert index.memory_bytes <= 2 * SuffixIndex.bytes_per_token * SuffixIndex.chunk_tokens


def test_dropped_runs_give_their_memory_back() -> None:
    index = SuffixIndex()
    for run in range(200):
        index.append([(run * 31 + i * i) % 500 for i in range(700)])
        index.append_break()
        if run >= 4:
            index.drop_first_run()
    assert index.end - index.begin == 4 * 701
    assert index.memory_bytes <= SuffixIndex.bytes_per_token * (4 * 701 + 3 * 1024)


# ---- the drafter


def drafter_after(prompt: Sequence[int]) -> SuffixDrafter:
    drafter = SuffixDrafter()
    drafter.start(prompt)
    return drafter


def test_a_cycle_drafts_past_the_end_of_history() -> None:
    history = [1, 2, 3] * 15
    draft = drafter_after(history).propose(history, 63)
    assert draft == Draft(tuple([1, 2, 3] * 21), "suffix", 42)


def test_the_draft_grows_with_the_match() -> None:
    text = list(range(100, 200))
    for length in (4, 5, 9, 20):
        history = [*text, 7, *text[:length]]
        draft = drafter_after(history).propose(history, 63)
        assert draft.match_length == length
        assert draft.tokens == tuple(text[length : length + TOKENS_PER_MATCHED * length])
        assert drafter_after(history).propose(history, 3).tokens == draft.tokens[:3]


def test_nothing_to_draft() -> None:
    for history in ([1], [1, 2, 3], list(range(50))):
        assert drafter_after(history).propose(history, 4) == NO_DRAFT
    assert drafter_after([1, 2] * 9).propose([1, 2] * 9, 0) == NO_DRAFT


def test_history_may_grow_by_any_number_of_tokens() -> None:
    text = random.Random(5).choices(range(6), k=120)
    stepwise = drafter_after(text[:10])
    done = 10
    for step in (1, 5, 1, 20, 3, 60, 20):
        done += step
        draft = stepwise.propose(text[:done], 4)
        again = stepwise.propose(text[:done], 4)
        assert draft == again


def test_learns_which_continuation_is_better() -> None:
    """After 5, 6 comes mostly 1, every third time 2: the last one misleads, the vote doesn't."""

    def first_tokens(follower: Callable[[int], int]) -> list[int]:
        history, seen = [900], list[int]()
        drafter = drafter_after(history)
        for i in range(60):
            history += [1000 + i, 5, 6]  # the context never reaches further back than 5, 6
            draft = drafter.propose(history, 1)
            seen.append(draft.tokens[0] if draft.tokens else -1)
            history.append(follower(i))
            drafter.propose(history, 1)
        return seen

    mostly_one = first_tokens(lambda i: 2 if i % 3 == 2 else 1)
    assert mostly_one[-20:].count(1) == 20
    in_phases = first_tokens(lambda i: 1 if i < 20 else 2)
    assert in_phases[-20:].count(2) == 20


def test_short_matches_that_miss_are_not_drafted_and_come_back() -> None:
    draws = random.Random(2)
    history = [draws.randrange(40) for _ in range(400)]
    drafter = drafter_after(history)
    drafted = 0
    for _ in range(200):
        drafted += bool(drafter.propose(history, 4).tokens)
        history.append(draws.randrange(40))
    assert drafted < 20
    phrase = [50, 51, 52, 53, 54]
    accepted = 0
    for i in range(60):
        draft = drafter.propose(history, 1)
        history.append(phrase[i % 5])
        accepted += draft.tokens[:1] == (history[-1],)
    assert accepted > 40
    assert 0 < LOWEST_ACCEPTANCE < 1


def test_a_step_stays_cheap_at_any_length() -> None:
    def median_step(length: int) -> float:
        history = stream("random over 2", 0, length)
        drafter = drafter_after(history)
        times = []
        for token in stream("random over 2", length, length + 200):
            history.append(token)
            begin = time.perf_counter()
            drafter.propose(history, 8)
            times.append(time.perf_counter() - begin)
        return sorted(times)[100]

    assert median_step(1_000) < 160e-6
    assert median_step(100_000) < 160e-6


# ---- the store

TEXT = list(range(300, 340))


def test_a_finished_request_is_drafted_from() -> None:
    store = RequestStore()
    first = SuffixDrafter(store, "tenant")
    first.start(TEXT[:10])
    assert first.propose(TEXT[:10], 8) == NO_DRAFT
    first.finish(TEXT)
    second = SuffixDrafter(store, "tenant")
    second.start(TEXT[:12])
    assert second.propose(TEXT[:12], 8) == Draft(tuple(TEXT[12:20]), "store", 12)
    # It ends where the remembered request ended.
    third = SuffixDrafter(store, "tenant")
    third.start(TEXT[:38])
    assert third.propose(TEXT[:38], 8).tokens == (338, 339)


def test_the_own_history_wins_unless_the_store_knows_more() -> None:
    store = RequestStore()
    store.add("", [1, 2, 3, 4, 99])
    drafter = SuffixDrafter(store)
    history = [9, 2, 3, 4, 55, 8, 2, 3, 4]
    drafter.start(history)
    assert drafter.propose(history, 1) == Draft((55,), "suffix", 3)
    store.add("", [8, 2, 3, 4, 77])
    assert drafter.propose(history, 1) == Draft((77,), "store", 4)


def test_scopes_never_see_each_other() -> None:
    store = RequestStore()
    store.add("a", TEXT)
    for scope in ("", "b", "A", "a "):
        drafter = SuffixDrafter(store, scope)
        drafter.start(TEXT[:12])
        assert drafter.propose(TEXT[:12], 8) == NO_DRAFT
    forgetful = SuffixDrafter(None, "a")
    forgetful.start(TEXT[:12])
    assert forgetful.propose(TEXT[:12], 8) == NO_DRAFT
    forgetful.finish([*TEXT, 1])
    assert store.requests == 1


def test_a_store_draft_never_crosses_requests() -> None:
    store = RequestStore()
    store.add("", [1, 2, 3])
    store.add("", [4, 5, 6, 7])
    found = store.drafts("", index_of([1, 2]), 8)
    assert found is not None
    assert found[0].tokens == (3,)
    found = store.drafts("", index_of([3, 4, 5]), 8)
    assert found is not None
    assert (found[0].length, found[0].tokens) == (2, (6, 7))


def test_the_oldest_go_and_memory_stays_bounded() -> None:
    limit = 40_000
    store = RequestStore(limit)
    draws = random.Random(4)
    added = []
    for i in range(120):
        tokens = [i, *(draws.randrange(1000) for _ in range(draws.randrange(3, 3000))), i]
        scope = f"s{i % 5}"
        store.add(scope, tokens)
        added.append((scope, tokens))
        assert store.memory_bytes <= 1.1 * limit * SuffixIndex.bytes_per_token
    held = store.requests
    assert 3 < held < 40
    for age, (scope, tokens) in enumerate(reversed(added)):
        found = store.drafts(scope, index_of(tokens[:-1]), 1)
        kept = found is not None and found[0].length == len(tokens) - 1
        assert kept == (age < held)
    store.clear()
    assert (store.requests, store.memory_bytes) == (0, 0)


def test_many_small_scopes_are_bounded_too() -> None:
    store = RequestStore(100_000)
    for i in range(200):
        store.add(f"scope {i}", TEXT)
    assert store.memory_bytes <= 1.1 * 100_000 * SuffixIndex.bytes_per_token
    assert 10 < store.requests < 100_000 / (2 * SuffixIndex.chunk_tokens)


def test_a_huge_request_keeps_its_end_and_a_tiny_store_keeps_nothing() -> None:
    store = RequestStore(20_000)
    tokens = list(range(50_000))
    store.add("", tokens)
    found = store.drafts("", index_of(tokens[-10:-1]), 4)
    assert found is not None
    assert found[0].tokens == (49_999,)
    assert store.memory_bytes <= 1.1 * 20_000 * SuffixIndex.bytes_per_token
    tiny = RequestStore(1000)
    tiny.add("", tokens)
    assert tiny.requests == 0


def test_threads_share_a_store() -> None:
    store = RequestStore(60_000)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            draws = random.Random(number)
            for _ in range(30):
                tokens = [draws.randrange(50) for _ in range(400)]
                drafter = SuffixDrafter(store, f"scope {number % 2}")
                drafter.start(tokens[:300])
                for end in range(300, 400, 3):
                    drafter.propose(tokens[:end], 8)
                drafter.finish(tokens)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.requests == 120
