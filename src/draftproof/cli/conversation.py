"""A conversation as `draftproof chat` keeps it: messages, settings, and its file.

Knows neither terminal nor model. Every mistake is an InvalidRequestError, and changes nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import mimetypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.config import SpeculativeConfig
from draftproof.errors import InvalidRequestError
from draftproof.request import SamplingParams

Message = dict[str, Any]

FORMAT = 1
MAX_TOKENS = 1024
MAX_FILE_BYTES = 64 << 20
_ROLES = ("system", "user", "assistant")
# What `/set` knows: the fields of SamplingParams that are one number.
_SETTINGS = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


@dataclass
class Conversation:
    """messages: without the system message. images: for the next message, as data: URLs."""

    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=MAX_TOKENS))
    speculation: SpeculativeConfig = field(default_factory=SpeculativeConfig)

    # --- messages ----------------------------------------------------------------------------

    def prompt(self) -> list[Message]:
        """What the model is asked."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages]

    def say(self, text: str) -> None:
        """Adds the user's message, and the images that wait for it."""
        content: str | list[Message] = text
        if self.images:
            shown = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
            content = [*shown, {"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": content})
        self.images = []

    def hear(self, text: str) -> None:
        """Adds the model's answer, or as much of it as there is."""
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> str:
        """Forgets the last message of the user and what followed it; the text of that message."""
        for i in range(len(self.messages) - 1, -1, -1):
            if self.messages[i]["role"] == "user":
                content = self.messages[i]["content"]
                del self.messages[i:]
                return content if isinstance(content, str) else str(content[-1].get("text", ""))
        raise InvalidRequestError("there is no message to take back")

    def clear(self) -> None:
        """Forgets the messages; the system message and the settings stay."""
        self.messages.clear()
        self.images.clear()

    # --- settings ----------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """What can be set, and what it is."""
        known = {f.name for f in dataclasses.fields(SamplingParams)}
        return {name: getattr(self.sampling, name) for name in _SETTINGS if name in known}

    def set(self, name: str, text: str) -> None:
        settings = self.settings()
        if name not in settings:
            raise InvalidRequestError(
                f"/set knows no {name or 'such setting'}: it knows {', '.join(settings)}"
            )
        value: Any
        try:
            is_whole = name in ("top_k", "seed", "max_tokens")
            value = None if text == "none" and is_whole else int(text) if is_whole else float(text)
        except ValueError:
            raise InvalidRequestError(f"{name} must be a number, got {text!r:.40}") from None
        self.sampling = dataclasses.replace(self.sampling, **{name: value})

    def speculate(self, text: str) -> None:
        """off, auto, or a draft length."""
        if text == "off":
            self.speculation = SpeculativeConfig(drafter="off")
        elif text == "auto":
            self.speculation = SpeculativeConfig()
        elif text.isascii() and text.isdigit():
            self.speculation = SpeculativeConfig(k=int(text[:9]))
        else:
            raise InvalidRequestError(f"/spec takes off, auto or a number, got {text!r:.40}")

    def attach(self, path: Path) -> None:
        """An image for the next message."""
        kind, _ = mimetypes.guess_type(path.name)
        if kind is None or not kind.startswith("image/"):
            raise InvalidRequestError(f"{path} doesn't look like an image (by the end of its name)")
        data = base64.b64encode(_read(path)).decode()
        self.images.append(f"data:{kind};base64,{data}")

    # --- the file ----------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        value = {"draftproof_chat": FORMAT, "system": self.system, "messages": self.messages}
        try:
            path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise InvalidRequestError(
                f"{path} can't be written: {error.strerror or error}"
            ) from None

    def load(self, path: Path) -> None:
        """Replaces the messages and the system message."""
        try:
            value = json.loads(_read(path).decode("utf-8"))
            if value["draftproof_chat"] != FORMAT:
                raise ValueError
            messages = [_checked(message) for message in value["messages"]]
            system = value["system"]
            if system is not None and not isinstance(system, str):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InvalidRequestError(f"{path} isn't a conversation that /save wrote") from None
        self.clear()
        self.messages, self.system = messages, system


def _checked(message: Any) -> Message:
    role, content = message["role"], message["content"]
    if role not in _ROLES or not isinstance(content, (str, list)):
        raise ValueError
    return {"role": role, "content": content}


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequestError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{path} can't be read: {error.strerror or error}") from None
