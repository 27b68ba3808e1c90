"""/v1/completions: raw prompts, several at once, and filling in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftproof.outputs import TokenLogprob
from draftproof.server.errors import ApiError, bad_field
from draftproof.server.jobs import Answer, Job, Step
from draftproof.server.protocol.common import (
    Fields,
    checked_top_logprobs,
    salt,
    sampling,
    speculation,
    stop_reason,
)
from draftproof.server.protocol.openai_answer import OpenAIAnswer, statistics
from draftproof.server.served import Served

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(Fields, kw_only=True):
    prompt: str | list[Any]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


async def completion_jobs(request: CompletionRequest, served: Served, tenant: str) -> list[Job]:
    """One for each prompt. Raises InvalidRequestError and ApiError."""
    prompts = checked_prompts("prompt", request.prompt)
    more: dict[str, Any] = {}
    if request.max_tokens is None:
        more["max_tokens"] = DEFAULT_MAX_TOKENS
    if request.logprobs is not None:
        more["logprobs"] = checked_top_logprobs("logprobs", request.logprobs)
        if request.echo:
            raise bad_field("echo", "together with logprobs isn't supported yet")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise bad_field("best_of", "other than n isn't supported yet")
    params = sampling(request, served, **more)
    config = speculation(request, tenant)
    jobs: list[Job] = []
    for i, prompt in enumerate(prompts):
        ids = await served.encode_raw(prompt, request.suffix)
        job = Job(
            ids,
            params,
            config,
            salt(request.cache_salt, tenant),
            progress=bool(request.return_progress and request.stream),
        )
        jobs.append(replace(job, first_choice=i * job.choices))
    return jobs


def checked_prompts(name: str, prompt: str | list[Any]) -> list[str | list[int]]:
    """A text, token ids, or a list of either, from the field `name`."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_field(name, "must not be empty")
    if all(_is_id(item) for item in prompt):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise bad_field(name, f"has {len(prompt)} entries, at most {MAX_PROMPTS} are allowed")
    for i, item in enumerate(prompt):
        if isinstance(item, str):
            continue
        if not isinstance(item, list) or not item or not all(_is_id(id) for id in item):
            raise bad_field(f"{name}[{i}]", "must be text or a list of token ids")
    return prompt


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


class CompletionAnswer(OpenAIAnswer):
    """Writes one answer to raw prompts."""

    def __init__(self, request: CompletionRequest, served: Served, jobs: Sequence[Job]) -> None:
        kind = "text_completion"
        super().__init__("cmpl", kind, kind, served, jobs, request.stream_options)
        self._top = request.logprobs
        self._written: dict[int, int] = {}  # characters of each choice so far
        self._echo = _echoed(request, jobs)

    def step(self, step: Step) -> bytes:
        text = "".join(part.text for part in step.items)  # type: ignore[union-attr]
        if self._echo and step.choice not in self._written:
            text = self._echo[step.choice] + text
        start = self._written.get(step.choice, 0)
        self._written[step.choice] = start + len(text)
        chunks = []
        if text or (step.logprobs and self._top is not None):
            chunks.append(self.chunk(self._piece(step, text, start)))
        if step.completion is not None:
            last = {**self._piece(Step(step.choice), "", 0), "finish_reason": step.finish_reason}
            if (reason := stop_reason(step.completion)) is not None:
                last["stop_reason"] = reason
            chunks.append(self.chunk(last, **statistics([step.completion])))
        return b"".join(chunks)

    def _piece(self, step: Step, text: str, start: int) -> dict[str, Any]:
        logprobs = self._logprobs(step.logprobs, start) if self._top is not None else None
        return {"index": step.choice, "text": text, "logprobs": logprobs, "finish_reason": None}

    def whole(self, answers: Sequence[Answer]) -> bytes:
        choices = []
        for i, answer in enumerate(answers):
            echo = self._echo[i] if self._echo else ""
            choice = {
                "index": i,
                "text": echo + answer.content,
                "logprobs": self._logprobs(answer.logprobs, 0) if self._top is not None else None,
                "finish_reason": answer.finish_reason,
            }
            if (reason := stop_reason(answer.result)) is not None:
                choice["stop_reason"] = reason
            choices.append(choice)
        return self.body(choices, answers)

    def _logprobs(self, logprobs: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
        """The old shape: parallel lists. Offsets are in characters of the text."""
        tokens = [self.token_text(one.token_id) for one in logprobs]
        offsets = [start + sum(map(len, tokens[:i])) for i in range(len(tokens))]
        top = [
            {self.token_text(id): logprob for id, logprob in one.top[: self._top]}
            for one in logprobs
        ]
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _echoed(request: CompletionRequest, jobs: Sequence[Job]) -> list[str]:
    """The prompt of every choice, if it is to be repeated."""
    if not request.echo:
        return []
    texts = checked_prompts("prompt", request.prompt)
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "echo needs prompts that are text", param="echo")
    return [str(text) for text, job in zip(texts, jobs, strict=True) for _ in range(job.choices)]
