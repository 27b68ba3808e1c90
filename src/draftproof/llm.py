"""LLM: the front door. A model, a prompt, an answer; text in and text out.

Owns the loaded model and the engine that plays it, on a thread of its own: requests of all threads
and event loops share its steps. Thread-safe.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from draftproof import catalogue, discovery
from draftproof.answer import deltas_of, joined
from draftproof.asking import RequestMaker
from draftproof.config import EngineConfig, SpeculativeConfig, default_threads
from draftproof.drafting import DraftMemory, TokenText
from draftproof.drafting.verify_cost import VerifyCost, cache_path, measured_or_cached
from draftproof.engine import Arrival, Engine, EngineThread, Inbox, Mailbox, cancel, received
from draftproof.errors import InvalidRequestError
from draftproof.outputs import (
    Completion,
    Delta,
    Embedding,
    EngineMetrics,
    ModelInfo,
    Score,
)
from draftproof.prompts import Messages, Prompt, PromptReader, Tools, as_messages
from draftproof.prompts import Progress as ReadProgress
from draftproof.reading import embed, score
from draftproof.request import Request
from draftproof.sampling import SamplingParams

if TYPE_CHECKING:
    from draftproof.models import LoadedModel
    from draftproof.vision.media import MediaPolicy
    from draftproof.vision.prompt import ReadPrompt


class LLM:
    """A loaded model.

    >>> with LLM("smollm2-135m") as llm:
    ...     print(llm.chat("Why is the sky blue?").text)

    Any number of threads and event loops may ask at once; their requests are played together, and
    none changes what another one gets. An LLM belongs to the process that loaded it.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        threads: int | None = None,
        ctx: int | None = None,
        kv_type: str = "f16",
        quantize: str | None = None,
        prefill_chunk: int = 256,
        isa: str = "",
        kv_memory: int | None = None,
        max_queue: int = 256,
        max_running: int = 64,
        prefix_cache: bool = True,
        mmproj: str | os.PathLike[str] | None = None,
        image_min_tokens: int = 64,
        image_max_tokens: int = 512,
        chat_template: str | None = None,
        media: MediaPolicy | None = None,
        progress: Callable[[str, int, int | None], None] | None = None,
    ) -> None:
        """model: a .gguf file, a folder with safetensors, a name that `draftproof models` lists or
        an id of the Hugging Face hub; None = the catalogue's default.

        chat_template: source of a Jinja template instead of the model's own.
        mmproj: the file of a vision model's tower. media: which URLs and paths of images are read,
        None = paths and data: URLs. The other arguments are those of EngineConfig. progress: see
        catalogue.Progress.
        Raises the errors of `draftproof.errors`, each with what to do.
        """
        from draftproof.models import load_model

        config = EngineConfig(
            threads=default_threads() if threads is None else threads,
            ctx=ctx,
            kv_type=kv_type,
            quantize=quantize,
            prefill_chunk=prefill_chunk,
            isa=isa,
            kv_memory=kv_memory,
            max_queue=max_queue,
            max_running=max_running,
            prefix_cache=prefix_cache,
            image_min_tokens=image_min_tokens,
            image_max_tokens=image_max_tokens,
        )
        path: Path = discovery.resolve(model, progress)
        tower = None if mmproj is None else Path(mmproj).expanduser()
        loaded = load_model(path, config, progress, tower)
        if chat_template is not None:
            loaded = loaded.with_chat_template(chat_template)
        self._set_up(loaded, config, media)

    @classmethod
    def of(cls, loaded: LoadedModel, config: EngineConfig) -> LLM:
        """An LLM around a model that is already loaded with `config`."""
        llm = cls.__new__(cls)
        llm._set_up(loaded, config)
        return llm

    def _set_up(
        self, loaded: LoadedModel, config: EngineConfig, media: MediaPolicy | None = None
    ) -> None:
        self._loaded: LoadedModel | None = loaded
        self._prompts = PromptReader(loaded, config, media)
        self._knows_cost = False
        self.on_notice: Callable[[str], None] = _to_stderr  # gets one line that isn't fatal
        self.on_reading: ReadProgress | None = None  # is told while images are read
        tokenizer = loaded.tokenizer

        def encode_plain(text: str) -> list[int]:  # no method: nothing below may hold on to us
            return tokenizer.encode(text, parse_special=False)

        self._engine = Engine(
            loaded.player,
            loaded.kv,
            context=loaded.context,
            vocab_size=loaded.tokenizer.vocab_size,
            max_rows=config.max_rows,
            max_logit_rows=config.max_logit_rows,
            prefill_chunk=config.prefill_chunk,
            max_running=config.max_running,
            prefix_cache=config.prefix_cache,
            memory=DraftMemory(TokenText(tokenizer.token_bytes, encode_plain)),
        )
        self._maker = RequestMaker(tokenizer)
        self._front = EngineThread(self._engine, config.max_queue)
        # Also when nobody closes it: before its memory goes, and before the interpreter ends.
        self._end = weakref.finalize(self, self._front.close)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engine after the step that it is in and lets go of the model; running requests
        raise EngineStoppedError."""
        self._end()
        self._loaded = None
        self.__dict__.pop("_engine", None)
        self.__dict__.pop("_prompts", None)
        self.__dict__.pop("_front", None)

    # --- asking ----------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
        cache_salt: str = "",
        tools: Tools | None = None,
        **template: Any,
    ) -> Completion:
        """Continues `prompt`: text as it stands (control tokens count), token ids, or messages.

        audit: adds hashes of logits and KV, slowly. cache_salt: requests with different salts share
        no cached prefix, so that neither can tell by the time what the other asked. tools,
        template: for messages, see `chat`.

        Raises InvalidRequestError or ContextLengthError before anything is computed, QueueFullError
        if too many requests wait, EngineStoppedError if the engine ends before the answer does.
        """
        deltas = self.stream(
            prompt,
            sampling,
            speculation,
            audit=audit,
            cache_salt=cache_salt,
            tools=tools,
            **template,
        )
        return joined([delta for delta in deltas if delta.completion is not None])

    def chat(
        self,
        messages: str | Messages,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
        cache_salt: str = "",
        tools: Tools | None = None,
        **template: Any,
    ) -> Completion:
        """Answers a conversation. A string is one user message. tools: descriptions of functions,
        for the model's chat template; template: further variables of it, such as
        enable_thinking."""
        options: dict[str, Any] = {"audit": audit, "cache_salt": cache_salt, "tools": tools}
        return self.generate(as_messages(messages), sampling, speculation, **options, **template)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
        cache_salt: str = "",
        progress: bool = False,
        tools: Tools | None = None,
        **template: Any,
    ) -> Iterator[Delta]:
        """Like generate, piece by piece; the last delta carries the completion. progress: pieces
        that say how far the prompt is, as well.

        Closing the iterator cancels the request before its next step. Mistakes are raised here,
        not at the first piece; the request is queued with the first piece."""
        return self._deltas(
            self._requests(
                self._read(prompt, tools, template),
                sampling,
                speculation,
                audit=audit,
                cache_salt=cache_salt,
                progress=progress,
            )
        )

    async def agenerate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
        cache_salt: str = "",
        tools: Tools | None = None,
        **template: Any,
    ) -> Completion:
        """`generate` for an event loop. Cancelling the task cancels the request."""
        deltas = self.astream(
            prompt,
            sampling,
            speculation,
            audit=audit,
            cache_salt=cache_salt,
            tools=tools,
            **template,
        )
        async with aclosing(deltas):
            return joined([delta async for delta in deltas if delta.completion is not None])

    async def achat(
        self,
        messages: str | Messages,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
        cache_salt: str = "",
        tools: Tools | None = None,
        **template: Any,
    ) -> Completion:
        """`chat` for an event loop. Cancelling the task cancels the request."""
        options: dict[str, Any] = {"audit": audit, "cache_salt": cache_salt, "tools": tools}
        return await self.agenerate(
            as_messages(messages), sampling, speculation, **options, **template
        )

    async def astream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
        *,
        audit: bool = False,
        cache_salt: str = "",
        progress: bool = False,
        tools: Tools | None = None,
        **template: Any,
    ) -> AsyncGenerator[Delta, None]:
        """`stream` for an event loop, which is never kept from other work. Closing the iterator
        (`aclose`) or cancelling the task that waits for it cancels the request before its next
        step. Mistakes are raised with the first piece."""

        def prepare() -> list[Request]:
            return self._requests(
                self._read(prompt, tools, template),
                sampling,
                speculation,
                audit=audit,
                cache_salt=cache_salt,
                progress=progress,
            )

        requests = await asyncio.to_thread(prepare)
        loop = asyncio.get_running_loop()
        arrivals: asyncio.Queue[tuple[Request, Arrival]] = asyncio.Queue()
        loaded = self._model
        try:
            self._start(
                requests, lambda *arrived: loop.call_soon_threadsafe(arrivals.put_nowait, arrived)
            )
            running = len(requests)
            while running:
                request, arrived = await arrivals.get()
                for delta in deltas_of(request, received(arrived), loaded):
                    running -= delta.completion is not None
                    yield delta
        finally:
            cancel(requests)

    def _deltas(self, requests: Sequence[Request]) -> Iterator[Delta]:
        arrivals = Inbox()
        loaded = self._model
        try:
            self._start(requests, arrivals.put)
            running = len(requests)
            while running:
                request, arrived = arrivals.get()
                for delta in deltas_of(request, arrived, loaded):
                    running -= delta.completion is not None
                    yield delta
        finally:
            cancel(requests)

    def _requests(
        self,
        read: ReadPrompt,
        sampling: SamplingParams | None,
        speculation: SpeculativeConfig | None,
        **options: Any,
    ) -> list[Request]:
        """Checked requests, one per choice. Raises InvalidRequestError and its kin."""
        requests = self._maker.make(read, sampling, speculation, **options)
        for request in requests:
            self._engine.check(request)
            self._prompts.show_pictures(request, read, self.on_reading)
        return requests

    def _start(self, requests: Sequence[Request], mailbox: Mailbox) -> None:
        self._model  # noqa: B018 (raises if closed)
        if requests[0].stats.controlled and not self._knows_cost:
            self._front.post(self._learn_cost)
        self._front.submit(requests, mailbox)

    def score(self, prompt: Prompt) -> Score:
        """How likely the tokens of `prompt` are. Raises as `generate`, and NumericError."""
        return score(self._prompts.read(prompt, None, {}), self._engine, self._start)

    def embed(
        self,
        inputs: str | Sequence[str | Sequence[int]],
        pooling: str = "mean",
        normalize: bool = True,
        given_up: Event | None = None,
    ) -> list[Embedding]:
        """What the model makes of texts: the mean of the rows behind its output norm, or the last
        one (which suits models that were trained for it), of length 1 if `normalize`. Ends with
        concurrent.futures.CancelledError soon after `given_up` is set (from another thread)."""
        texts = [inputs] if isinstance(inputs, str) else inputs
        ids = [self._prompts.read(text, None, {}) for text in texts]
        return embed(ids, pooling, normalize, self._engine, self._start, given_up)

    # --- knowing ---------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """What is loaded."""
        return self._model.info

    def metrics(self) -> EngineMetrics:
        """What the engine does at this moment, and what it has done. Never waits for a step."""
        self._model  # noqa: B018 (raises if closed)
        return self._front.metrics()

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """Token ids. parse_special: control tokens in the text count as such."""
        return self._model.tokenizer.encode(text, parse_special=parse_special)

    def encode_chat(
        self, messages: str | Messages, tools: Tools | None = None, **template: Any
    ) -> list[int]:
        """The prompt of a conversation as token ids, as `chat` makes it."""
        return self._read(as_messages(messages), tools, template)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens left out."""
        return self._model.tokenizer.decode(ids)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for."""
        return self._model.tokenizer.token_bytes(id)

    def render(self, messages: str | Messages, tools: Tools | None = None, **template: Any) -> str:
        """The prompt of a conversation as text, to look at."""
        self._model  # noqa: B018 (raises if closed)
        return self._prompts.render(as_messages(messages), tools, template)

    @property
    def verify_cost(self) -> VerifyCost:
        """V(m) of this model on this machine: measured here, or what an earlier run measured, at
        the first use, and then learned from every step."""
        self._model  # noqa: B018 (raises if closed)
        self._front.call(self._learn_cost)
        return self._engine.memory.verify_cost

    def _learn_cost(self) -> None:
        """Once per LLM, on the engine's thread. While the KV cache is full: at a later request."""
        loaded, engine = self._model, self._engine
        if self._knows_cost or not engine.can_measure:
            return
        path = cache_path(
            catalogue.cache_dir(), loaded.fingerprint, loaded.player.isa, loaded.player.threads
        )
        measurement = measured_or_cached(path, engine.measure_verify_cost, self.on_notice)
        engine.memory.verify_cost.use(measurement)
        self._knows_cost = True

    def _read(self, prompt: Prompt, tools: Tools | None, template: Mapping[str, Any]) -> ReadPrompt:
        self._model  # noqa: B018 (raises if closed)
        return self._prompts.read(prompt, tools, template)

    @property
    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise InvalidRequestError("this LLM is closed: make a new one")
        return self._loaded


def _to_stderr(line: str) -> None:
    print(f"draftproof: {line}", file=sys.stderr)
