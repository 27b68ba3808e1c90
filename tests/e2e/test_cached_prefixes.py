"""The prefix cache and preemption over real kernels: the bits of computing everything again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftproof import LLM, Completion, SamplingParams, SpeculativeConfig
from draftproof.config import EngineConfig
from draftproof.engine import scheduler
from draftproof.models import load_model
from tiny_models import TinyModels

WINDOW = SpeculativeConfig("window", 6)
GREEDY = SamplingParams(max_tokens=70, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=70, ignore_eos=True, temperature=0.8, seed=4)
TEXT = "a b c a b c d e a b c a b " * 30


def evidence(done: Completion) -> tuple[Any, ...]:
    assert done.audit is not None
    return done.token_ids, done.audit.logits_sha256, done.audit.kv_sha256, done.audit.kv_length


@pytest.fixture
def open_llm(tiny: TinyModels) -> Callable[..., LLM]:
    def get(name: str, **fields: Any) -> LLM:
        config = EngineConfig(threads=1, **fields)
        return LLM.of(load_model(tiny.path(name, "Q8_0"), config), config)

    return get


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_hit_has_the_bits_of_computing_again(
    open_llm: Callable[..., LLM], name: str, kv_type: str
) -> None:
    with open_llm(name, ctx=512, kv_type=kv_type, prefix_cache=False) as llm:
        prompt = llm.encode(TEXT)[:200]
        cold = [llm.generate(prompt, s, audit=True) for s in (GREEDY, SEEDED)]
        follow = [*prompt, *cold[0].token_ids, *prompt[:30]]
        cold.append(llm.generate(follow, SEEDED, audit=True))
    with open_llm(name, ctx=512, kv_type=kv_type, prefill_chunk=50) as llm:
        llm.generate(prompt, GREEDY, WINDOW)
        warm = [llm.generate(prompt, s, WINDOW, audit=True) for s in (GREEDY, SEEDED)]
        warm.append(llm.generate(follow, SEEDED, WINDOW, audit=True))
    assert [evidence(done) for done in warm] == [evidence(done) for done in cold]
    assert [done.usage.cached_tokens for done in warm] == [199, 199, 269]
    assert sum(done.speculation["rejected"] for done in warm) > 0


def test_making_room_changes_no_bit(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(scheduler, "PROMISED_ANSWER", 8)
    asked = [(TEXT[i : i + 60], SEEDED if i % 2 else GREEDY) for i in range(6)]
    with open_llm("qwen3", ctx=256, prefix_cache=False) as llm:
        alone = [llm.generate(*ask, audit=True) for ask in asked]
    with open_llm("qwen3", ctx=256) as llm:
        pages = llm._loaded.kv.page_bytes  # type: ignore[union-attr]
    with open_llm("qwen3", ctx=256, kv_memory=5 * pages) as llm:

        async def all_of_them() -> list[Completion]:
            tasks = [llm.agenerate(*ask, WINDOW, audit=True) for ask in asked]
            return await asyncio.gather(*tasks)

        together = asyncio.run(all_of_them())
        assert llm.metrics().preemptions > 0
        assert llm.metrics().kv_pages_used == 0
        assert llm.metrics().kv_pages_total == 5
    assert [evidence(done) for done in together] == [evidence(done) for done in alone]
    assert sum(done.speculation["rejected"] for done in together) > 0
    assert all(done.speculation["shared_forwards"] > 0 for done in together)
