"""Declared tools, tool_choice and response_format, in the shapes of OpenAI; other protocols turn
theirs into these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.sampling import Grammar
from draftproof.server.constraints import json_answer, required_call
from draftproof.server.errors import ApiError, bad_field
from draftproof.server.served import Served
from draftproof.text.answer_parts import AnswerSplitter, Tools

MAX_TOOLS = 256
MAX_SCHEMA = 256 << 10  # characters of JSON
_NAME = re.compile(r"[\w.:-]{1,128}")


@dataclass(frozen=True)
class Wishes:
    """What an answer may or must be. declared: as the template gets them, None = none. tools: those
    that may be called. must_call: one of them has to be. schema: of the answer (has_schema)."""

    declared: Sequence[dict[str, Any]] | None = None
    tools: Tools | None = None
    must_call: bool = False
    is_json: bool = False
    schema: Mapping[str, Any] | None = None

    def grammar(self, served: Served, prompt: Sequence[int]) -> Grammar | None:
        """What holds the sampler to it; None = nothing has to."""
        if not self.must_call and not self.is_json:
            return None
        thoughts = served.thoughts_after(prompt)
        if self.must_call and self.tools is not None and served.call_format is not None:
            return required_call(served.call_format, self.tools, thoughts)
        return json_answer(self.schema, thoughts)

    def splitter(self, served: Served, prompt: Sequence[int]) -> Callable[[], AnswerSplitter]:
        return served.splitter_of(prompt, self.tools)


def wishes(
    tools: Sequence[Any] | None, tool_choice: Any, response_format: Any, served: Served
) -> Wishes:
    """Checks all three. Raises ApiError."""
    is_json, schema = checked_format(response_format)
    declared = checked_tools(tools or ())
    names = _chosen(tool_choice, declared)
    if not declared or names == []:
        return Wishes(is_json=is_json, schema=schema)
    if served.call_format is None:
        raise ApiError(
            400,
            "tools can't be used: the chat template of this model has none",
            param="tools",
            code="tools_not_supported",
        )
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in declared}
    must_call = names is not None
    if names is not None:
        schemas = {name: schemas[name] for name in names}
    return Wishes(declared, schemas, must_call, is_json and not must_call, schema)


def checked_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        raise bad_field("tools", f"has {len(tools)} entries, at most {MAX_TOOLS} are allowed")
    result: list[dict[str, Any]] = []
    names: set[str] = set()
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if not isinstance(tool, dict) or tool.get("type", "function") != "function":
            raise bad_field(where, "must be an object of type function")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise bad_field(f"{where}.function", "must be an object")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise bad_field(
                f"{where}.function.name", "must be 1 to 128 letters, digits or any of _ . : -"
            )
        if name in names:
            raise bad_field(f"{where}.function.name", "occurs twice")
        names.add(name)
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise bad_field(f"{where}.function.parameters", "must be a JSON schema (an object)")
        _check_size(f"{where}.function.parameters", parameters)
        shape = parameters or {"type": "object", "properties": {}}
        result.append({"type": "function", "function": {**function, "parameters": shape}})
    return result


def _chosen(choice: Any, declared: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Names of which one must be called; None: as the model likes; []: no calls."""
    names = [one["function"]["name"] for one in declared]
    if choice is None or choice == "auto":
        return None
    if choice == "none":
        return []
    if choice == "required" or isinstance(choice, dict):
        if not names:
            raise bad_field("tool_choice", "needs tools")
        if choice == "required":
            return names
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or name not in names:
            raise bad_field("tool_choice", "must name a function of tools")
        return [str(name)]
    raise bad_field("tool_choice", "must be auto, none, required or name a function")


def checked_format(wanted: Any) -> tuple[bool, Mapping[str, Any] | None]:
    """(whether JSON is wanted, its schema) of a response_format, in any of its usual shapes."""
    if wanted is None:
        return False, None
    where = "response_format"
    if not isinstance(wanted, dict):
        raise bad_field(where, "must be an object")
    kind = wanted.get("type")
    if kind == "text":
        return False, None
    if kind == "json_object":
        where, schema = f"{where}.schema", wanted.get("schema")
        if schema is None:
            return True, None
    elif kind == "json_schema":
        nested = wanted.get("json_schema")
        if isinstance(nested, dict):
            where, schema = f"{where}.json_schema.schema", nested.get("schema")
        else:
            where, schema = f"{where}.schema", wanted.get("schema")
    else:
        raise bad_field(f"{where}.type", "must be text, json_object or json_schema")
    if not isinstance(schema, dict):
        raise bad_field(where, "must be a JSON schema (an object)")
    _check_size(where, schema)
    return True, schema


def _check_size(where: str, schema: Any) -> None:
    if schema is not None and len(json.dumps(schema)) > MAX_SCHEMA:
        raise bad_field(where, f"is larger than {MAX_SCHEMA >> 10} KiB")
