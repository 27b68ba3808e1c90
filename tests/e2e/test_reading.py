"""Scores and embeddings of real kernels: the same bits however rows come, and what they mean."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from draftproof import LLM, Delta, SamplingParams, SpeculativeConfig
from draftproof.config import EngineConfig
from draftproof.errors import ContextLengthError, InvalidRequestError
from draftproof.models import load_model
from tiny_models import TinyModels

TEXT = "some words, and some more words, and then the same words again. " * 8


@pytest.fixture
def open_llm(tiny: TinyModels) -> Callable[..., LLM]:
    def get(**fields: Any) -> LLM:
        config = EngineConfig(threads=1, ctx=512, **fields)
        return LLM.of(load_model(tiny.path("qwen3", "Q8_0"), config), config)

    return get


def test_a_score_is_the_log_probability_of_the_answer_that_it_was(
    open_llm: Callable[..., LLM],
) -> None:
    sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=3, logprobs=0, ignore_eos=True)
    with open_llm() as llm:
        prompt = llm.encode(TEXT)[:200]
        answer = llm.generate(prompt, sampling)
        ids = [*prompt, *answer.token_ids]
        score = llm.score(ids)
        assert answer.logprobs is not None
        assert score.token_ids == tuple(ids)
        assert score.logprobs[199:] == tuple(one.logprob for one in answer.logprobs)
        assert len(score.logprobs) == len(ids) - 1
        assert score.perplexity > 1.0
        assert llm.metrics().kv_pages_used == 0
        assert llm.score(ids[:1]).logprobs == ()


def test_chunks_and_neighbours_change_no_bit(open_llm: Callable[..., LLM]) -> None:
    endless = SamplingParams(max_tokens=300, ignore_eos=True)
    seen = []
    for chunk in (256, 1, 37):
        with open_llm(prefill_chunk=chunk) as llm:
            ids = llm.encode(TEXT)[:300]
            texts = [ids, ids[5:90], ids[:1]]
            if chunk == 37:
                recording = llm.generate("abc", endless, SpeculativeConfig("off")).token_ids
                oracle = SpeculativeConfig("oracle", 5, recording=recording, acceptance=0.7)
                stream = llm.stream("abc", endless, oracle)
                next(stream)
                rest: list[Delta] = []
                thread = threading.Thread(target=rest.extend, args=(stream,))
                thread.start()
            seen.append(
                (
                    [llm.score(text) for text in texts],
                    [llm.embed(texts, pooling) for pooling in ("mean", "last")],
                )
            )
            if chunk == 37:
                thread.join(60)
                assert rest[-1].completion is not None
                neighbour = rest[-1].completion.speculation
                assert neighbour["rejected"] > 0
                assert neighbour["shared_forwards"] > 0
    assert seen[0] == seen[1] == seen[2]


def test_what_an_embedding_is(open_llm: Callable[..., LLM]) -> None:
    with open_llm() as llm:
        width = llm._loaded.config.hidden_size  # type: ignore[union-attr]
        one, other, same = llm.embed(["a b c", "x y z w", "a b c"])
        assert one == same
        assert one.values != other.values
        assert len(one.values) == width
        assert math.fsum(x * x for x in one.values) == pytest.approx(1.0)
        assert other.tokens == len(llm.encode("x y z w"))
        (raw,) = llm.embed("a b c", normalize=False)
        scale = math.sqrt(math.fsum(x * x for x in raw.values))
        assert one.values == tuple(x / scale for x in raw.values)
        # The mean of the last rows of all beginnings.
        ids = llm.encode("x y z w")
        lasts = [llm.embed([ids[: i + 1]], "last", normalize=False)[0] for i in range(len(ids))]
        total = np.zeros(width)
        for last in lasts:
            total += last.values
        (mean,) = llm.embed([ids], normalize=False)
        assert mean.values == tuple((total / len(ids)).tolist())


def test_mistakes(open_llm: Callable[..., LLM]) -> None:
    with open_llm() as llm:
        assert llm.score([1] * 512).logprobs
        with pytest.raises(ContextLengthError, match="513"):
            llm.score([1] * 513)
        with pytest.raises(InvalidRequestError, match="empty"):
            llm.embed([[]])
        with pytest.raises(InvalidRequestError, match="pooling"):
            llm.embed("a", "max")
        assert llm.embed([]) == []
