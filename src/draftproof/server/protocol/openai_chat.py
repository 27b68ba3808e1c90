"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.outputs import TokenLogprob
from draftproof.server.errors import bad_field
from draftproof.server.jobs import Answer, Job, Step, ToolCall
from draftproof.server.protocol.chat import chat_job
from draftproof.server.protocol.common import (
    Fields,
    checked_top_logprobs,
    stop_reason,
    template_variables,
)
from draftproof.server.protocol.openai_answer import OpenAIAnswer, statistics
from draftproof.server.protocol.tools import wishes
from draftproof.server.served import Served
from draftproof.server.speculation import trace
from draftproof.text.answer_parts import Part


class ChatRequest(Fields, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None


def renamed(request: ChatRequest) -> dict[str, str]:
    """Our names of parameters -> those that this client used."""
    names = {"logprobs": "top_logprobs"}
    names["grammar"] = "tools" if request.response_format is None else "response_format"
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


async def chat_jobs(request: ChatRequest, served: Served, tenant: str) -> list[Job]:
    """Raises InvalidRequestError and ApiError."""
    more: dict[str, Any] = {}
    if request.max_completion_tokens is not None:
        more["max_tokens"] = request.max_completion_tokens
    if request.logprobs:
        more["logprobs"] = checked_top_logprobs("top_logprobs", request.top_logprobs or 0)
    elif request.top_logprobs:
        raise bad_field("top_logprobs", "needs logprobs: true")
    wanted = wishes(request.tools, request.tool_choice, request.response_format, served)
    messages = [with_thoughts(message) for message in request.messages]
    job = await chat_job(
        request,
        served,
        tenant,
        messages,
        wanted,
        template(request),
        parallel_calls=request.parallel_tool_calls is not False,
        **more,
    )
    return [job]


def with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """Templates know thoughts of earlier turns as reasoning_content; clients send either name."""
    if isinstance(message, dict) and "reasoning" in message:
        return {"reasoning_content": message["reasoning"], **message}
    return message


def template(request: ChatRequest) -> dict[str, Any]:
    """Variables of the chat template, thinking by any of its three names."""
    variables = template_variables(request.chat_template_kwargs)
    if request.enable_thinking is not None:
        variables.setdefault("enable_thinking", request.enable_thinking)
    if request.reasoning_effort == "none":
        variables.setdefault("enable_thinking", False)
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise bad_field("continue_final_message", "excludes add_generation_prompt")
        variables["continue_final_message"] = True
    elif request.add_generation_prompt is False:
        variables["add_generation_prompt"] = False
    return variables


class ChatAnswer(OpenAIAnswer):
    """Writes one chat answer."""

    def __init__(self, request: ChatRequest, served: Served, jobs: Sequence[Job]) -> None:
        kind, options = "chat.completion", request.stream_options
        super().__init__("chatcmpl", kind, f"{kind}.chunk", served, jobs, options)
        self._logprobs = bool(request.logprobs)
        self._top = request.top_logprobs or 0
        self._traces = bool(request.speculation_trace)
        self._opened: set[int] = set()

    def step(self, step: Step) -> bytes:
        chunks = []
        logprobs = self._logprobs_of(step.logprobs)
        deltas = [_delta(item) for item in step.items]
        more: dict[str, Any] = {}
        if self._traces and step.events:
            more["draftproof"] = trace(step.events, self.token_text)
        if (logprobs or more) and not deltas:
            deltas.append({"content": ""})
        if step.choice not in self._opened:
            self._opened.add(step.choice)
            deltas.insert(0, {"role": "assistant", "content": ""})
        for delta in deltas:
            choice = {"index": step.choice, "delta": delta, "finish_reason": None}
            last = delta is deltas[-1]
            if self._logprobs:
                choice["logprobs"] = {"content": logprobs if last else []}
            chunks.append(self.chunk(choice, **(more if last else {})))
        if step.completion is not None:
            choice = {"index": step.choice, "delta": {}, "finish_reason": step.finish_reason}
            if stop_reason(step.completion) is not None:
                choice["stop_reason"] = stop_reason(step.completion)
            chunks.append(self.chunk(choice, **statistics([step.completion])))
        return b"".join(chunks)

    def whole(self, answers: Sequence[Answer]) -> bytes:
        return self.body([self._choice(i, answer) for i, answer in enumerate(answers)], answers)

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        calls = [_call(call) for call in answer.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not answer.content else answer.content,
        }
        if answer.reasoning:
            message["reasoning"] = message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = calls
        choice = {"index": index, "message": message, "finish_reason": answer.finish_reason}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs_of(answer.logprobs)}
        if stop_reason(answer.result) is not None:
            choice["stop_reason"] = stop_reason(answer.result)
        return choice

    def _logprobs_of(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        if not self._logprobs:
            return []
        return [
            {
                **self._token(one.token_id, one.logprob),
                "top_logprobs": [self._token(*pair) for pair in one.top[: self._top]],
            }
            for one in logprobs
        ]

    def _token(self, id: int, logprob: float) -> dict[str, Any]:
        data = self._served.llm.token_bytes(id)
        return {"token": self.token_text(id), "logprob": logprob, "bytes": list(data)}


def _delta(item: Part | ToolCall) -> dict[str, Any]:
    if isinstance(item, ToolCall):
        return {"tool_calls": [{"index": item.index, **_call(item)}]}
    if item.kind == "reasoning":
        return {"reasoning": item.text, "reasoning_content": item.text}
    return {"content": item.text}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
