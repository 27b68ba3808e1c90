"""The controller on this machine, with real steps: it drafts where drafts are right, stops where
they aren't, keeps its ledger, and changes no token.

The drafts come from the oracle: a recorded run with chosen errors. Time is the ledger's, V(m) as
measured and learned here; so a busy machine may change how much is gained, never the promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftproof import LLM, SamplingParams
from draftproof.config import SpeculativeConfig
from draftproof.outputs import Completion

PROMPT = "Write a story about a lighthouse keeper.\n"
SAMPLING = SamplingParams(max_tokens=160, ignore_eos=True)
OFF = SpeculativeConfig("off")


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[LLM]:
    with LLM(smollm2, ctx=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(llm: LLM) -> Completion:
    return llm.generate(PROMPT, SAMPLING, OFF)


def oracle(llm: LLM, plain: Completion, acceptance: float) -> Completion:
    config = SpeculativeConfig(
        "oracle", recording=plain.token_ids, acceptance=acceptance, oracle_seed=7
    )
    completion = llm.generate(PROMPT, SAMPLING, config)
    assert completion.speculation["controlled"]
    assert completion.speculation["drafted"] > 0
    assert completion.token_ids == plain.token_ids
    return completion


def test_right_drafts_are_taken_in_long_strides(llm: LLM, plain: Completion) -> None:
    spec = oracle(llm, plain, 1.0).speculation
    assert spec["rejected"] == 0
    assert spec["mean_acceptance_length"] > 4
    assert spec["modelled_speedup"] > 1.5
    assert spec["time_saved_ms"] > 0


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.8])
def test_the_ledger_holds_with_real_steps(llm: LLM, plain: Completion, acceptance: float) -> None:
    spec = oracle(llm, plain, acceptance).speculation
    assert spec["modelled_speedup"] >= 0.99
    if acceptance == 0.0:
        assert spec["accepted"] == 0
        assert spec["plain_steps"]["not_paying"] > 100
    if acceptance == 0.8:
        assert spec["accepted"] > 40
