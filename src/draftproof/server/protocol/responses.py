"""/v1/responses, without state: nothing is stored, every request brings its whole conversation."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from draftproof.outputs import Progress
from draftproof.server.errors import ApiError, bad_field
from draftproof.server.jobs import Answer, Job, Step, ToolCall
from draftproof.server.protocol.chat import chat_job
from draftproof.server.protocol.common import Fields, SpeculationFields, encode, template_variables
from draftproof.server.protocol.openai_answer import statistics
from draftproof.server.protocol.tools import wishes
from draftproof.server.served import Served
from draftproof.text.answer_parts import Part


class ResponsesRequest(msgspec.Struct, kw_only=True):
    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    conversation: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    speculation: SpeculationFields | Literal["auto", "off"] | None = None
    cache_salt: str | None = None
    sse_ping_interval: float | None = None


def renamed(request: ResponsesRequest) -> dict[str, str]:
    grammar = "tools" if request.text is None else "text.format"
    return {"max_tokens": "max_output_tokens", "messages": "input", "grammar": grammar}


async def response_jobs(request: ResponsesRequest, served: Served, tenant: str) -> list[Job]:
    """Raises InvalidRequestError and ApiError."""
    for name in ("previous_response_id", "background", "conversation"):
        if getattr(request, name):
            raise bad_field(name, "isn't supported: nothing is stored here, send the whole input")
    fields = Fields(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_output_tokens,
        speculation=request.speculation,
        cache_salt=request.cache_salt,
        stream=request.stream,
    )
    template = template_variables(request.chat_template_kwargs)
    if (request.reasoning or {}).get("effort") == "none":
        template.setdefault("enable_thinking", False)
    wanted = wishes(
        [_tool(tool, i) for i, tool in enumerate(request.tools or ())],
        _tool_choice(request.tool_choice),
        _format(request.text),
        served,
    )
    return [
        await chat_job(
            fields,
            served,
            tenant,
            openai_messages(request),
            wanted,
            template,
            parallel_calls=request.parallel_tool_calls is not False,
        )
    ]


def _tool(tool: Mapping[str, Any], i: int) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise bad_field(f"tools[{i}].type", "must be function: there are no built-in tools here")
    function = {k: tool[k] for k in ("name", "description", "parameters", "strict") if k in tool}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and "name" in choice:
        return {"type": choice.get("type"), "function": {"name": choice["name"]}}
    return choice


def _format(text: Mapping[str, Any] | None) -> Any:
    return (text or {}).get("format")


def openai_messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    """The conversation in the shape that the chat templates read."""
    if request.input == []:
        raise bad_field("input", "must not be empty")
    result: list[dict[str, Any]] = []
    if request.instructions:
        result.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*result, {"role": "user", "content": request.input}]
    thoughts = ""
    for i, item in enumerate(request.input):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise bad_field(where, "must be an object")
        kind = item.get("type", "message")
        if kind == "message":
            role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
            message = {"role": role, "content": _content(item.get("content"), where)}
            if role == "assistant" and thoughts:
                message["reasoning_content"], thoughts = thoughts, ""
            result.append(message)
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not result or result[-1]["role"] != "assistant":
                result.append({"role": "assistant", "content": ""})
                if thoughts:
                    result[-1]["reasoning_content"], thoughts = thoughts, ""
            result[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(item.get("output"), where)
            id = item.get("call_id")
            result.append({"role": "tool", "tool_call_id": id, "content": content})
        elif kind == "reasoning":
            blocks = [*_blocks(item, "content", where), *_blocks(item, "summary", where)]
            texts = [block.get("text") for block in blocks if isinstance(block, dict)]
            thoughts = "\n".join(text for text in texts if isinstance(text, str))
        else:
            raise bad_field(f"{where}.type", f"{str(kind)[:50]!r} isn't supported")
    return result


def _blocks(item: Mapping[str, Any], name: str, where: str) -> list[Any]:
    blocks = item.get(name)
    if blocks is not None and not isinstance(blocks, list):
        raise bad_field(f"{where}.{name}", "must be a list")
    return blocks or []


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": part.get("text")})
        elif kind == "refusal":
            parts.append({"type": "text", "text": part.get("refusal")})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        else:
            raise bad_field(f"{where}.content", f"can't hold a part of type {str(kind)[:50]!r}")
    return parts


class ResponseAnswer:
    """Writes one response. Every item of the answer is an output item."""

    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, request: ResponsesRequest, served: Served, jobs: Sequence[Job]) -> None:
        self._request = request
        self._served = served
        self._sampling = jobs[0].sampling
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created = int(time.time())
        self._number = -1
        self._items: list[dict[str, Any]] = []  # finished
        self._open: dict[str, Any] | None = None
        self._text = ""  # of the open item

    def opening(self) -> bytes:
        response = self._response("in_progress", [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def ping(self) -> bytes:
        return b": ping\n\n"

    def progress(self, progress: Progress) -> bytes:
        return b""

    def step(self, step: Step) -> bytes:
        return b"".join(self._write(item) for item in step.items)

    def _write(self, item: Part | ToolCall) -> bytes:
        if isinstance(item, ToolCall):
            written = self._close()
            done = _item(item, item.arguments, "completed")
            written += self._begin({**done, "arguments": "", "status": "in_progress"})
            place = self._place(done)
            written += self._event(
                "response.function_call_arguments.delta", **place, delta=item.arguments
            )
            written += self._event(
                "response.function_call_arguments.done",
                **place,
                arguments=item.arguments,
                name=item.name,
            )
            self._open = done
            return written + self._close()
        kind = "reasoning" if item.kind == "reasoning" else "message"
        written = b""
        if self._open is None or self._open["type"] != kind:
            written += self._close()
            written += self._begin(_item(item, None, "in_progress"))
            if kind == "message":
                written += self._event(
                    "response.content_part.added",
                    **self._place(self._open),
                    content_index=0,
                    part=_text_part(""),
                )
        self._text += item.text
        extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return written + self._event(
            f"response.{_word(kind)}.delta",
            **self._place(self._open),
            content_index=0,
            delta=item.text,
            **extra,
        )

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._open, self._text = item, ""
        return self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _close(self) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        written = b""
        if item["type"] != "function_call":
            place = {**self._place(item), "content_index": 0}
            kind = "content" if item["type"] == "message" else "reasoning"
            item = {**_item(Part(kind, ""), self._text, "completed"), "id": item["id"]}  # type: ignore[arg-type]
            extra: dict[str, Any] = {"logprobs": []} if kind == "content" else {}
            word = _word(item["type"])
            written += self._event(f"response.{word}.done", **place, text=self._text, **extra)
            if kind == "content":
                part = _text_part(self._text)
                written += self._event("response.content_part.done", **place, part=part)
        written += self._event(
            "response.output_item.done", output_index=len(self._items), item=item
        )
        self._items.append(item)
        return written

    def _place(self, item: dict[str, Any] | None) -> dict[str, Any]:
        return {"item_id": (item or {})["id"], "output_index": len(self._items)}

    def closing(self, answers: Sequence[Answer]) -> bytes:
        closed = self._close()
        response = self._done(answers[0], self._items)
        return closed + self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError) -> bytes:
        response = self._response("failed", self._items)
        response["error"] = {"code": "server_error", "message": error.message}
        return self._event(
            "error", code=error.code, message=error.message, param=error.param
        ) + self._event("response.failed", response=response)

    def whole(self, answers: Sequence[Answer]) -> bytes:
        items = []
        for item in answers[0].items:
            text = item.arguments if isinstance(item, ToolCall) else item.text
            items.append(_item(item, text, "completed"))
        return encode(self._done(answers[0], items))

    def _done(self, answer: Answer, items: list[dict[str, Any]]) -> dict[str, Any]:
        cut = answer.finish_reason == "length"
        response = self._response("incomplete" if cut else "completed", items)
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        usage, thoughts = answer.result.usage, answer.reasoning
        response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            # Counted as the thoughts' text would be encoded.
            "output_tokens_details": {"reasoning_tokens": len(self._served.llm.encode(thoughts))},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return {**response, **statistics([answer.result])}

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        request = self._request
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._served.config.name,
            "output": items,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": (request.reasoning or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": self._sampling.temperature,
            "text": {"format": _format(request.text) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_p": self._sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _event(self, kind: str, **members: Any) -> bytes:
        self._number += 1
        data = encode({"type": kind, "sequence_number": self._number, **members})
        return f"event: {kind}\ndata: ".encode() + data + b"\n\n"


def _word(kind: str) -> str:
    return "output_text" if kind == "message" else "reasoning_text"


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(item: Part | ToolCall, text: str | None, status: str) -> dict[str, Any]:
    """An output item with this text; None: it only begins."""
    if isinstance(item, ToolCall):
        return {
            "type": "function_call",
            "id": f"fc_{item.id.removeprefix('call_')}",
            "call_id": item.id,
            "name": item.name,
            "arguments": text,
            "status": status,
        }
    if item.kind == "reasoning":
        content = [] if text is None else [{"type": "reasoning_text", "text": text}]
        id = f"rs_{secrets.token_hex(12)}"
        return {"type": "reasoning", "id": id, "summary": [], "content": content, "status": status}
    return {
        "type": "message",
        "id": f"msg_{secrets.token_hex(12)}",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [_text_part(text)],
    }
