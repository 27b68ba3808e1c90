"""Chat templates: messages to a prompt, as text or as token ids.

Owns the rule that no control token can come out of a message, a tool or any other argument: only
the literals of the template itself can name one. Knows nothing of models or of how requests arrive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateSyntaxError

from draftproof.errors import InvalidRequestError, ModelFileError
from draftproof.text.sandbox import TemplateEnvironment, TemplateRefusalError, render_bounded
from draftproof.text.tokenizer import Tokenizer, replace_surrogates

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SOURCE_LIMIT = 1 << 20
_DEPTH_LIMIT = 64
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
_CONTINUE = "continue_final_message"
_MEDIA_KEYS = ("image", "image_url", "video", "video_url", "audio", "input_audio")
_PROBES = (
    [{"role": "user", "content": "one"}],
    [
        {"role": "system", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ],
)


@dataclass(frozen=True)
class _Marked:
    """A template whose literals have each control token replaced by one lone surrogate.

    No argument contains a surrogate (`_clean` sees to it), so every surrogate in the rendered text
    is a control token that the template itself wrote.
    """

    template: Template
    variables: Mapping[str, str]  # bos_token and eos_token, replaced likewise
    token_of: Mapping[str, str]  # surrogate -> control token


@dataclass(frozen=True)
class ChatTemplate:
    """One compiled template; immutable for its users, safe from any thread."""

    source: str
    bos_token: str = ""
    eos_token: str = ""
    _plain: Template = field(repr=False, compare=False, kw_only=True)
    _environment: TemplateEnvironment = field(repr=False, compare=False, kw_only=True)
    _marked: dict[tuple[str, ...], _Marked] = field(
        default_factory=dict, repr=False, compare=False, kw_only=True
    )

    @classmethod
    def from_source(cls, source: str, *, bos_token: str = "", eos_token: str = "") -> ChatTemplate:
        """Compiles `source`. Raises ModelFileError, with the line, if it isn't a template."""
        if len(source) > _SOURCE_LIMIT:
            raise ModelFileError("the chat template is larger than 1 MiB: the file is damaged")
        environment = TemplateEnvironment()
        try:
            plain = environment.compile_tree(environment.parse(source))
        except TemplateSyntaxError as error:
            raise ModelFileError(
                f"the chat template has a syntax error in line {error.lineno}: "
                f"{_one_line(str(error))}"
            ) from None
        except Exception as error:  # RecursionError, SyntaxError of the generated code, ...
            raise ModelFileError(
                f"the chat template can't be compiled: {_one_line(repr(error))}"
            ) from None
        return cls(source, bos_token, eos_token, _plain=plain, _environment=environment)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
        """The template of a GGUF file; ChatML if there is none but its tokens exist.

        Raises ModelFileError for a broken template, InvalidRequestError if the model has none.
        """
        names = {}
        for name in ("bos", "eos"):
            id = metadata.get(f"tokenizer.ggml.{name}_token_id")
            tokens = metadata["tokenizer.ggml.tokens"]
            names[name] = tokens[id] if isinstance(id, int) and 0 <= id < len(tokens) else ""
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str | None):
            raise ModelFileError("tokenizer.chat_template is not a string")
        return cls.of_model(source, tokenizer, names["bos"], names["eos"])

    @classmethod
    def of_model(
        cls, source: str | None, tokenizer: Tokenizer, bos_token: str, eos_token: str
    ) -> ChatTemplate:
        """A model's template; ChatML if there is none but its tokens exist. Raises as
        `from_gguf`."""
        if source is None:
            if not {"<|im_start|>", "<|im_end|>"} <= tokenizer.control_tokens.keys():
                raise InvalidRequestError(
                    "this model has no chat template: give it a plain prompt with --raw"
                )
            source = CHATML
        return cls.from_source(source, bos_token=bos_token, eos_token=eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        pictures: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, for people; `encode` is the safe way to token ids.

        `kwargs` become variables of the template (`enable_thinking`); continue_final_message ends
        the prompt where the last message ends. Content may be a string, null, or a list of text
        parts, and with `pictures` of {"type": "image" | "video"}, for whose places the template
        writes placeholders. Raises InvalidRequestError for a conversation that is malformed or that
        the template refuses, or for a template that exceeds its bounds.
        """
        variables = self._variables(messages, tools, add_generation_prompt, kwargs, pictures)
        return self._run(self._plain, variables, datetime.now())

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        pictures: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt as token ids: those of `render`, except that a control token's name inside
        any argument stays text. Raises as `render`; ModelFileError for a template whose control
        tokens can't be told from its arguments."""
        variables = self._variables(messages, tools, add_generation_prompt, kwargs, pictures)
        marked = self._marked_for(tokenizer)
        return self._encode(tokenizer, marked, variables)

    def _encode(
        self, tokenizer: Tokenizer, marked: _Marked, variables: Mapping[str, Any]
    ) -> list[int]:
        now = datetime.now()
        text = self._run(marked.template, {**variables, **marked.variables}, now)
        ids: list[int] = []
        plain: list[str] = []
        start = 0
        for match in re.finditer("[\ud800-\udfff]", text):
            token = marked.token_of.get(match.group())
            if token is None:
                continue
            plain += text[start : match.start()], token
            ids += tokenizer.encode(text[start : match.start()], parse_special=False)
            ids.append(tokenizer.control_tokens[token])
            start = match.end()
        ids += tokenizer.encode(text[start:], parse_special=False)
        plain.append(text[start:])
        if "".join(plain) != self._run(self._plain, variables, now):
            # It computes with the names of control tokens (compares, measures or cuts them).
            raise ModelFileError(
                "the chat template computes with control tokens, so they can't be kept apart from "
                "what a user writes: use a plain prompt with --raw"
            )
        return ids

    def _marked_for(self, tokenizer: Tokenizer) -> _Marked:
        names = tuple(tokenizer.control_tokens)
        marked = self._marked.get(names)
        if marked is None:
            marked = self._mark(names)
            for probe in _PROBES:
                variables = self._variables(probe, None, True, {})
                try:
                    text = self._run(self._plain, variables, datetime.now())
                except InvalidRequestError:
                    continue  # a template may refuse, for example, system messages
                if "strftime_now" not in self.source and self._encode(
                    tokenizer, marked, variables
                ) != tokenizer.encode(text, parse_special=True):
                    raise ModelFileError(
                        "the chat template builds control tokens from pieces, so they can't be "
                        "kept apart from what a user writes: use a plain prompt with --raw"
                    )
            self._marked[names] = marked
        return marked

    def _mark(self, names: tuple[str, ...]) -> _Marked:
        marker = _Marker(names)
        tree = self._environment.parse(self.source)
        marker.visit(tree)
        variables = {
            "bos_token": marker.mark(self.bos_token),
            "eos_token": marker.mark(self.eos_token),
        }
        token_of = {surrogate: token for token, surrogate in marker.surrogate_of.items()}
        return _Marked(self._environment.compile_tree(tree), variables, token_of)

    def _variables(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
        pictures: bool = False,
    ) -> dict[str, Any]:
        for name in kwargs:
            if name in _RESERVED:
                raise InvalidRequestError(f"{name} can't be set as a variable of the chat template")
        return {
            "documents": None,
            **{name: _clean(value, name) for name, value in kwargs.items()},
            "messages": _clean_messages(messages, "arguments is string" in self.source, pictures),
            "tools": _clean(tools, "tools") or None,
            "add_generation_prompt": add_generation_prompt and not kwargs.get(_CONTINUE),
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }

    @staticmethod
    def _run(template: Template, variables: Mapping[str, Any], now: datetime) -> str:
        try:
            text = render_bounded(template, variables, now)
        except TemplateRefusalError as error:
            raise InvalidRequestError(
                f"the chat template refuses this conversation: {_one_line(str(error))}"
            ) from None
        except Exception as error:  # a template is a program: it can fail in any way
            raise InvalidRequestError(
                "the chat template fails on this conversation: "
                f"{type(error).__name__}: {_one_line(str(error))}"
            ) from None
        return _up_to_last_content(text, variables) if variables.get(_CONTINUE) else text


class _Marker:
    """Replaces control tokens by surrogates in the literals of a template that get written.

    Literals that a template only looks at (compared with, searched for, an index) keep their text:
    they are met by arguments, which do.
    """

    def __init__(self, names: Sequence[str]) -> None:
        longest_first = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.surrogate_of: dict[str, str] = {}

    def mark(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._surrogate(match[0]), replace_surrogates(text))

    def _surrogate(self, token: str) -> str:
        if token not in self.surrogate_of:
            if len(self.surrogate_of) == 0x800:
                raise ModelFileError("the chat template names more than 2048 control tokens")
            self.surrogate_of[token] = chr(0xD800 + len(self.surrogate_of))
        return self.surrogate_of[token]

    def visit(self, node: nodes.Node) -> None:
        if isinstance(node, nodes.TemplateData):
            node.data = self.mark(node.data)
        elif isinstance(node, nodes.Const):
            if isinstance(node.value, str):
                node.value = self.mark(node.value)
        elif isinstance(node, (nodes.Compare, nodes.Test)):
            pass
        elif isinstance(node, nodes.Filter):
            if node.node is not None:
                self.visit(node.node)
            if node.name in ("default", "d"):
                for value in node.args:
                    self.visit(value)
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            self.visit(node.node.node)
        elif isinstance(node, nodes.Getitem):
            self.visit(node.node)
        elif isinstance(node, nodes.Pair):
            self.visit(node.value)
        elif isinstance(node, (nodes.If, nodes.CondExpr)):
            for child in node.iter_child_nodes(exclude=("test",)):
                self.visit(child)
        else:
            for child in node.iter_child_nodes():
                self.visit(child)


def _up_to_last_content(text: str, variables: Mapping[str, Any]) -> str:
    """A prompt that ends where the last message does, for the model to go on with it."""
    last = variables["messages"][-1]
    written = last["content"] if isinstance(last["content"], str) else ""
    for content in (written, written.strip()):
        end = text.rfind(content) if content and last["role"] == "assistant" else -1
        if end >= 0:
            return text[: end + len(content)]
    raise InvalidRequestError(
        "continue_final_message needs a last message of the assistant, with text that the chat "
        "template shows"
    )


def _clean_messages(messages: Any, string_arguments: bool, pictures: bool) -> list[dict[str, Any]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidRequestError("messages must be a list of messages")
    if not messages:
        raise InvalidRequestError("messages must not be empty")
    cleaned = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"{where} must be an object with a string 'role'")
        message = {**message, "content": _clean_content(message.get("content"), where, pictures)}
        result = _clean(message, where)
        if not string_arguments:
            _parse_arguments(result)
        cleaned.append(result)
    return cleaned


def _clean_content(content: Any, where: str, pictures: bool) -> str | list[dict[str, str]]:
    """One string: templates of text models concatenate content and fail on null or a list. A list
    only where there are pictures, whose places the template marks."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"{where}.content must be a string, null or a list of parts")
    texts = []
    parts: list[dict[str, str]] = []
    for i, part in enumerate(content):
        if pictures and isinstance(part, Mapping) and part.get("type") in ("image", "video"):
            parts.append({"type": str(part["type"])})
            continue
        if isinstance(part, Mapping):
            media = [key for key in _MEDIA_KEYS if key in part or part.get("type") == key]
            if media:
                raise InvalidRequestError(
                    f"{where}.content[{i}] is of type {media[0]}: this model reads text only"
                )
            part = part.get("text")
        if not isinstance(part, str):
            raise InvalidRequestError(f"{where}.content[{i}] must be a part with a string 'text'")
        texts.append(part)
        parts.append({"type": "text", "text": part})
    return "".join(texts) if len(texts) == len(parts) else parts


def _parse_arguments(message: dict[str, Any]) -> None:
    """Tool-call arguments sent as a JSON string (as the OpenAI API has it) become an object,
    because the template would quote the string a second time."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                parsed = json.loads(function["arguments"])
            except (ValueError, RecursionError):
                continue
            if isinstance(parsed, dict):
                function["arguments"] = _clean(parsed, "arguments")


def _clean(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of plain JSON data in which no string holds a surrogate."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth == _DEPTH_LIMIT:
        raise InvalidRequestError(f"{where} is nested more than {_DEPTH_LIMIT} deep")
    if isinstance(value, Mapping):
        return {
            _clean(key, where, depth + 1): _clean(item, where, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_clean(item, where, depth + 1) for item in value]
    raise InvalidRequestError(f"{where} holds a {type(value).__name__}, which is not JSON")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
