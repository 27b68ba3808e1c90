"""/v1/messages and its count_tokens."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from draftproof.outputs import Completion, Progress
from draftproof.server.errors import ApiError, bad_field
from draftproof.server.jobs import Answer, Job, Step, ToolCall
from draftproof.server.protocol.chat import chat_job
from draftproof.server.protocol.common import Fields, SpeculationFields, encode
from draftproof.server.protocol.openai_answer import statistics
from draftproof.server.protocol.tools import Wishes, wishes
from draftproof.server.served import Served

DEFAULT_MAX_TOKENS = 4096
# A line that Claude Code changes with every request: no prompt with it could be reused.
_BILLING = "x-anthropic-billing-header:"


class MessagesRequest(msgspec.Struct, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    speculation: SpeculationFields | Literal["auto", "off"] | None = None
    cache_salt: str | None = None
    sse_ping_interval: float | None = None


def renamed(request: MessagesRequest) -> dict[str, str]:
    grammar = "tools" if request.output_config is None else "output_config.format"
    return {"stop": "stop_sequences", "grammar": grammar}


async def message_jobs(request: MessagesRequest, served: Served, tenant: str) -> list[Job]:
    """Raises InvalidRequestError and ApiError."""
    fields = Fields(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        max_tokens=DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        stop=request.stop_sequences,
        speculation=request.speculation,
        cache_salt=request.cache_salt,
        stream=request.stream,
        return_progress=request.stream,  # as pings
    )
    messages = openai_messages(request)
    template = _template(request)
    if messages and messages[-1]["role"] == "assistant" and messages[-1]["content"]:
        template["continue_final_message"] = True
    choice = request.tool_choice or {}
    return [
        await chat_job(
            fields,
            served,
            tenant,
            messages,
            _wishes(request, served),
            template,
            parallel_calls=not choice.get("disable_parallel_tool_use"),
        )
    ]


async def count_tokens(request: MessagesRequest, served: Served) -> dict[str, int]:
    declared = _wishes(request, served).declared
    ids = await served.encode_chat(openai_messages(request), declared, **_template(request))
    return {"input_tokens": len(ids)}


def _template(request: MessagesRequest) -> dict[str, Any]:
    kind = (request.thinking or {}).get("type")
    return {} if kind is None else {"enable_thinking": kind != "disabled"}


def _wishes(request: MessagesRequest, served: Served) -> Wishes:
    tools = []
    for i, tool in enumerate(request.tools or ()):
        if tool.get("type", "custom") != "custom":
            raise bad_field(f"tools[{i}].type", "must be custom: server tools aren't supported")
        function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
        if isinstance(tool.get("description"), str):
            function["description"] = tool["description"]
        tools.append({"type": "function", "function": function})
    format = (request.output_config or {}).get("format")
    return wishes(tools, _tool_choice(request.tool_choice), format, served)


def _tool_choice(choice: Mapping[str, Any] | None) -> Any:
    kind = (choice or {"type": "auto"}).get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": (choice or {}).get("name")}}
    names = {"auto": "auto", "any": "required", "none": "none"}
    if kind not in names:
        raise bad_field("tool_choice.type", "must be auto, any, tool or none")
    return names[kind]


def openai_messages(request: MessagesRequest) -> list[dict[str, Any]]:
    """The conversation in the shape that the chat templates read."""
    if not request.messages:
        raise bad_field("messages", "must not be empty")
    result: list[dict[str, Any]] = []
    system = request.system
    if isinstance(system, list):
        texts = [str(block.get("text", "")) for block in system]
        system = "\n\n".join(text for text in texts if not text.startswith(_BILLING))
    if system:
        result.append({"role": "system", "content": system})
    for i, message in enumerate(request.messages):
        where = f"messages[{i}]"
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise bad_field(f"{where}.role", "must be user, assistant or system")
        if isinstance(content, str):
            result.append({"role": role, "content": content})
            continue
        if not isinstance(content, list):
            raise bad_field(f"{where}.content", "must be a string or a list of blocks")
        result += _assistant(content, where) if role == "assistant" else _user(content, where, role)
    return result


def _user(blocks: Sequence[Any], where: str, role: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        kind = _kind(block, place)
        if kind == "text":
            parts.append({"type": "text", "text": _text(block, "text", place)})
        elif kind == "image":
            parts.append(_image(block, place))
        elif kind == "tool_result":
            content = block.get("content", "")
            if isinstance(content, list):
                content = "".join(_text(b, "text", place) for b in content if _kind(b, place))
            id = block.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": id, "content": content})
        else:
            raise bad_field(f"{place}.type", f"{kind[:50]!r} isn't supported")
    if parts:
        only_text = all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if only_text else parts
        results.append({"role": role, "content": content})
    return results


def _assistant(blocks: Sequence[Any], where: str) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        kind = _kind(block, place)
        if kind == "text":
            message["content"] += _text(block, "text", place)
        elif kind == "thinking":
            message["reasoning_content"] = _text(block, "thinking", place)
        elif kind == "tool_use":
            name, arguments = _text(block, "name", place), block.get("input")
            if not isinstance(arguments, dict):
                raise bad_field(f"{place}.input", "must be an object")
            function = {"name": name, "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise bad_field(f"{place}.type", f"{kind[:50]!r} isn't supported")
    if calls:
        message["tool_calls"] = calls
    return [message]


def _kind(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise bad_field(where, "must be a block with a type")
    return kind


def _text(block: Mapping[str, Any], name: str, where: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise bad_field(f"{where}.{name}", "must be a string")
    return text


def _image(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise bad_field(f"{where}.source", "must be an object")
    if source.get("type") == "base64":
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
    else:
        data = str(source.get("url"))
    return {"type": "image_url", "image_url": {"url": data}}


class MessageAnswer:
    """Writes one message."""

    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, request: MessagesRequest, served: Served, jobs: Sequence[Job]) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = served.config.name
        self._prompt_tokens = jobs[0].prompt_tokens
        self._block = -1
        self._open = ""  # kind of the block that is open

    def opening(self) -> bytes:
        message = self._message([], None, None)
        message["usage"] = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        return _event("message_start", message=message) + self.ping()

    def ping(self) -> bytes:
        return _event("ping")

    def progress(self, progress: Progress) -> bytes:
        return self.ping()

    def step(self, step: Step) -> bytes:
        written = b""
        for item in step.items:
            if isinstance(item, ToolCall):
                block = {"type": "tool_use", "id": item.id, "name": item.name, "input": {}}
                written += self._begin("tool_use", block)
                written += self._delta("input_json_delta", "partial_json", item.arguments)
                written += self._end()
            elif item.kind == "reasoning":
                block = {"type": "thinking", "thinking": "", "signature": ""}
                written += self._begin("thinking", block)
                written += self._delta("thinking_delta", "thinking", item.text)
            else:
                written += self._begin("text", {"type": "text", "text": ""})
                written += self._delta("text_delta", "text", item.text)
        return written

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        """Goes on with an open block of this kind, or opens one."""
        if self._open == kind:
            return b""
        ended = self._end()
        self._open = kind
        self._block += 1
        return ended + _event("content_block_start", index=self._block, content_block=block)

    def _end(self) -> bytes:
        if not self._open:
            return b""
        signature = b""
        if self._open == "thinking":
            signature = self._delta("signature_delta", "signature", "")
        self._open = ""
        return signature + _event("content_block_stop", index=self._block)

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        delta = {"type": kind, name: text}
        return _event("content_block_delta", index=self._block, delta=delta)

    def closing(self, answers: Sequence[Answer]) -> bytes:
        reason, sequence = _stop(answers[0])
        result = answers[0].result
        return (
            self._end()
            + _event(
                "message_delta",
                delta={"stop_reason": reason, "stop_sequence": sequence},
                usage=_usage(result),
                **statistics([result]),
            )
            + _event("message_stop")
        )

    def failure(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + encode(error.to_anthropic(self._id)) + b"\n\n"

    def whole(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        message = self._message([_block(item) for item in answer.items], *_stop(answer))
        message["usage"] = _usage(answer.result)
        return encode({**message, **statistics([answer.result])})

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
        }


def _block(item: Any) -> dict[str, Any]:
    if isinstance(item, ToolCall):
        arguments = json.loads(item.arguments)
        return {"type": "tool_use", "id": item.id, "name": item.name, "input": arguments}
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": item.text, "signature": ""}
    return {"type": "text", "text": item.text}


def _stop(answer: Answer) -> tuple[str, str | None]:
    """stop_reason and stop_sequence."""
    if answer.finish_reason == "length":
        return "max_tokens", None
    if answer.finish_reason == "tool_calls":
        return "tool_use", None
    met = answer.result.stop_reason
    return ("stop_sequence", met) if isinstance(met, str) else ("end_turn", None)


def _usage(result: Completion) -> dict[str, int]:
    cached = result.usage.cached_tokens
    return {
        "input_tokens": result.usage.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": result.usage.completion_tokens,
    }


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + encode({"type": kind, **members}) + b"\n\n"
