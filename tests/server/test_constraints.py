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
from draftproof.text.grammar import GrammarCompiler
from draftproof.text.tool_calls import XmlCalls, value_types
from tiny_models import TinyModels

TEMPLATE = {
    "hermes": "{% if tools %}<tool_call>{% endif %}{{ messages[0].content }}",
    "xml": "{% if tools %}<tool_call><function=x><parameter=y>{% endif %}{{ messages[0].content }}",
}
MORE = {"type": "array", "items": {"$ref": "#/$defs/small"}, "maxItems": 3}
TOOLS = {
    "count": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "more": MORE},
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
    assert one["finish_reason"] == "tool_calls"
    [call] = one["message"]["tool_calls"]
    assert call["function"]["name"] in ({choice} if choice in TOOLS else set(TOOLS))
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "count":
        assert set(arguments) <= {"n", "more"}
        numbers = [arguments["n"], *arguments.get("more", [])]
        assert all(isinstance(n, int) and 0 <= n <= 9 for n in numbers)


def test_a_text_is_written_as_it_stands(tiny_server: Running) -> None:
    """Which a random model never ends."""
    tokenizer = tiny_server.service.served.llm._loaded.tokenizer
    say = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    grammar = required_call("xml", {"say": say}, "none")
    matcher = GrammarCompiler(tokenizer).compile(grammar.kind, grammar.text)
    call = """<tool_call>
<function=say>
<parameter=text>
"a" </b>
c
</parameter>
</function>
</tool_call>"""
    ids = tokenizer.encode(call, parse_special=False)
    assert matcher.allowed([*ids, max(tokenizer.eos_ids)]) == len(ids) + 1
    assert matcher.allowed([*ids[:-1], max(tokenizer.eos_ids)]) < len(ids)
    assert matcher.allowed(tokenizer.encode("<tool_call>\n<function=x>", parse_special=False)) < 20


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
    # A salt: or the answers of other tests would be drafted from.
    fields = {"response_format": format, "max_tokens": 200, "seed": 3, "cache_salt": "drafts"}
    off = tiny_server.chat(**fields, speculation="off").json()
    on = tiny_server.chat(**fields, speculation={"drafter": "suffix", "k": 4}).json()
    assert on["choices"] == off["choices"]
    assert off["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    counts = on["metrics"]["speculative_decoding"]
    assert counts["num_accepted_draft_tokens"] > 0
    assert counts["num_rolled_back"] > 0
    assert counts["by_source"]["grammar"]["drafted"] > 0


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


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/small"}, "7", "x"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", '"a"'),
        ({"enum": ["red", "green"]}, "green", "blue"),
        ({"enum": [3, 4]}, "4", "5"),
        ({"type": ["string", "null"]}, "null", None),
    ],
)
def test_a_value_is_read_as_the_grammar_writes_it(
    tiny_server: Running, schema: dict[str, Any], good: str, bad: str | None
) -> None:
    tokenizer = tiny_server.service.served.llm._loaded.tokenizer
    tool = {"properties": {"v": schema}, "required": ["v"], "$defs": {"small": {"type": "integer"}}}
    grammar = required_call("xml", {"f": tool}, "none")
    compiled = GrammarCompiler(tokenizer)

    def call(value: str) -> str:
        return (
            "<tool_call>\n<function=f>\n<parameter=v>\n"
            f"{value}\n</parameter>\n</function>\n</tool_call>"
        )

    def is_allowed(value: str) -> bool:
        ids = tokenizer.encode(call(value), parse_special=False)
        return compiled.compile(grammar.kind, grammar.text).allowed(ids) == len(ids)

    assert is_allowed(good)
    assert bad is None or not is_allowed(bad)
    splitter = XmlCalls({"f": tool})
    [part] = [*splitter.push(call(good)), *splitter.finish()]
    is_text = "string" in str(schema) or "red" in str(schema)
    assert json.loads(part.text) == {"v": good if is_text else json.loads(good)}


def test_references_that_go_in_circles_end() -> None:
    wide = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "integer"}] * 50}
    root = {"$defs": {"a": wide, "b": {"oneOf": [wide, {"$ref": "#/$defs/b"}]}}}
    assert value_types({"$ref": "#/$defs/a"}, root) == {"integer"}
    assert value_types({"$ref": "#/nowhere"}, root) == set()
