"""What a user asks, in any of its forms, into token ids and pictures.

Owns the forms of a prompt: text, token ids, messages, messages with pictures. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from draftproof.errors import InvalidRequestError
from draftproof.vision.prompt import ReadPrompt

if TYPE_CHECKING:
    from draftproof.config import EngineConfig
    from draftproof.models import LoadedModel
    from draftproof.request import Request
    from draftproof.vision.media import MediaPolicy
    from draftproof.vision.preprocess import Picture

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int] | Messages
"""Raw text, token ids, or the messages of a chat."""
Tools = Sequence[Mapping[str, Any]]
Progress = Callable[[str, int, "int | None"], None]
"""(what is being read, how far, of how much)"""


class PromptReader:
    """Reads the prompts of one loaded model."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        media: MediaPolicy | None = None,
    ) -> None:
        """media: which URLs and paths of images are read."""
        self._loaded = loaded
        self._pictures = None
        if loaded.vision is not None:
            from draftproof.vision.reader import PictureReader

            self._pictures = PictureReader(
                loaded.vision,
                config.image_min_tokens,
                config.image_max_tokens,
                loaded.tokenizer.control_tokens,
                media,
            )

    def read(self, prompt: Prompt, tools: Tools | None, template: Mapping[str, Any]) -> ReadPrompt:
        """Token ids and pictures; tools and template are for messages only. What was read before
        comes back as it is. Raises InvalidRequestError."""
        if isinstance(prompt, ReadPrompt) and tools is None and not template:
            return prompt
        tokenizer = self._loaded.tokenizer
        parts = [] if isinstance(prompt, str) else list(prompt)
        if parts and all(isinstance(part, Mapping) for part in parts):
            messages, pictures = self._take(cast("Messages", parts))
            ids = self._loaded.chat_template.encode(
                tokenizer, messages, tools=tools, pictures=bool(pictures), **template
            )
            if self._pictures is None or not pictures:
                return ReadPrompt(ids)
            return self._pictures.place(ids, pictures)
        if tools is not None or template:
            names = ", ".join([*(["tools"] if tools is not None else []), *template])
            raise InvalidRequestError(f"{names}: only for messages, the prompt is none")
        if isinstance(prompt, str):
            return ReadPrompt(tokenizer.encode(prompt, parse_special=True))
        if not all(isinstance(part, int) for part in parts):
            raise InvalidRequestError("prompt must be text, a list of token ids, or messages")
        return ReadPrompt(cast("list[int]", parts))

    def render(self, messages: Messages, tools: Tools | None, template: Mapping[str, Any]) -> str:
        """The prompt as text, each picture one placeholder."""
        messages, pictures = self._take(messages)
        return self._loaded.chat_template.render(
            messages, tools=tools, pictures=bool(pictures), **template
        )

    def show_pictures(
        self, request: Request, prompt: ReadPrompt, progress: Progress | None
    ) -> None:
        """Plays the vision tower for the pictures of a request, which takes its time: progress is
        told some times a second."""
        if self._pictures is not None and prompt.pictures:
            request.show(self._pictures.encode(prompt, progress))

    def _take(self, messages: Messages) -> tuple[Messages, list[Picture]]:
        if self._pictures is not None:
            return self._pictures.take(messages)
        if self._loaded.config.rope_sections:
            from draftproof.vision.reader import has_pictures

            if has_pictures(messages):
                raise InvalidRequestError(
                    "this model was loaded without its vision tower: give its mmproj file with "
                    "--mmproj"
                )
        return messages, []


def as_messages(messages: str | Messages) -> Messages:
    """A conversation; a string is one message of the user."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not messages:  # an empty prompt of token ids looks the same from here on
        raise InvalidRequestError("messages must not be empty")
    return messages
