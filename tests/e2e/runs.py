"""Runs of real kernels under the engine, audited: what a request produced, down to the bits.

Owns how runs are made and compared. Knows no model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.drafting import SpeculationStats
from draftproof.engine import Engine
from draftproof.outputs import TokenLogprob
from draftproof.request import Request, SamplingParams
from draftproof.sampling import Grammar
from draftproof.text import Detokenizer
from draftproof.text.grammar import GrammarCompiler, GrammarMatcher

OFF = SpeculativeConfig("off")


@dataclass(frozen=True)
class Outcome:
    """What must not depend on speculation, batch, threads, chunks or instruction set.

    logits: sha256 over the logits row behind every emitted token. kv: sha256 over the keys and
    values of kv_length positions."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    logits: str
    kv: str
    kv_length: int
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Run:
    outcome: Outcome
    stats: SpeculationStats


class Bench:
    """One loaded model in one setting."""

    def __init__(self, loaded: Any, config: EngineConfig, *, chunk: int | None = None) -> None:
        """chunk: prompt rows per step, if it is another than the model was loaded for."""
        self.loaded = loaded
        self.tokenizer = loaded.tokenizer
        self._grammars = GrammarCompiler(loaded.tokenizer)
        self._engine = Engine(
            loaded.player,
            loaded.kv,
            context=loaded.context,
            vocab_size=loaded.tokenizer.vocab_size,
            max_rows=config.max_rows,
            max_logit_rows=config.max_logit_rows,
            prefill_chunk=chunk or config.prefill_chunk,
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, parse_special=False)
        return ids

    def run(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        speculation: SpeculativeConfig = OFF,
        *,
        eos_ids: Sequence[int] = (),
    ) -> Run:
        (result,) = self.run_together([(prompt, sampling, speculation)], eos_ids=eos_ids)
        return result

    def run_together(
        self,
        wanted: Sequence[tuple[Sequence[int], SamplingParams, SpeculativeConfig]],
        *,
        eos_ids: Sequence[int] = (),
        later: int = 0,
    ) -> list[Run]:
        """All requests in one engine; each joins `later` steps after the one before it."""
        requests = [
            Request(
                prompt,
                sampling,
                speculation,
                eos_ids=eos_ids,
                text_sink=Detokenizer(self.tokenizer, sampling.stop),
                grammar=self._matcher(sampling.grammar),
                logits_hash=hashlib.sha256(),
            )
            for prompt, sampling, speculation in wanted
        ]
        for i, request in enumerate(requests):
            self._engine.add(request)
            for _ in range(later if i + 1 < len(requests) else 0):
                self._engine.step()
        while self._engine.has_work:
            self._engine.step()
        return [Run(_outcome(request), request.stats) for request in requests]

    def _matcher(self, grammar: Grammar | None) -> GrammarMatcher | None:
        return None if grammar is None else self._grammars.compile(grammar.kind, grammar.text)


def _outcome(request: Request) -> Outcome:
    assert request.logits_hash is not None
    assert request.kv_digest
    return Outcome(
        tuple(request.output_ids),
        request.text,
        request.finish_reason,
        request.logits_hash.hexdigest(),
        request.kv_digest,
        request.kv_length,
        request.stop_reason,
        tuple(request.logprobs),
    )


def assert_same(run: Run, plain: Run, note: object = "") -> None:
    """Equal to plain decoding in every field; replayed tokens agreed with their probe."""
    assert plain.stats.drafted == 0
    assert run.outcome == plain.outcome, note
    assert run.stats.replay_mismatches == 0, note
