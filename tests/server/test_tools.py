"""Tool calls over HTTP: declared, called, streamed; thoughts beside them; answers that go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server_support import HERMES, THINKS, XML, FakeLLM, events, folded, serving

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "</function>\n</tool_call>"
)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(("template", "call"), [(HERMES, CALL), (XML, XML_CALL)])
def test_a_call(template: str, call: str, size: int) -> None:
    text = f"<think>\nHm.\n</think>\n\nLet me see.\n{call}\n{call}"
    fake = FakeLLM(text=text, size=size, template=template + THINKS)
    with serving(fake) as running:
        [choice] = running.chat(tools=[WEATHER]).json()["choices"]
        chunks = events(running.chat(tools=[WEATHER], stream=True))[:-1]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning"] == "Hm."
    assert message["content"] == "Let me see."
    calls = message["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather"] * 2
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Oslo"}] * 2
    assert len({call["id"] for call in calls}) == 2

    stream = folded(chunks)
    assert stream["finish_reason"] == "tool_calls"
    without_ids = [{k: v for k, v in call.items() if k != "id"} for call in calls]
    assert stream["message"]["tool_calls"] == without_ids
    assert stream["message"]["content"] == message["content"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    indices = [call["index"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert indices == [0, 1]
    assert fake.asked[0]["tools"][0]["function"]["name"] == "get_weather"


def test_one_call_at_most() -> None:
    with serving(FakeLLM(text=CALL + CALL, template=HERMES)) as running:
        answer = running.chat(tools=[WEATHER], parallel_tool_calls=False).json()
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert answer["choices"][0]["message"]["content"] is None


def test_without_tools_a_call_is_text() -> None:
    fake = FakeLLM(text=CALL, template=HERMES)
    with serving(fake) as running:
        for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}):
            [choice] = running.chat(**fields).json()["choices"]
            assert choice["message"]["content"] == CALL
            assert choice["finish_reason"] == "stop"
            assert fake.asked[-2]["tools"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        (
            {"tools": [{"function": {"name": "a", "parameters": 1}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [WEATHER] * 1000}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [WEATHER], "tool_choice": {"function": 1}}, "tool_choice"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenizer": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with serving(FakeLLM(template=HERMES)) as running:
        response = running.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_model_without_tools_says_so() -> None:
    with serving(FakeLLM()) as running:
        error = running.chat(tools=[WEATHER]).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "tools_not_supported")


def test_thoughts_of_earlier_turns_have_either_name() -> None:
    fake = FakeLLM()
    with serving(fake) as running:
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning": "c"},
            {"role": "user", "content": "d"},
        ]
        running.chat(messages=messages).raise_for_status()
    assert fake.asked[0]["messages"][1]["reasoning_content"] == "c"
