"""What every protocol's request becomes, and what every answer is made of. Knows no protocol."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftproof.config import SpeculativeConfig
from draftproof.outputs import Completion, TokenEvent
from draftproof.sampling import SamplingParams
from draftproof.text.answer_parts import AnswerSplitter, Part

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import Delta, TokenLogprob

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Job:
    """One prompt to answer, sampling.n times. first_choice: index of its first choice in the
    answer. splitter: makes one for each choice. template: variables of the chat template, for
    messages. cache_salt: who may share the cached prefix. prompt_tokens: of the whole prompt."""

    prompt: Sequence[int] | Messages
    sampling: SamplingParams
    speculation: SpeculativeConfig
    cache_salt: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = False
    first_choice: int = 0
    prompt_tokens: int = 0
    splitter: Callable[[], AnswerSplitter] = AnswerSplitter
    parallel_calls: bool = True

    @property
    def choices(self) -> int:
        return self.sampling.n

    def start(self, llm: LLM) -> AsyncGenerator[Delta, None]:
        """The deltas of all choices; closing it cancels them."""
        return llm.astream(
            self.prompt,
            self.sampling,
            self.speculation,
            progress=self.progress,
            cache_salt=self.cache_salt,
            **self.template,
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """index: which call of its choice. arguments: a JSON object, as text."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one delta adds to one choice, in order. events: its tokens, each with its origin.
    completion, finish_reason: with the last one; finish_reason is stop, length or tool_calls."""

    choice: int
    items: tuple[Part | ToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    completion: Completion | None = None
    finish_reason: str | None = None
    events: tuple[TokenEvent, ...] = ()


@dataclass(slots=True)
class Answer:
    """The steps of one choice, folded."""

    items: list[Part | ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    completion: Completion | None = None
    finish_reason: str | None = None

    def add(self, step: Step) -> None:
        for item in step.items:
            last = self.items[-1] if self.items else None
            if isinstance(item, Part) and isinstance(last, Part) and last.kind == item.kind:
                self.items[-1] = Part(item.kind, last.text + item.text)
            else:
                self.items.append(item)
        self.token_ids += step.token_ids
        self.logprobs += step.logprobs
        if step.completion is not None:
            self.completion = step.completion
            self.finish_reason = step.finish_reason

    @property
    def content(self) -> str:
        return self._text("content")

    @property
    def reasoning(self) -> str:
        return self._text("reasoning")

    @property
    def calls(self) -> list[ToolCall]:
        return [item for item in self.items if isinstance(item, ToolCall)]

    @property
    def result(self) -> Completion:
        if self.completion is None:
            raise RuntimeError("the answer isn't complete")
        return self.completion

    def _text(self, kind: str) -> str:
        parts = (item for item in self.items if isinstance(item, Part))
        return "".join(part.text for part in parts if part.kind == kind)


class ChoiceReader:
    """Makes the steps of one choice out of its deltas."""

    def __init__(self, job: Job, choice: int) -> None:
        self._job = job
        self._choice = job.first_choice + choice
        self._splitter = job.splitter()
        self._calls = 0

    def read(self, delta: Delta) -> Step:
        parts = self._splitter.push(delta.text)
        finish_reason: str | None = None
        if delta.completion is not None:
            parts = parts + self._splitter.finish()
        items = tuple(item for item in map(self._item, parts) if item is not None)
        if delta.completion is not None:
            finish_reason = delta.completion.finish_reason
            if finish_reason == "stop" and self._calls:
                finish_reason = "tool_calls"
        return Step(
            self._choice,
            items,
            delta.token_ids,
            delta.logprobs,
            delta.completion,
            finish_reason,
            delta.events,
        )

    def _item(self, part: Part) -> Part | ToolCall | None:
        if part.kind != "tool_call":
            return part
        if self._calls and not self._job.parallel_calls:
            return None
        call = ToolCall(self._calls, f"call_{secrets.token_hex(12)}", part.name, part.text)
        self._calls += 1
        return call
