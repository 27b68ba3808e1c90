"""The official clients of OpenAI and Anthropic against a real server in front of a recital."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from server_support import HERMES, THINKS, FakeLLM, Running, serving

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEXT = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
USER: Any = [{"role": "user", "content": "Weather in Oslo?"}]


@pytest.fixture(scope="module")
def recital() -> FakeLLM:
    return FakeLLM(text=TEXT, template=HERMES + THINKS)


@pytest.fixture(scope="module")
def served(recital: FakeLLM) -> Iterator[Running]:
    with serving(recital, api_keys=("the-key",)) as running:
        yield running


@pytest.fixture(scope="module")
def gpt(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="the-key", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(served: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="the-key", max_retries=0) as client:
        yield client


# --- OpenAI --------------------------------------------------------------------------------------


def test_openai_models(gpt: openai.OpenAI) -> None:
    assert [model.id for model in gpt.models.list()] == ["fake"]
    assert gpt.models.retrieve("fake").owned_by == "draftproof"


def test_openai_chat(gpt: openai.OpenAI) -> None:
    answer = gpt.chat.completions.create(model="fake", messages=USER, tools=[FUNCTION])
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None


def test_openai_chat_stream(gpt: openai.OpenAI) -> None:
    with gpt.chat.completions.stream(
        model="fake", messages=USER, tools=[FUNCTION], stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "Let me see."
    [call] = message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Oslo"},
    )
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None


def test_openai_completions(gpt: openai.OpenAI) -> None:
    answer = gpt.completions.create(model="fake", prompt=["a", "b"], max_tokens=2)
    assert [choice.text for choice in answer.choices] == [TEXT[:6]] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_openai_responses(gpt: openai.OpenAI, recital: FakeLLM, stream: bool) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
    request: Any = {"model": "fake", "input": USER, "tools": [tool], "instructions": "Be brief."}
    if stream:
        with gpt.responses.stream(**request) as events:
            kinds = [event.type for event in events]
            answer: Any = events.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert "response.output_text.delta" in kinds
        assert "response.function_call_arguments.done" in kinds
        assert "response.reasoning_text.delta" in kinds
    else:
        answer = gpt.responses.create(**request)
    assert answer.status == "completed"
    assert answer.output_text == "Let me see."
    thoughts, message, call = answer.output
    assert (thoughts.type, message.type, call.type) == ("reasoning", "message", "function_call")
    assert thoughts.content[0].text == "Hm."
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert recital.asked[-2]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_openai_responses_go_on(gpt: openai.OpenAI, recital: FakeLLM) -> None:
    first = gpt.responses.create(
        model="fake",
        input="Weather?",
        tools=[{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}],
    )
    history: Any = [{"role": "user", "content": "Weather?"}]
    history += [item.model_dump() for item in first.output]
    history += [
        {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "5"}
    ]  # type: ignore[union-attr]
    gpt.responses.create(model="fake", input=history)
    _, assistant, tool = recital.asked[-2]["messages"]
    assert assistant["reasoning_content"] == "Hm."
    assert assistant["tool_calls"][0]["function"]["name"] == "get_weather"
    assert (tool["role"], tool["content"]) == ("tool", "5")
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        gpt.responses.create(model="fake", input="Hi", previous_response_id=first.id)


def test_openai_errors(gpt: openai.OpenAI, served: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        gpt.chat.completions.create(model="fake", messages=USER, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        gpt.chat.completions.create(model="other", messages=USER)
    wrong = openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()


# --- Anthropic -----------------------------------------------------------------------------------

TOOL: Any = {"name": "get_weather", "description": "d", "input_schema": SCHEMA}


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_messages(claude: anthropic.Anthropic, recital: FakeLLM, stream: bool) -> None:
    request: Any = {"model": "fake", "max_tokens": 100, "messages": USER, "tools": [TOOL]}
    request["system"] = [
        {"type": "text", "text": "x-anthropic-billing-header: 123"},
        {"type": "text", "text": "Be brief."},
    ]
    if stream:
        with claude.messages.stream(**request) as events:
            text = "".join(events.text_stream)
            answer = events.get_final_message()
        assert text == "Let me see."
    else:
        answer = claude.messages.create(**request)
    thinking, text_block, call = answer.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "Hm."
    assert text_block.type == "text"
    assert text_block.text == "Let me see."
    assert call.type == "tool_use"
    assert call.input == {"city": "Oslo"}
    assert answer.stop_reason == "tool_use"
    assert answer.usage.output_tokens > 0
    assert answer.usage.input_tokens == len("prompt")
    asked = recital.asked[-2]
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked["tools"][0]["function"]["parameters"] == SCHEMA


def test_anthropic_conversation(claude: anthropic.Anthropic, recital: FakeLLM) -> None:
    messages: Any = [
        *USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "5 degrees"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    claude.messages.create(model="fake", max_tokens=3, messages=messages)
    _, assistant, tool, user = recital.asked[-2]["messages"]
    assert assistant["reasoning_content"] == "Hm."
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert tool == {"role": "tool", "tool_call_id": "t1", "content": "5 degrees"}
    assert user == {"role": "user", "content": "So?"}
    count = claude.messages.count_tokens(model="fake", messages=messages, tools=[TOOL])
    assert count.input_tokens == len("prompt")


def test_anthropic_limits_and_errors(claude: anthropic.Anthropic, served: Running) -> None:
    answer = claude.messages.create(model="fake", max_tokens=2, messages=USER)
    assert answer.stop_reason == "max_tokens"
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model="fake", max_tokens=2, messages=USER, stop_sequences=[""])
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["message"].startswith("stop_sequences")
    wrong = anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0)
    with wrong, pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(model="fake", max_tokens=2, messages=USER)
