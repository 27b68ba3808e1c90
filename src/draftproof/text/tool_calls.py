"""Tool calls out of an answer's text: JSON in <tool_call> (Hermes: Qwen2.5, Qwen3), or XML
(Qwen3-Coder).

A call is given out once it is complete and well-formed; anything else stays text. White space
between calls belongs to the calls.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from draftproof.text.answer_parts import Part, Splitter, Tools, held_from, of_kind

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"

CallFormat = Literal["hermes", "xml"]


def call_format(template: str) -> CallFormat | None:
    """How a model calls tools, by the source of its chat template; None: it has no tools."""
    if OPEN not in template or "tools" not in template:
        return None
    return "xml" if _FUNCTION in template and _PARAMETER in template else "hermes"


def call_splitter(format: CallFormat, tools: Tools) -> Splitter:
    return XmlCalls(tools) if format == "xml" else HermesCalls()


class _Calls(ABC):
    """Text up to a marker; the white space before a call is dropped with it."""

    def __init__(self) -> None:
        self._held = ""
        self._in_call = False
        self._after_call = False  # nothing but white space since the last call

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while True:
            found = self._call() if self._in_call else self._text()
            if found is None:
                return parts
            parts += found

    def finish(self) -> list[Part]:
        parts = self._last_call() if self._in_call else None
        if parts is None:
            parts = self._release(len(self._held))
        if self._after_call and all(not part.text.strip() for part in parts):
            return []
        return parts

    def _release(self, end: int) -> list[Part]:
        text, self._held = self._held[:end], self._held[end:]
        self._after_call = self._after_call and not text.strip()
        return of_kind("content", text)

    def _text_before(self, start: int) -> list[Part]:
        """Everything before the marker at `start`, without the white space in front of it."""
        text = self._held[:start].rstrip()
        self._held = self._held[start:]
        self._in_call = True
        return of_kind("content", text)

    def _hold(self, markers: tuple[str, ...]) -> list[Part] | None:
        certain = len(self._held[: held_from(self._held, markers)].rstrip())
        return self._release(certain) if certain else None

    def _called(self, name: str, arguments: dict[str, Any], end: int) -> list[Part]:
        self._held = self._held[end:]
        self._in_call = False
        self._after_call = True
        return [Part("tool_call", json.dumps(arguments, ensure_ascii=False), name)]

    def _give_up(self, end: int) -> list[Part]:
        """The marker that was no call, as text."""
        self._in_call = False
        return self._release(end)

    @abstractmethod
    def _text(self) -> list[Part] | None:
        """Parts of the held text outside a call; None: nothing in it is certain yet."""

    @abstractmethod
    def _call(self) -> list[Part] | None:
        """The call that the held text begins with, or its marker as text; None: it isn't whole."""

    @abstractmethod
    def _last_call(self) -> list[Part] | None:
        """The same at the end of the answer, where no more will come; None: it stays text."""


class HermesCalls(_Calls):
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>"""

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0  # of the call in _held
        self._in_string = False

    def _text(self) -> list[Part] | None:
        start = self._held.find(OPEN)
        if start < 0:
            return self._hold((OPEN,))
        self._seen, self._in_string = len(OPEN), False
        return self._text_before(start)

    def _call(self) -> list[Part] | None:
        end = self._end_of_json()
        if end < 0:
            return None
        call = _hermes_call(self._held[len(OPEN) : end])
        end += len(CLOSE)
        return self._called(*call, end) if call else self._give_up(end)

    def _last_call(self) -> list[Part] | None:
        """Models end an answer without the closing tag, too."""
        call = _hermes_call(self._held[len(OPEN) :])
        return self._called(*call, len(self._held)) if call else None

    def _end_of_json(self) -> int:
        """Where the closing tag begins, or -1; a tag inside a JSON string isn't one."""
        text, i = self._held, self._seen
        while i < len(text):
            character = text[i]
            if self._in_string and character == "\\":
                if i + 1 == len(text):
                    break
                i += 1
            elif character == '"':
                self._in_string = not self._in_string
            elif character == "<" and not self._in_string:
                if text.startswith(CLOSE, i):
                    return i
                if CLOSE.startswith(text[i:]):
                    break
            i += 1
        self._seen = i
        return -1


