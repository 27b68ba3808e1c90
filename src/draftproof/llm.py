"""LLM: the offline front door. A model, a prompt, an answer; text in and text out.

Owns the loaded model and the engine that plays it. Thread-safe: whichever thread waits for its
answer drives the engine, for all requests in it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from draftproof import catalogue
from draftproof.config import EngineConfig, SpeculativeConfig, default_threads
from draftproof.drafting import DraftMemory, TokenText
from draftproof.drafting.verify_cost import VerifyCost, cache_path, measured_or_cached
from draftproof.engine import Engine, LogitsTrail
from draftproof.errors import InvalidRequestError
from draftproof.outputs import Audit, Completion, Delta, EngineInfo, Timings, TokenEvent, Usage
from draftproof.request import Request, SamplingParams
from draftproof.text import Detokenizer

if TYPE_CHECKING:
    from draftproof.models import LoadedModel

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int] | Messages
"""Raw text, token ids, or the messages of a chat."""


class LLM:
    """A loaded model.

    >>> with LLM("smollm2-135m") as llm:
    ...     print(llm.chat("Why is the sky blue?").text)
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        threads: int | None = None,
        ctx: int | None = None,
        kv_type: str = "f16",
        prefill_chunk: int = 256,
        isa: str = "",
        progress: Callable[[str, int, int | None], None] | None = None,
    ) -> None:
        """model: a .gguf file or a name of the catalogue; None = its default.

        The other arguments are those of EngineConfig. progress: see catalogue.Progress.
        Raises the errors of `draftproof.errors`, each with what to do.
        """
        from draftproof.models import load_model

        config = EngineConfig(
            threads=default_threads() if threads is None else threads,
            ctx=ctx,
            kv_type=kv_type,
            prefill_chunk=prefill_chunk,
            isa=isa,
        )
        path: Path = catalogue.resolve(model, progress)
        self._set_up(load_model(path, config, progress), config)

    @classmethod
    def of(cls, loaded: LoadedModel, config: EngineConfig) -> LLM:
        """An LLM around a model that is already loaded with `config`."""
        llm = cls.__new__(cls)
        llm._set_up(loaded, config)
        return llm

    def _set_up(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self._loaded: LoadedModel | None = loaded
        self._lock = threading.Lock()  # held while the engine is touched
        self._knows_cost = False
        self.on_notice: Callable[[str], None] = _to_stderr  # gets one line that isn't fatal
        self._engine = Engine(
            loaded.player,
            loaded.kv,
            context=loaded.context,
            vocab_size=loaded.tokenizer.vocab_size,
            max_rows=config.max_rows,
            max_logit_rows=config.max_logit_rows,
            prefill_chunk=config.prefill_chunk,
            memory=DraftMemory(TokenText(loaded.tokenizer.token_bytes, self._encode_plain)),
        )

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the model; running streams fail."""
        with self._lock:
            self._loaded = None
            del self._engine

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
    ) -> Completion:
        """Continues `prompt`: text as it stands (control tokens count), token ids, or messages.

        audit: adds hashes of logits and KV, slowly.

        Raises InvalidRequestError or ContextLengthError before anything is computed.
        """
        for delta in self.stream(prompt, sampling, speculation, audit=audit):
            if delta.completion is not None:
                return delta.completion
        raise RuntimeError("the stream ended without its completion")

    def chat(
        self,
        messages: str | Messages,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
        **template: Any,
    ) -> Completion:
        """Answers a conversation. A string is one user message. `template`: variables of the
        model's chat template, such as enable_thinking."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        ids = self._model.chat_template.encode(self._model.tokenizer, messages, **template)
        return self.generate(ids, sampling, speculation, audit=audit)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
    ) -> Iterator[Delta]:
        """Like generate, piece by piece; the last delta carries the completion.

        Closing the iterator cancels. Mistakes are raised here, not at the first piece."""
        sampling = sampling or SamplingParams()
        tokenizer = self._model.tokenizer
        # A control token has no text that a stop string could be found in: stop at its id.
        stop_ids = {
            tokenizer.control_tokens[s] for s in sampling.stop if s in tokenizer.control_tokens
        }
        request = Request(
            self._encode(prompt),
            sampling,
            self._encode_reference(speculation or SpeculativeConfig()),
            eos_ids=tokenizer.eos_ids,
            stop_ids=stop_ids,
            text_sink=Detokenizer(tokenizer, sampling.stop),
            logits_hash=LogitsTrail() if audit else None,
        )
        self._engine.check(request)
        return self._deltas(request)

    @property
    def verify_cost(self) -> VerifyCost:
        """V(m) of this model on this machine: measured here, or what an earlier run measured, at
        the first use, and then learned from every step."""
        with self._lock:
            self._learn_cost()
            return self._engine.memory.verify_cost

    def _learn_cost(self) -> None:
        """Once per LLM; the lock is held. While the KV cache is full: at a later request."""
        loaded = self._model
        if self._knows_cost:
            return
        engine = self._engine
        if not engine.can_measure:
            return
        path = cache_path(
            catalogue.cache_dir(), loaded.fingerprint, loaded.player.isa, loaded.player.threads
        )
        measurement = measured_or_cached(path, engine.measure_verify_cost, self.on_notice)
        engine.memory.verify_cost.use(measurement)
        self._knows_cost = True

    def _encode_reference(self, config: SpeculativeConfig) -> SpeculativeConfig:
        if not isinstance(config.reference, str):
            return config
        return replace(config, reference=tuple(self._encode_plain(config.reference)))

    def _encode_plain(self, text: str) -> list[int]:
        return self._model.tokenizer.encode(text, parse_special=False)

    def _deltas(self, request: Request) -> Iterator[Delta]:
        with self._lock:
            if request.stats.controlled:
                self._learn_cost()
            self._engine.add(request)
        try:
            done = False
            while not done:
                with self._lock:
                    if self._loaded is None:
                        raise InvalidRequestError("this LLM was closed: make a new one")
                    if not request.inbox:
                        self._engine.step()
                    events, request.inbox = request.inbox, []
                if events:
                    done = events[-1].finish_reason is not None
                    yield self._delta(request, events, done)
        finally:
            if request.finish_reason is None:
                self._abort(request)

    def _abort(self, request: Request) -> None:
        request.cancelled = True
        # If another thread is in a step, that thread's next step frees the pages.
        if self._lock.acquire(blocking=False):
            try:
                if self._loaded is not None:
                    self._engine.reap()
            finally:
                self._lock.release()

    def _delta(self, request: Request, events: Sequence[TokenEvent], done: bool) -> Delta:
        return Delta(
            "".join(event.text for event in events),
            tuple(event.token_id for event in events if event.token_id >= 0),
            self._completion(request) if done else None,
        )

    def _encode(self, prompt: Prompt) -> list[int]:
        loaded = self._model
        if isinstance(prompt, str):
            return loaded.tokenizer.encode(prompt, parse_special=True)
        parts = list(prompt)
        if parts and all(isinstance(part, Mapping) for part in parts):
            return loaded.chat_template.encode(loaded.tokenizer, cast("Messages", parts))
        if not all(isinstance(part, int) for part in parts):
            raise InvalidRequestError("prompt must be text, a list of token ids, or messages")
        return cast("list[int]", parts)

    def _completion(self, request: Request) -> Completion:
        loaded = self._model
        if request.finish_reason is None:
            raise RuntimeError("the request isn't finished")
        audit = None
        if request.logits_hash is not None:
            audit = Audit(
                request.logits_hash.hexdigest(),
                request.kv_digest,
                request.kv_length,
                request.logits_hash.rows if isinstance(request.logits_hash, LogitsTrail) else (),
            )
        engine = EngineInfo(
            isa=loaded.player.isa,
            threads=loaded.player.threads,
            weights_bytes=loaded.weights_bytes,
            peak_rss_bytes=peak_rss_bytes(),
            system_fingerprint=loaded.fingerprint,
            seed=request.seed,
        )
        return Completion(
            text=request.text,
            token_ids=tuple(request.output_ids),
            finish_reason=request.finish_reason,
            usage=Usage(request.num_prompt, request.num_output),
            timings=_timings(request, loaded.load_ms),
            speculation=request.stats.to_dict(),
            spec_line=request.stats.line(),
            engine=engine,
            audit=audit,
        )

    @property
    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise InvalidRequestError("this LLM is closed: make a new one")
        return self._loaded


def _to_stderr(line: str) -> None:
    print(f"draftproof: {line}", file=sys.stderr)


def _timings(request: Request, load_ms: float) -> Timings:
    prompt = request.time_first - request.time_start
    predicted = request.time_last - request.time_first
    return Timings(
        load_ms=load_ms,
        prompt_ms=1000 * prompt,
        prompt_per_second=request.num_prompt / prompt if prompt > 0 else 0.0,
        predicted_ms=1000 * predicted,
        predicted_per_second=(request.num_output - 1) / predicted if predicted > 0 else 0.0,
    )


def peak_rss_bytes() -> int:
    """The largest resident memory of this process so far; 0 where the system doesn't say.

    VmHWM of /proc, because getrusage also counts what ran before exec.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
