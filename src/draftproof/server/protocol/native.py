"""Looking at the model: tokenize, detokenize, apply-template, props. Names of llama-server and of
vLLM, both."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import msgspec

from draftproof.errors import InvalidRequestError
from draftproof.server.errors import ApiError, bad_field
from draftproof.server.protocol.common import template_variables
from draftproof.server.served import Served


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """One of content, prompt and messages. parse_special: control tokens in a text count."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


class TemplateRequest(msgspec.Struct, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


async def tokenize(request: TokenizeRequest, served: Served) -> dict[str, Any]:
    if request.messages is not None:
        variables = template_variables(request.chat_template_kwargs)
        ids = await served.encode_chat(request.messages, request.tools, **variables)
    else:
        text = request.content if request.content is not None else request.prompt
        if text is None:
            raise ApiError(400, "content, prompt or messages is required", param="content")
        ids = await served.encode(text, request.parse_special is not False)
    tokens: list[Any] = list(ids)
    if request.with_pieces:
        pieces = map(served.llm.token_bytes, ids)
        tokens = [{"id": id, "piece": _piece(data)} for id, data in zip(ids, pieces, strict=True)]
    return {"tokens": tokens, "count": len(ids), "max_model_len": served.info.context}


def _piece(data: bytes) -> str | list[int]:
    """Text, or the bytes where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: DetokenizeRequest, served: Served) -> dict[str, Any]:
    try:
        data = b"".join(served.llm.token_bytes(id) for id in request.tokens)
    except InvalidRequestError as error:
        raise bad_field("tokens", f"holds an unknown id: {error}") from None
    text = data.decode("utf-8", "replace")
    return {"content": text, "prompt": text}


async def apply_template(request: TemplateRequest, served: Served) -> dict[str, Any]:
    variables = template_variables(request.chat_template_kwargs)
    text = await served.render_chat(request.messages, request.tools, **variables)
    return {"prompt": text}


def props(served: Served) -> dict[str, Any]:
    info = served.info
    return {
        "default_generation_settings": {"n_ctx": info.context, "params": served.defaults},
        "total_slots": served.config.max_choices,
        "model_alias": served.config.name,
        "model_path": served.file_name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": info.chat_template,
        "chat_template_caps": {
            "tools": served.call_format,
            "thinking": served.thinks,
        },
        "build_info": f"draftproof {version()}",
        "system_fingerprint": info.fingerprint,
    }


def version() -> str:
    try:
        return metadata.version("draftproof")
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"
