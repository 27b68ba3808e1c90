"""The claim with all that a request can ask of the sampler, mixed at random, on real kernels: alone
and undrafted gives the bits of drafted, batched and chunked; logprobs included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from runs import OFF, Bench, assert_same

from draftproof import LLM
from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.models import load_model
from draftproof.sampling import Grammar, SamplingParams
from tiny_models import TinyModels

PROMPT = "- fig\n- pear\n- plum\n" * 3 + "Once more:\n- fig\n- pear\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "ultramarine"]},
        "fruit": {"type": "array", "items": {"enum": ["fig", "pear"]}, "maxItems": 3},
    },
    "required": ["colour", "fruit"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar("json_object"),
    Grammar("json_schema", SCHEMA),
    Grammar("regex", r"(- (fig|pear|plum)\n){2,9}"),
    Grammar("lark", 'start: item+\nitem: "- " /[a-z]{1,6}/ "\\n"'),
]
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.2]),
    top_k=st.sampled_from([0, 0, 20]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.02]),
    seed=st.integers(0, 3),
    max_tokens=st.integers(12, 30),
    min_tokens=st.sampled_from([0, 6]),
    stop=st.sampled_from([(), ("pl", "\n- fig")]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.1]),
    logit_bias=st.sampled_from([None, {10: 2.0, 17: -100.0}]),
    logprobs=st.sampled_from([None, 0, 4]),
    grammar=st.sampled_from([*[None] * 4, *GRAMMARS]),
)
DRAFTERS = ("window", "suffix", "auto", "oracle")
Load = Callable[..., Any]


def bench(tiny: TinyModels, load: Load, chunk: int) -> Bench:
    loaded = load(tiny.path("qwen2", "Q8_0"), ctx=256, threads=2)
    return Bench(loaded, EngineConfig(ctx=256, threads=2), chunk=chunk)


def test_any_mix_equals_each_alone_and_undrafted(tiny: TinyModels, load: Load) -> None:
    counts: Counter[tuple[str, str]] = Counter()

    @settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(
        wanted=st.lists(st.tuples(PARAMS, st.sampled_from(DRAFTERS)), min_size=1, max_size=5),
        k=st.sampled_from([2, 5, 16]),
        acceptance=st.sampled_from([0.6, 0.95, 1.0]),
        verify=st.sampled_from(["exact", "exact", "replay"]),
        chunk=st.sampled_from([7, 256]),
    )
    def check(
        wanted: list[tuple[SamplingParams, str]], k: int, acceptance: float, verify: str, chunk: int
    ) -> None:
        plain_bench, mixed = bench(tiny, load, 256), bench(tiny, load, chunk)
        ends = tuple(plain_bench.tokenizer.eos_ids)
        plain, requests = [], []
        for i, (sampling, drafter) in enumerate(wanted):
            prompt = plain_bench.encode(PROMPT)[i:]
            one = plain_bench.run(prompt, sampling, eos_ids=ends)
            recording = (*one.outcome.token_ids, 5, 6, 7) if drafter == "oracle" else None
            config = SpeculativeConfig(drafter, k, verify, recording, acceptance)
            plain.append(one)
            requests.append((prompt, sampling, config))
        runs = mixed.run_together(requests, eos_ids=ends, later=1)
        for run, one, (_, sampling, config) in zip(runs, plain, requests, strict=True):
            assert_same(run, one, (sampling, config))
            if config.drafter == "oracle" and len(one.outcome.token_ids) > 1:
                assert run.stats.drafted > 0
            for name in ("accepted", "rejected", "shared_forwards"):
                counts[config.drafter, name] += getattr(run.stats, name)

    check()
    for drafter in DRAFTERS:
        for name in ("accepted", "rejected", "shared_forwards"):
            assert counts[drafter, name] > 0, (drafter, name)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.kind)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_forced_tokens_are_drafted(
    tiny: TinyModels, load: Load, grammar: Grammar, temperature: float
) -> None:
    """The answer keeps to its grammar, and what the grammar forces costs no step of its own."""
    alone = bench(tiny, load, 256)
    ends = tuple(alone.tokenizer.eos_ids)
    sampling = SamplingParams(
        max_tokens=100, temperature=temperature, seed=4, grammar=grammar, logprobs=1
    )
    prompt = alone.encode(PROMPT)
    plain = alone.run(prompt, sampling, eos_ids=ends)
    run = alone.run(prompt, sampling, SpeculativeConfig("suffix", 8), eos_ids=ends)
    assert_same(run, plain)
    assert run.stats.drafted > 0
    if grammar.kind in {"json_schema", "regex"}:
        forced = run.stats.by_source["grammar"]
        assert forced["accepted"] > 0
    if plain.outcome.finish_reason == "stop":
        assert plain.outcome.token_ids[-1] in ends


def test_every_rejection_inside_a_grammar(tiny: TinyModels, load: Load) -> None:
    """A wrong draft token at every place leaves no trace in the grammar's state."""
    alone = bench(tiny, load, 256)
    ends = tuple(alone.tokenizer.eos_ids)
    wide = Grammar("regex", r"([ -~]{1,9}\n)+")  # few wrong tokens are cut off before
    sampling = SamplingParams(max_tokens=40, temperature=1.0, seed=2, grammar=wide)
    prompt = alone.encode(PROMPT)
    plain = alone.run(prompt, sampling, eos_ids=ends)
    rejected = 0
    for place in range(1, len(plain.outcome.token_ids)):
        recording = plain.outcome.token_ids
        config = SpeculativeConfig("oracle", 6, recording=recording, wrong_at=(place,))
        run = alone.run(prompt, sampling, config, eos_ids=ends)
        assert_same(run, plain, place)
        assert run.stats.accepted > 0
        rejected += run.stats.rejected
    assert rejected > 60  # at nearly every place


def test_a_cached_prompt_changes_nothing(tiny: TinyModels) -> None:
    """Penalties count the tokens of a prompt whose rows weren't computed again."""
    sampling = SamplingParams(
        max_tokens=24,
        temperature=0.8,
        seed=3,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        logit_bias={10: 1.0},
        logprobs=3,
        n=2,
    )
    config = EngineConfig(ctx=512, threads=2)
    with LLM.of(load_model(tiny.path("qwen2", "Q8_0"), config), config) as llm:
        for wanted in (sampling, replace(sampling, grammar=GRAMMARS[0], n=1)):
            cold = llm.generate(PROMPT * 2, wanted, OFF, cache_salt="cold" * wanted.n, audit=True)
            salt = "warm" * wanted.n
            first = llm.generate(PROMPT * 2, wanted, cache_salt=salt, audit=True)
            way = SpeculativeConfig("suffix", 4)
            again = llm.generate(PROMPT * 2, wanted, way, cache_salt=salt, audit=True)
            assert cold.usage.cached_tokens == 0
            assert again.usage.cached_tokens >= 64
            assert again.speculation["drafted"] > 0
            for other in (first, again):
                for a, b in zip(cold.choices, other.choices, strict=True):
                    assert (b.token_ids, b.text, b.logprobs) == (a.token_ids, a.text, a.logprobs)
                    assert b.audit == a.audit
