"""The model behind the server: its names, what its template can do, its defaults."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from draftproof.server.config import ServerConfig
from draftproof.server.errors import ApiError, bad_field
from draftproof.server.jobs import Messages
from draftproof.text.answer_parts import AnswerSplitter, Splitter, Tools
from draftproof.text.reasoning import CLOSE as THINK_CLOSE
from draftproof.text.reasoning import ReasoningSplitter, begins_inside
from draftproof.text.tool_calls import call_format, call_splitter

if TYPE_CHECKING:
    from draftproof.llm import LLM

_ENCODED_AT_ONCE = 4096  # characters; longer texts are encoded beside the event loop
_PROMPT_END = 16  # tokens that show whether a prompt opens the thoughts


class Served:
    """One LLM with a name. Its settings never change."""

    def __init__(self, llm: LLM, config: ServerConfig) -> None:
        self.llm = llm
        self.info = llm.info
        self.config = config
        self.created = int(time.time())
        self.call_format = call_format(self.info.chat_template)
        self.thinks = THINK_CLOSE in self.info.chat_template
        self._fim = _fim_tokens(llm)
        self.defaults: dict[str, Any] = _sampling_defaults(self.info.generation_config)

    def check_model(self, name: str | None) -> None:
        """404 for a name of another model: there is one model, and no swapping."""
        names = self.config.names
        if name and name not in names and name.removesuffix(":latest") not in names:
            if "*" in names:
                return
            raise ApiError(
                404,
                f"model {name[:100]!r} isn't served here: this server serves {self.config.name!r} "
                "only and doesn't swap models (--alias gives it further names)",
                param="model",
                code="model_not_found",
            )

    def entry(self) -> dict[str, Any]:
        """The model in /v1/models."""
        info = self.info
        return {
            "id": self.config.name,
            "object": "model",
            "created": self.created,
            "owned_by": "draftproof",
            "max_model_len": info.context,
            "meta": {
                "n_ctx": info.context,
                "n_vocab": info.vocab_size,
                "n_params": info.parameters,
                "family": info.family,
                "quantization": info.quantization,
            },
        }

    @property
    def file_name(self) -> str:
        return PurePath(self.info.path).name

    @property
    def file_size(self) -> int:
        """Bytes of the model's file; 0 if it has gone."""
        try:
            return os.stat(self.info.path).st_size
        except OSError:
            return 0

    async def encode(self, text: str, parse_special: bool) -> list[int]:
        if len(text) < _ENCODED_AT_ONCE:
            return self.llm.encode(text, parse_special)
        return await asyncio.to_thread(self.llm.encode, text, parse_special)

    async def encode_raw(self, prompt: str | list[int], suffix: str | None) -> list[int]:
        """A raw prompt; with a suffix, the prompt that has the model write what is between."""
        if suffix is None:
            return prompt if isinstance(prompt, list) else await self.encode(prompt, True)
        if isinstance(prompt, list):
            raise bad_field("suffix", "needs a prompt that is text")
        if self._fim is None:
            raise bad_field("suffix", "can't be used: this model has no fill-in-the-middle tokens")
        before, after, middle = self._fim
        return [
            before,
            *await self.encode(prompt, False),
            after,
            *await self.encode(suffix, False),
            middle,
        ]

    async def render_chat(
        self, messages: Messages, tools: Sequence[dict[str, Any]] | None, **template: Any
    ) -> str:
        return await asyncio.to_thread(self.llm.render, messages, tools, **template)

    async def profile(self) -> dict[str, Any]:
        """V(m) as this process knows it now: the cost of a step by its rows, in plain steps."""
        cost = await asyncio.to_thread(lambda: self.llm.verify_cost)
        return cost.to_dict()

    async def encode_chat(
        self, messages: Messages, tools: Sequence[dict[str, Any]] | None, **template: Any
    ) -> list[int]:
        """The prompt of a conversation, made beside the event loop."""
        return await asyncio.to_thread(self.llm.encode_chat, messages, tools, **template)

    def splitter_of(
        self, prompt: Sequence[int], tools: Tools | None
    ) -> Callable[[], AnswerSplitter]:
        """Makes the splitter of a choice, for a chat with this prompt. tools: None = none."""
        inside = self.thoughts_after(prompt) == "open"

        def make() -> AnswerSplitter:
            calls: Splitter | None = None
            if tools is not None and self.call_format is not None:
                calls = call_splitter(self.call_format, tools)
            reasoning: Splitter | None = None
            if self.thinks:
                reasoning = ReasoningSplitter(inside=inside, calls_count=calls is not None)
            return AnswerSplitter(reasoning, calls)

        return make

    def thoughts_after(self, prompt: Sequence[int]) -> str:
        """Whether an answer to this prompt may begin with thoughts: none, possible, or open (the
        prompt has begun them)."""
        if not self.thinks:
            return "none"
        end = self.llm.decode(prompt[-_PROMPT_END:]).rstrip()
        if begins_inside(end):
            return "open"
        return "none" if end.endswith(THINK_CLOSE) else "possible"


def _fim_tokens(llm: LLM) -> tuple[int, int, int] | None:
    """Prefix, suffix and middle, of models that have them."""
    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    ids = [llm.encode(name, True) for name in names]
    if any(len(found) != 1 for found in ids):
        return None
    return ids[0][0], ids[1][0], ids[2][0]


def _sampling_defaults(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """What the model recommends, of the settings that describe sampling."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return {"temperature": 1.0, **{k: recommended[k] for k in names if k in recommended}}
