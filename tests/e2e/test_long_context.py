"""A context of 16,384 tokens from end to end: filled, answered, found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from draftproof import LLM, SamplingParams, SpeculativeConfig
from draftproof.config import EngineConfig
from draftproof.models import load_model
from tiny_models import SPECS, metadata, packed_tensors, write_gguf

CONTEXT = 16384
ANSWER = 40


def test_a_context_of_16384_tokens(tmp_path: Path) -> None:
    spec = replace(SPECS["qwen3"], context=CONTEXT)
    path = tmp_path / "long.gguf"
    write_gguf(path, spec.arch, metadata(spec), packed_tensors(spec, "Q8_0"))
    prompt = [(7 * i + i // 97) % 200 for i in range(CONTEXT - ANSWER)]

    def run(**fields: Any) -> list[Any]:
        config = EngineConfig(threads=1, ctx=CONTEXT, kv_type="q8_0", **fields)
        seen: list[Any] = []
        with LLM.of(load_model(path, config), config) as llm:
            way = SpeculativeConfig("off")
            for _ in range(2):
                done = llm.generate(prompt, SamplingParams(ignore_eos=True), way, audit=True)
                assert done.finish_reason == "length"
                assert done.usage.completion_tokens == ANSWER
                seen.append((done.token_ids, done.audit))
                way = SpeculativeConfig("oracle", 8, recording=done.token_ids, acceptance=0.7)
            assert done.speculation["accepted"] > 0
            assert done.speculation["rejected"] > 0
            cached = done.usage.cached_tokens
            assert cached == (len(prompt) - 1 if config.prefix_cache else 0)
            assert llm.metrics().kv_pages_used == 0
        return seen

    cold = run(prefix_cache=False, prefill_chunk=512)
    assert cold[0] == cold[1]
    assert run(prefill_chunk=4000) == cold
