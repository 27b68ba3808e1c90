"""What an answer has to look like, as grammars: tool calls that must come, JSON by a schema.

A model that thinks may think first; the grammar begins behind its thoughts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from draftproof.sampling import Grammar
from draftproof.text.answer_parts import Tools
from draftproof.text.tool_calls import CallFormat, is_text, value_types

_THOUGHTS = 'thoughts[suffix="</think>"]: /(?s:.*)/\nSPACE: /[ \\n]+/\n'
_DEFINITIONS = ("$defs", "definitions")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def required_call(format: CallFormat, tools: Tools, thoughts: str) -> Grammar:
    """One call of one of `tools`. thoughts: see `_start`."""
    write = _xml_call if format == "xml" else _hermes_call
    rules = [write(i, name, schema) for i, (name, schema) in enumerate(tools.items())]
    choices = " | ".join(f"call_{i}" for i in range(len(rules)))
    source = _start(thoughts) + f"body: {choices}\n" + "".join(rules)
    return Grammar("lark", source)


def json_answer(schema: Mapping[str, Any] | None, thoughts: str) -> Grammar:
    """JSON by `schema`; None: any object."""
    if thoughts == "none":
        return Grammar("json_object") if schema is None else Grammar("json_schema", schema)
    body = f"body: %json {json.dumps(_ANY_OBJECT if schema is None else schema)}\n"
    return Grammar("lark", _start(thoughts) + body)


def _start(thoughts: str) -> str:
    """thoughts: none; open (the prompt has opened them); possible."""
    if thoughts == "none":
        return "start: body\n"
    begin = "thoughts SPACE?" if thoughts == "open" else '("<think>" thoughts SPACE?)?'
    return f"start: {begin} body\n{_THOUGHTS}"


def _hermes_call(i: int, name: str, schema: Mapping[str, Any]) -> str:
    before = '<tool_call>\n{"name": ' + json.dumps(name) + ', "arguments": '
    return (
        f"call_{i}: {_text(before)} arguments_{i} {_text('}' + chr(10) + '</tool_call>')}\n"
        f"arguments_{i}: %json {json.dumps(schema or _ANY_OBJECT)}\n"
    )


def _xml_call(i: int, name: str, schema: Mapping[str, Any]) -> str:
    """Parameters in the order of the schema; those that aren't required may be left out."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    parts, rules = [], []
    for j, (key, one) in enumerate(properties.items()):
        parts.append(f"parameter_{i}_{j}" + ("" if key in required else "?"))
        opening = _text(f"<parameter={key}>\n")
        closing = _text("\n</parameter>\n")
        if not is_text(value_types(one, schema)):
            shape = {**one, **{key: schema[key] for key in _DEFINITIONS if key in schema}}
            rule = f"parameter_{i}_{j}: {opening} value_{i}_{j} {closing}\n"
            rule += f"value_{i}_{j}: %json {json.dumps(shape)}\n"
        elif choices := _choices(one):
            rule = f"parameter_{i}_{j}: {opening} ({choices}) {closing}\n"
        else:
            rule = f"parameter_{i}_{j}: {opening} value_{i}_{j}\n"
            rule += f'value_{i}_{j}[suffix="\\n</parameter>\\n"]: /(?s:.*)/\n'
        rules.append(rule)
    before = _text(f"<tool_call>\n<function={name}>\n")
    after = _text("</function>\n</tool_call>")
    return " ".join([f"call_{i}: {before}", *parts, after]) + "\n" + "".join(rules)


def _choices(schema: Any) -> str:
    """The texts that may be written, if the schema names them: the only one of its bounds that a
    value as it stands is held to."""
    values = schema.get("enum") if isinstance(schema, dict) else None
    if not isinstance(values, list) or not values:
        return ""
    return " | ".join(_text(value) for value in values if isinstance(value, str))


def _text(text: str) -> str:
    return json.dumps(text)
