"""Verification as a truth table."""

from __future__ import annotations

import itertools

import pytest

from draftproof.drafting import Draft
from draftproof.verification import Replay, VerifyResult, verify


@pytest.mark.parametrize(
    ("draft", "targets", "accepted", "bonus"),
    [
        ((), (7,), (), 7),
        ((), (-1,), (), -1),
        ((5,), (5, 6), (5,), 6),
        ((5,), (4, 6), (), 4),
        ((5, 6, 7), (5, 6, 7, 8), (5, 6, 7), 8),
        ((5, 6, 7), (5, 6, 9, 8), (5, 6), 9),
        ((5, 6, 7), (5, 9, 7, 8), (5,), 9),
        ((5, 6, 7), (9, 6, 7, 8), (), 9),  # what agrees after a disagreement counts for nothing
        ((5, 6, 7), (5, -1, 7, 8), (5,), -1),
        ((5, 6, 7), (5, 6, 7, -1), (5, 6, 7), -1),
        ((5, 6, 7), (5, 9, -1, -1), (5,), 9),  # a failed row behind the disagreement
        ((5, 5, 5), (5, 5, 5, 5), (5, 5, 5), 5),
    ],
)
def test_truth_table(
    draft: tuple[int, ...], targets: tuple[int, ...], accepted: tuple[int, ...], bonus: int
) -> None:
    result = verify(draft, targets)
    assert result == VerifyResult(accepted, bonus)
    assert result.tokens == (*accepted, bonus)


def test_equals_plain_decoding_for_every_small_model() -> None:
    """A model of two tokens is a function of the draft so far: all of them, all drafts of 3."""
    prefixes = [p for n in range(4) for p in itertools.product((0, 1), repeat=n)]
    for answers in itertools.product((0, 1), repeat=len(prefixes)):
        model = dict(zip(prefixes, answers, strict=True))
        for draft in itertools.product((0, 1), repeat=3):
            result = verify(draft, [model[draft[:i]] for i in range(4)])
            plain: tuple[int, ...] = ()
            for _ in result.tokens:
                plain = (*plain, model[plain])
            assert result.tokens == plain
            agreed = len(result.accepted)
            assert draft[:agreed] == result.accepted
            assert agreed == 3 or draft[agreed] != result.bonus


@pytest.mark.parametrize("targets", [(), (1,), (1, 2), (1, 2, 3, 4)])
def test_lengths_must_fit(targets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="2 draft tokens need 3 targets"):
        verify((1, 2), targets)


def test_replay_counts_rows_and_notices_differences() -> None:
    replay = Replay(Draft((5, 6, 7), "window"), (5, 6, 9))
    assert replay.check(5)
    assert not replay.is_complete
    assert not replay.check(4)
    assert replay.check(9)
    assert replay.is_complete
