"""What can be asked: text, token ids or a conversation; and the token ids that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from draftproof.errors import InvalidRequestError

if TYPE_CHECKING:
    from draftproof.models import LoadedModel

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int] | Messages
"""Raw text, token ids, or the messages of a chat."""
Tools = Sequence[Mapping[str, Any]]
"""Descriptions of functions, as the model's chat template knows them."""


def as_messages(messages: str | Messages) -> Messages:
    """A string is one user message."""
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def encode_prompt(
    loaded: LoadedModel, prompt: Prompt, tools: Tools | None, template: Mapping[str, Any]
) -> list[int]:
    """Token ids. tools, template: for messages only. Raises InvalidRequestError."""
    parts = [] if isinstance(prompt, str) else list(prompt)
    if parts and all(isinstance(part, Mapping) for part in parts):
        messages = cast("list[Mapping[str, Any]]", parts)
        return loaded.chat_template.encode(loaded.tokenizer, messages, tools=tools, **template)
    if tools is not None or template:
        names = ", ".join([*(["tools"] if tools is not None else []), *template])
        raise InvalidRequestError(f"{names}: only for messages, the prompt is none")
    if isinstance(prompt, str):
        return loaded.tokenizer.encode(prompt, parse_special=True)
    if not all(isinstance(part, int) for part in parts):
        raise InvalidRequestError("prompt must be text, a list of token ids, or messages")
    return cast("list[int]", parts)
