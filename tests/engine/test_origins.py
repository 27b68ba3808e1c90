"""Who thought of a token: the origins that a stream tells, checked against the counts."""

from __future__ import annotations

import pytest

from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.drafting import NO_DRAFT, Draft
from draftproof.llm import LLM
from draftproof.outputs import Origin, TokenEvent
from draftproof.sampling import SamplingParams
from draftproof.verification import origins
from tiny_models import TinyModels

PROMPT = "one two three one two three one two"


def test_origins_of_a_step() -> None:
    draft = Draft((5, 6, 7), "suffix")
    assert origins(draft, 1, 4) == (Origin("suffix", 4), Origin("bonus", 4, (6, 7)))
    assert origins(draft, 3, 0)[-1] == Origin("bonus", 0)
    assert origins(NO_DRAFT, 0, 2) == (Origin("plain", 2),)


@pytest.fixture(scope="module")
def llm(tiny: TinyModels) -> LLM:
    from draftproof.models import load_model

    config = EngineConfig(threads=1)
    return LLM.of(load_model(tiny.path("qwen2", "Q8_0"), config), config)


@pytest.mark.parametrize("verify", ["exact", "replay"])
def test_a_stream_says_who_drafted_what(llm: LLM, verify: str) -> None:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = llm.generate(PROMPT, sampling, SpeculativeConfig("off"))
    way = SpeculativeConfig(
        "oracle", 5, verify, recording=plain.token_ids, acceptance=0.7, oracle_seed=3
    )
    events: list[TokenEvent] = []
    stats = {}
    for delta in llm.stream(PROMPT, sampling, way):
        assert delta.token_ids == tuple(event.token_id for event in delta.events)
        assert delta.text == "".join(event.text for event in delta.events)
        events += delta.events
        stats = delta.completion.speculation if delta.completion else stats
    sources = [event.origin.source for event in events]
    assert stats["accepted"] > 0
    assert stats["rejected"] > 0
    # A draft token that ends the answer counts as the step's own.
    assert sources.count("oracle") in (stats["accepted"], stats["accepted"] + 1)
    assert sources[0] == "plain"
    assert sources.count("bonus") > 0
    assert sum(len(event.origin.rejected) for event in events) == stats["rejected"]
    steps = [event.origin.step for event in events]
    assert steps == sorted(steps)
    assert steps[-1] == len(set(steps)) - 1 == len(events) - stats["accepted"] - 1


def test_plain_decoding_is_plain(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    deltas = list(llm.stream(PROMPT, sampling, SpeculativeConfig("off")))
    origins = [event.origin for delta in deltas for event in delta.events]
    assert origins == [Origin("plain", i) for i in range(6)]
