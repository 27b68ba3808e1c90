"""Ollama's /api/chat, /api/generate, /api/tags, /api/show and /api/version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec

from draftproof.outputs import Progress
from draftproof.server.errors import ApiError, bad_field
from draftproof.server.jobs import Answer, Job, Step, ToolCall
from draftproof.server.protocol.chat import chat_job
from draftproof.server.protocol.common import (
    Fields,
    SpeculationFields,
    encode,
    salt,
    sampling,
    speculation,
)
from draftproof.server.protocol.openai_answer import statistics
from draftproof.server.protocol.tools import wishes
from draftproof.server.served import Served
from draftproof.text.answer_parts import Part


class Options(msgspec.Struct, kw_only=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    num_ctx: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class OllamaRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    options: Options | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    speculation: SpeculationFields | Literal["auto", "off"] | None = None
    cache_salt: str | None = None


class OllamaChat(OllamaRequest, kw_only=True):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


class OllamaGenerate(OllamaRequest, kw_only=True):
    prompt: str
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None
    images: list[str] | None = None


class ShowRequest(msgspec.Struct, kw_only=True):
    model: str | None = None


def renamed(request: OllamaRequest) -> dict[str, str]:
    names = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
    fields = {name: f"options.{name}" for name in Options.__struct_fields__}
    return {
        "grammar": "format",
        **fields,
        **{ours: f"options.{theirs}" for ours, theirs in names.items()},
    }


async def chat_jobs(request: OllamaChat, served: Served, tenant: str) -> list[Job]:
    wanted = wishes(request.tools, None, _format(request.format), served)
    messages = [_message(message) for message in request.messages]
    fields = _fields(request, served)
    return [await chat_job(fields, served, tenant, messages, wanted, _template(request))]


async def generate_jobs(request: OllamaGenerate, served: Served, tenant: str) -> list[Job]:
    fields = _fields(request, served)
    if not request.raw and request.suffix is None:
        wanted = wishes(None, None, _format(request.format), served)
        system = [{"role": "system", "content": request.system}] if request.system else []
        user = _message({"role": "user", "content": request.prompt, "images": request.images})
        messages = [*system, user]
        return [await chat_job(fields, served, tenant, messages, wanted, _template(request))]
    prompt = await served.encode_raw(request.prompt, request.suffix)
    return [
        Job(
            prompt,
            sampling(fields, served),
            speculation(fields, tenant),
            salt(fields.cache_salt, tenant),
        )
    ]


def _fields(request: OllamaRequest, served: Served) -> Fields:
    options = request.options or Options()
    limit = options.num_predict
    if options.num_ctx is not None and options.num_ctx > served.info.context:
        raise bad_field(
            "options.num_ctx",
            f"is {options.num_ctx}, but this server's context has {served.info.context} tokens",
        )
    return Fields(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed,
        max_tokens=None if limit is None or limit in (-1, -2) else limit,  # -1, -2: no limit
        stop=options.stop,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        speculation=request.speculation,
        cache_salt=request.cache_salt,
    )


def _template(request: OllamaRequest) -> dict[str, Any]:
    return {} if request.think is None else {"enable_thinking": request.think is not False}


def _format(format: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if format is None or format == "":
        return None
    if format == "json":
        return {"type": "json_object"}
    if isinstance(format, str):
        raise bad_field("format", "must be json or a JSON schema")
    return {"type": "json_schema", "schema": format}


def _message(message: Any) -> dict[str, Any]:
    """Ollama's message in the shape of OpenAI's."""
    if not isinstance(message, dict):
        return {"role": None}  # refused by the template, with its place
    result = {k: v for k, v in message.items() if k not in ("images", "thinking", "tool_name")}
    if message.get("thinking"):
        result["reasoning_content"] = message["thinking"]
    images = message.get("images")
    if isinstance(images, list) and images:
        urls = [{"url": f"data:image/png;base64,{image}"} for image in images]
        text = {"type": "text", "text": message.get("content") or ""}
        result["content"] = [*({"type": "image_url", "image_url": url} for url in urls), text]
    return result


class OllamaAnswer:
    """Writes one answer, as lines of JSON."""

    stream_type = "application/x-ndjson"

    def __init__(self, request: OllamaRequest, served: Served, jobs: Sequence[Job]) -> None:
        self._is_chat = isinstance(request, OllamaChat)
        self._model = served.config.name

    def opening(self) -> bytes:
        return b""

    def ping(self) -> bytes:
        return b""

    def progress(self, progress: Progress) -> bytes:
        return b""

    def step(self, step: Step) -> bytes:
        lines = [self._piece([item], done=False) for item in step.items]
        return b"".join(encode(line) + b"\n" for line in lines)

    def closing(self, answers: Sequence[Answer]) -> bytes:
        return encode({**self._piece([], done=True), **_figures(answers[0])}) + b"\n"

    def failure(self, error: ApiError) -> bytes:
        return encode(error.to_ollama()) + b"\n"

    def whole(self, answers: Sequence[Answer]) -> bytes:
        piece = self._piece(answers[0].items, done=True)
        return encode({**piece, **_figures(answers[0])})

    def _piece(self, items: Sequence[Part | ToolCall], done: bool) -> dict[str, Any]:
        parts = [item for item in items if isinstance(item, Part)]
        content = "".join(part.text for part in parts if part.kind == "content")
        thinking = "".join(part.text for part in parts if part.kind == "reasoning")
        calls = [_call(item) for item in items if isinstance(item, ToolCall)]
        now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        line: dict[str, Any] = {"model": self._model, "created_at": now}
        if self._is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": content}
            line["message"] = message
        else:
            message = line
            line["response"] = content
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        line["done"] = done
        return line


def _call(call: ToolCall) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}


def _figures(answer: Answer) -> dict[str, Any]:
    """Durations are in nanoseconds."""
    result = answer.result
    times, usage = result.timings, result.usage
    return {
        "done_reason": "length" if answer.finish_reason == "length" else "stop",
        "total_duration": round(1e6 * (times.prompt_ms + times.predicted_ms)),
        "load_duration": round(1e6 * times.load_ms),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": round(1e6 * times.prompt_ms),
        "eval_count": usage.completion_tokens,
        "eval_duration": round(1e6 * times.predicted_ms),
        **statistics([result]),
    }


def tags(served: Served) -> dict[str, Any]:
    return {"models": [_entry(served)]}


def _entry(served: Served) -> dict[str, Any]:
    created = datetime.fromtimestamp(served.created, timezone.utc).isoformat()
    return {
        "name": served.config.name,
        "model": served.config.name,
        "modified_at": created.replace("+00:00", "Z"),
        "size": served.file_size,
        "digest": served.info.fingerprint,
        "details": _details(served),
    }


def _details(served: Served) -> dict[str, Any]:
    info = served.info
    return {
        "format": "gguf",
        "family": info.family,
        "families": [info.family],
        "parameter_size": f"{info.parameters / 1e6:.0f}M",
        "quantization_level": info.quantization,
    }


async def show(request: ShowRequest, served: Served) -> dict[str, Any]:
    capabilities = ["completion"]
    capabilities += ["tools"] if served.call_format else []
    capabilities += ["thinking"] if served.thinks else []
    info = served.info
    return {
        "template": info.chat_template,
        "details": _details(served),
        "model_info": {
            "general.architecture": info.family,
            "general.parameter_count": info.parameters,
            f"{info.family}.context_length": info.context,
        },
        "capabilities": capabilities,
    }
