"""The shared draft budget against trying every split, and what eight streams may draft."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.drafting import allot
from draftproof.drafting.verify_cost import VerifyCost

COST = VerifyCost().cost
Chances = st.lists(
    st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda c: sorted(c, reverse=True)), max_size=4
)


@given(Chances, st.floats(1.0, 20.0), st.integers(1, 12))
def test_no_other_split_gains_more(chances: list[list[float]], speed: float, rows: int) -> None:
    def gain(counts: tuple[int, ...]) -> float:
        expected = sum(sum(c[:k]) for c, k in zip(chances, counts, strict=True))
        return expected - speed * (COST(rows + sum(counts)) / COST(rows) - 1.0)

    counts = tuple(allot(chances, speed, COST, rows))
    every = itertools.product(*(range(len(c) + 1) for c in chances))
    assert gain(counts) >= max(gain(other) for other in every) - 1e-9


def test_one_stream_drafts_far_and_eight_do_not_draft_into_the_dear_region() -> None:
    draft = [0.9**i for i in range(1, 16)]
    assert allot([draft], 1.0, COST, 1)[0] > 6
    eight = allot([draft] * 8, 8.0, COST, 8)
    assert 0 < sum(eight) < 40
    assert max(eight) - min(eight) <= 1
    poor = [0.4**i for i in range(1, 16)]
    mixed = allot([draft, *[poor] * 7], 8.0, COST, 8)
    assert mixed[0] > 1
    assert sum(mixed[1:]) == 0


@pytest.mark.parametrize("chances", [[], [[]], [[], []]])
def test_nothing_to_allot(chances: list[list[float]]) -> None:
    assert allot(chances, 3.0, COST, 3) == [0] * len(chances)
