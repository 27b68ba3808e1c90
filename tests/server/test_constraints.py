"""Answers that have to be a call or JSON: whatever the model would say, here a tiny random one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from server_support import Running, serving

from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from draftproof.server.constraints import json_answer, required_call
from tiny_models import TinyModels

TEMPLATE = {
    "hermes": "{% if tools %}<tool_call>{% endif %}{{ messages[0].content }}",
    "xml": "{% if tools %}<tool_call><function=x><parameter=y>{% endif %}{{ messages[0].content }}",
}
TOOLS = {
    "count": {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/small"}, "why": {"type": "string", "maxLength": 5}},
        "required": ["n"],
        "additionalProperties": False,
        "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
DECLARED = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in TOOLS.items()
]
ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 99}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["hermes", "xml"])
def caller(request: pytest.FixtureRequest, tiny: TinyModels) -> Iterator[Running]:
    path, template = tiny.path("qwen3", "Q8_0"), TEMPLATE[request.param]
    with (
        LLM(path, threads=1, ctx=512, chat_template=template) as llm,
        serving(llm, names=("tiny",)) as running,
    ):
        yield running


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("choice", ["required", "count", "stop"])
def test_a_call_that_must_come(caller: Running, choice: str, seed: int) -> None:
    wanted: Any = choice
    if choice != "required":
        wanted = {"type": "function", "function": {"name": choice}}
    answer = caller.chat(tools=DECLARED, tool_choice=wanted, seed=seed, max_tokens=400).json()
    [one] = answer["choices"]
    if one["finish_reason"] == "length":
        pytest.skip("the random model never closed a string")
    assert one["finish_reason"] == "tool_calls"
    [call] = one["message"]["tool_calls"]
    assert call["function"]["name"] in ({choice} if choice in TOOLS else set(TOOLS))
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "count":
        assert 0 <= arguments["n"] <= 9


@pytest.mark.parametrize(
    "format",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWER, "strict": True}},
        {"type": "json_schema", "schema": ANSWER},
        {"type": "json_object", "schema": ANSWER},
    ],
)
def test_json_by_a_schema(tiny_server: Running, format: dict[str, Any]) -> None:
    answer = tiny_server.chat(response_format=format, max_tokens=200, seed=1).json()
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert isinstance(value["ok"], bool)
    assert set(value) <= {"ok", "n"}


def test_the_same_bits_with_drafts(tiny_server: Running) -> None:
    format = {"type": "json_schema", "schema": ANSWER}
    fields = {"response_format": format, "max_tokens": 200, "seed": 1}
    off = tiny_server.chat(**fields, speculation="off").json()
    on = tiny_server.chat(**fields).json()
    assert on["choices"] == off["choices"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "(" * 50},
        {"type": "string", "pattern": "(a{1000}){1000}"},
        {"anyOf": [{"type": "string", "pattern": f"x{i}.*y"} for i in range(2000)]},
    ],
    ids=range(5),
)
def test_a_schema_that_is_none(tiny_server: Running, schema: dict[str, Any]) -> None:
    begun = time.monotonic()
    response = tiny_server.chat(
        response_format={"type": "json_schema", "schema": schema}, max_tokens=4
    )
    wrong = schema.get("type") == 5 or "$ref" in schema or schema.get("pattern") == "(" * 50
    if wrong or response.status_code != 200:
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "response_format"
    assert time.monotonic() - begun < 4
    tiny_server.chat(max_tokens=1).raise_for_status()


@pytest.mark.parametrize("thoughts", ["none", "possible", "open"])
def test_grammars_for_models_that_think(tiny_server: Running, thoughts: str) -> None:
    """They compile, and an answer without its thoughts is held to what is asked."""
    llm = tiny_server.service.served.llm
    for grammar in (
        required_call("hermes", TOOLS, thoughts),
        required_call("xml", TOOLS, thoughts),
        json_answer(ANSWER, thoughts),
        json_answer(None, thoughts),
    ):
        llm.generate("abc", SamplingParams(max_tokens=3, grammar=grammar))
