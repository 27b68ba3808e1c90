"""The window drafter: examples of the rule, and equality with the scan as one would write it."""

from __future__ import annotations

import time

from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftproof.drafting import NO_DRAFT, Draft, WindowDrafter


def naive_scan(history: list[int], k: int) -> Draft:
    """The rule, word for word: windows of 8 down to 3, earliest start s, s + w + 1 <= n - w."""
    n = len(history)
    for w in range(8, 2, -1):
        window = history[n - w :]
        for s in range(n):
            if w <= n and s + w + 1 <= n - w and history[s : s + w] == window:
                return Draft(tuple(history[s + w : s + w + k]), "window", w)
    return NO_DRAFT


def propose(history: list[int], k: int) -> Draft:
    drafter = WindowDrafter()
    drafter.start(history)
    return drafter.propose(history, k)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=20),
    st.integers(1, 20),
)
@example([1] * 40, [[1]] * 8, 4)
@example([1, 2, 3, 9, 1, 2, 3], [], 63)
@example([1, 2, 3, 1, 2, 3], [], 4)
def test_equals_the_naive_scan_at_every_step(
    prompt: list[int], steps: list[list[int]], k: int
) -> None:
    drafter = WindowDrafter()
    drafter.start(prompt)
    history = list(prompt)
    assert drafter.propose(history, k) == naive_scan(history, k)
    for tokens in steps:
        history += tokens
        assert drafter.propose(history, k) == naive_scan(history, k)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2**17, 151_935, 2**31 - 1]), max_size=60), st.integers(1, 8))
def test_large_ids_do_not_collide(history: list[int], k: int) -> None:
    assert propose(history, k) == naive_scan(history, k)


def test_nothing_to_find() -> None:
    for history in ([], [1], [1, 2, 3], list(range(50)), [1, 2, 3, 1, 2, 3]):
        assert propose(history, 4) == NO_DRAFT


def test_the_window_and_its_first_follower_end_before_the_current_window() -> None:
    assert propose([1, 2, 3, 9, 1, 2, 3], 4) == Draft((9, 1, 2, 3), "window", 3)
    assert propose([1, 2, 3, 1, 2, 3], 4) == NO_DRAFT


def test_the_earliest_occurrence_wins() -> None:
    history = [1, 2, 3, 7, 0, 1, 2, 3, 8, 4, 1, 2, 3]
    assert propose(history, 1) == Draft((7,), "window", 3)


def test_a_longer_window_wins_over_an_earlier_shorter_one() -> None:
    history = [2, 3, 4, 7, 1, 2, 3, 4, 8, 1, 2, 3, 4]
    assert propose(history, 1) == Draft((8,), "window", 4)


def test_windows_end_at_eight() -> None:
    block = list(range(10, 22))
    draft = propose([*block, 5, *block], 1)
    assert draft == Draft((5,), "window", 8)


def test_the_draft_is_clipped_at_the_end_of_history() -> None:
    assert propose([1, 2, 3, 9, 1, 2, 3], 63).tokens == (9, 1, 2, 3)


def test_one_word_repeated() -> None:
    assert propose([4] * 7, 4) == Draft((4, 4, 4, 4), "window", 3)
    assert propose([4] * 17, 16) == Draft((4,) * 9, "window", 8)


def test_work_per_token_does_not_grow_with_history() -> None:
    def per_step(length: int) -> float:
        history = [(i * i * 31 + i // 7) % 997 for i in range(length)]
        drafter = WindowDrafter()
        drafter.start(history)
        times = []
        for i in range(200):
            history.append(i % 13)
            begin = time.perf_counter()
            drafter.propose(history, 8)
            times.append(time.perf_counter() - begin)
        return sorted(times)[100]

    assert per_step(30_000) < 10 * per_step(1_000) + 20e-6
