"""Helpers of the engine's tests: a world around the fake player, and how two runs are compared.

`Outcome`, `outcome_of`, `outcome_of_completion` and `assert_same` serve real kernels as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fake_native import FakeKvCache, FakePlayer

from draftproof.config import SpeculativeConfig
from draftproof.drafting import SpeculationStats
from draftproof.engine import Engine
from draftproof.outputs import Completion, TokenLogprob
from draftproof.request import Request, SamplingParams

VOCAB = 24
OFF = SpeculativeConfig("off")
WINDOW_KS = (1, 2, 3, 4, 8, 16)
ACCEPTANCES = (0.0, 0.3, 0.7, 0.9, 1.0)


@dataclass(frozen=True)
class Outcome:
    """What must not depend on speculation."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    logits_sha256: str
    kv_sha256: str
    kv_length: int
    stop_reason: int | str | None
    logprobs: tuple[TokenLogprob, ...]


class LetterSink:
    """Token i is the (i mod 26)th letter; stops by the plainest rule: look at all the text."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped: str | None = None
        self._stop = tuple(stop)
        self._all = ""
        self._sent = 0

    def push(self, token_id: int, may_stop: bool = True) -> str:
        self._all += chr(ord("a") + token_id % 26)
        for stop in self._stop:
            at = self._all.find(stop, max(0, len(self._all) - len(stop)))
            if at >= 0 and may_stop:
                self.stopped = stop
                return self._upto(at)
        hold = max((len(stop) - 1 for stop in self._stop), default=0)
        return self._upto(max(self._sent, len(self._all) - hold))

    def finish(self) -> str:
        return self._upto(len(self._all))

    def _upto(self, end: int) -> str:
        piece, self._sent = self._all[self._sent : end], max(self._sent, end)
        return piece


@dataclass
class World:
    """An engine on a fake model; every run is audited."""

    context: int = 128
    num_pages: int = 64
    page_positions: int = 4
    prefill_chunk: int = 256
    max_rows: int = 256
    branching: int = 7
    model_seed: int = 0
    eos_ids: tuple[int, ...] = ()
    fails_at: Callable[[list[int]], bool] | None = None
    prefix_cache: bool = False
    max_running: int | None = None
    player: FakePlayer = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        kv = FakeKvCache(self.num_pages, self.page_positions)
        self.player = FakePlayer(
            kv,
            VOCAB,
            max_rows=self.max_rows,
            seed=self.model_seed,
            branching=self.branching,
            fails_at=self.fails_at,
        )
        self.engine = Engine(
            self.player,
            kv,
            context=self.context,
            vocab_size=VOCAB,
            max_rows=self.max_rows,
            max_logit_rows=64,
            prefill_chunk=self.prefill_chunk,
            prefix_cache=self.prefix_cache,
            max_running=self.max_running,
        )

    def request(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        speculation: SpeculativeConfig = OFF,
        **options: Any,
    ) -> Request:
        return Request(
            prompt,
            sampling,
            speculation,
            eos_ids=self.eos_ids,
            text_sink=LetterSink(sampling.stop),
            logits_hash=hashlib.sha256(),
            **options,
        )

    def run(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        speculation: SpeculativeConfig = OFF,
        **options: Any,
    ) -> Request:
        request = self.request(prompt, sampling, speculation, **options)
        self.run_all([request])
        return request

    def run_all(self, requests: Sequence[Request]) -> None:
        """Runs to the end, then checks that nothing is left behind."""
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work:
            assert self.engine.step()
        for request in requests:
            assert request.finish_reason is not None
            assert_stats_add_up(request.stats, request.num_output)
        pool = self.engine.pool
        assert pool.num_available == pool.num_unreserved == self.num_pages
        assert self.prefix_cache or pool.num_free == self.num_pages


def outcome_of(request: Request) -> Outcome:
    """A finished, audited request."""
    assert request.logits_hash is not None
    return Outcome(
        text=request.text,
        token_ids=tuple(request.output_ids),
        finish_reason=request.finish_reason,
        prompt_tokens=request.num_prompt,
        completion_tokens=request.num_output,
        logits_sha256=request.logits_hash.hexdigest(),
        kv_sha256=request.kv_digest,
        kv_length=request.kv_length,
        stop_reason=request.stop_reason,
        logprobs=tuple(request.logprobs),
    )


def outcome_of_completion(completion: Completion) -> Outcome:
    """A completion of `LLM.generate(..., audit=True)`."""
    assert completion.audit is not None
    return Outcome(
        text=completion.text,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        prompt_tokens=completion.usage.prompt_tokens,
        completion_tokens=completion.usage.completion_tokens,
        logits_sha256=completion.audit.logits_sha256,
        kv_sha256=completion.audit.kv_sha256,
        kv_length=completion.audit.kv_length,
        stop_reason=completion.stop_reason,
        logprobs=completion.logprobs or (),
    )


def assert_same(plain: Outcome, other: Outcome, *, drafted: int) -> None:
    """Equal in every field, and the comparison meant something: drafts were made."""
    assert other == plain
    assert drafted > 0, "nothing was drafted: the comparison is empty"


def assert_stats_add_up(stats: SpeculationStats, completion_tokens: int) -> None:
    """The sums that the statistics promise."""
    assert stats.drafted == stats.accepted + stats.rejected + stats.discarded
    assert stats.rolled_back == stats.rejected + stats.discarded
    assert completion_tokens == stats.accepted + stats.steps
    assert sum(stats.accepted_per_position) == stats.accepted
    forwards = stats.forwards
    assert sum(stats.plain_steps.values()) == forwards["decode"]
    assert stats.tries == (forwards["verify"] if stats.verify == "exact" else forwards["probe"])
    values: dict[str, Any] = stats.to_dict()
    if stats.drafter == "off":
        assert all(values[key] == 0 for key in ("k", "tries", "drafted", "rolled_back"))


def oracle(recording: Sequence[int], k: int = 4, **options: Any) -> SpeculativeConfig:
    return SpeculativeConfig("oracle", k, recording=tuple(recording), **options)