def _hermes_call(text: str) -> tuple[str, dict[str, Any]] | None:
    text = text.strip()
    call = _object(text)
    if call is None and text.startswith("{{") and text.endswith("}}"):
        call = _object(text[1:-1])  # as the template of Qwen2.5-Coder shows it by mistake
    if call is None or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _object(arguments)
    return (call["name"], arguments) if isinstance(arguments, dict) else None


def _object(text: str) -> dict[str, Any] | None:
    value = _json(text)
    return value if isinstance(value, dict) else None


def _json(text: str) -> Any:
    """None for what isn't JSON. Line breaks inside strings are let through: models write them."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return json.loads(text, strict=False, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None


class XmlCalls(_Calls):
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>; the
    outer tag may be missing around a declared tool."""

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self._tools = tools
        self._starts = (OPEN, *(f"{_FUNCTION}{name}>" for name in tools))

    def _text(self) -> list[Part] | None:
        places = [place for place in map(self._held.find, self._starts) if place >= 0]
        return self._text_before(min(places)) if places else self._hold(self._starts)

    def _call(self, final: bool = False) -> list[Part] | None:
        found = _read_xml(self._held, final)
        if found is None:
            return None
        if isinstance(found, int):
            return self._give_up(found)
        name, texts, end = found
        arguments = {key: self._typed(name, key, text) for key, text in texts.items()}
        return self._called(name, arguments, end)

    def _last_call(self) -> list[Part] | None:
        return self._call(final=True)

    def _typed(self, name: str, key: str, text: str) -> Any:
        """The value by its schema: text for strings, JSON for everything else that is JSON."""
        tool = self._tools.get(name, {})
        properties = tool.get("properties")
        types = value_types(properties.get(key), tool) if isinstance(properties, dict) else set()
        if is_text(types):
            return text
        if text.lower() in ("true", "false") and "boolean" in types:
            return text.lower() == "true"
        value = _json(text)
        return text if value is None and text.strip() != "null" else value


def value_types(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty if it doesn't say. root: the schema that a
    reference such as #/$defs/x starts from."""
    found: set[str] = set()
    left, seen = [schema], set()
    while left:
        one = left.pop()
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))  # references may go in circles
        found |= _own_types(one)
        left += [*_list(one.get("anyOf")), *_list(one.get("oneOf"))]
        left.append(_referred(one.get("$ref"), root))
    return found


def _own_types(schema: dict[str, Any]) -> set[str]:
    types = schema.get("type")
    if isinstance(types, str):
        return {types}
    if isinstance(types, list):
        return {name for name in types if isinstance(name, str)}
    values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return {_json_type(value) for value in values}


def is_text(types: set[str]) -> bool:
    """Whether an XML call has a value of these types as it stands, not as JSON."""
    return not types or "string" in types


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), ((int, float), "number"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array"


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a reference within the schema names; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _read_xml(text: str, final: bool) -> tuple[str, dict[str, str], int] | int | None:
    """(name, arguments as text, end) of the call that begins `text`; None while it is incomplete;
    where it breaks off, if it is no call. final: nothing follows."""
    reader = _Reader(text)
    reader.take(OPEN)
    opened = reader.take(_FUNCTION)
    if not opened:
        return None if opened is None else reader.at
    name = reader.until(">")
    arguments: dict[str, str] = {}
    while name is not None:
        parameter = reader.take(_PARAMETER)
        if parameter:
            key = reader.until(">")
            value = reader.until(_PARAMETER_END)
            if key is None or value is None:
                return None
            arguments[key] = value.removeprefix("\n").removesuffix("\n")
            continue
        closed = reader.take(_FUNCTION_END)
        if closed:
            undecided = reader.take(CLOSE) is None and not final
            return None if undecided else (name, arguments, reader.at)
        return None if parameter is None or closed is None else reader.at
    return None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def take(self, marker: str) -> bool | None:
        """Goes behind `marker` and the white space before it. None: it may yet come."""
        start = len(self._text) - len(self._text[self.at :].lstrip())
        if self._text.startswith(marker, start):
            self.at = start + len(marker)
            return True
        return None if marker.startswith(self._text[start:]) else False

    def until(self, marker: str) -> str | None:
        """The text up to `marker`; None: it may yet come."""
        end = self._text.find(marker, self.at)
        if end < 0:
            return None
        start, self.at = self.at, end + len(marker)
        return self._text[start:end]
