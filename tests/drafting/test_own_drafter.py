"""A drafter from outside: taken by its name, checked at the door, unable to change anything."""

from __future__ import annotations

import pytest
from engine_support import OFF, World, assert_same, outcome_of

from draftproof.config import SpeculativeConfig
from draftproof.drafting import NO_DRAFT, Draft, make_drafter, register_drafter
from draftproof.errors import InvalidRequestError
from draftproof.sampling import SamplingParams


class Fives:
    def start(self, prompt: object) -> None:
        pass

    def propose(self, history: object, k: int) -> Draft:
        return Draft((5,) * k, "fives") if k else NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        pass


def test_a_registered_drafter_is_made_anew_for_each_request() -> None:
    with pytest.raises(InvalidRequestError, match="drafter must be one of"):
        SpeculativeConfig("fives_of_a_test")
    register_drafter("fives_of_a_test", Fives)
    config = SpeculativeConfig("fives_of_a_test", k=2)
    one, other = make_drafter(config), make_drafter(config)
    assert one is not other
    assert one.propose([1], 2).tokens == (5, 5)
    sampling = SamplingParams(max_tokens=60, temperature=0.8, seed=1)
    plain, drafted = (World().run([1, 5, 2], sampling, way) for way in (OFF, config))
    assert_same(outcome_of(plain), outcome_of(drafted), drafted=drafted.stats.drafted)
    assert drafted.stats.by_source["fives"]["accepted"] > 0
    assert drafted.stats.rejected > 0


@pytest.mark.parametrize("name", ["auto", "off", "two words", ""])
def test_names_that_cannot_be_taken(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="choose another name"):
        register_drafter(name, Fives)
