"""Ollama's endpoints, for front ends that know only those."""

from __future__ import annotations

import json
from typing import Any

from server_support import HERMES, THINKS, FakeLLM, Running, serving

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "get_weather"}}
USER = [{"role": "user", "content": "Hi"}]


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_chat_streams_by_default() -> None:
    text = f"<think>\nHm.\n</think>\n\nYes.\n{CALL}"
    with serving(FakeLLM(text=text, template=HERMES + THINKS)) as running:
        body = {"model": "fake:latest", "messages": USER, "tools": [TOOL]}
        response = running.client.post("/api/chat", json=body)
        whole = running.client.post("/api/chat", json={**body, "stream": False}).json()
    assert response.headers["content-type"] == "application/x-ndjson"
    pieces = lines(response.text)
    assert [piece["done"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    joined = {
        key: "".join(piece["message"].get(key, "") for piece in pieces)
        for key in ("content", "thinking")
    }
    assert joined == {"content": "Yes.", "thinking": "Hm."}
    assert whole["message"]["content"] == "Yes."
    assert whole["message"]["thinking"] == "Hm."
    calls = [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]
    assert whole["message"]["tool_calls"] == calls
    assert [piece["message"]["tool_calls"] for piece in pieces if "tool_calls" in piece["message"]]
    assert whole["done_reason"] == "stop"
    assert whole["eval_count"] > 0


def test_generate(running: Running, fake: FakeLLM) -> None:
    body = {"prompt": "abc", "stream": False, "options": {"num_predict": 2, "temperature": 0}}
    answer = running.client.post("/api/generate", json=body).json()
    assert (answer["response"], answer["done_reason"]) == ("Hello,", "length")
    assert fake.asked[0]["messages"] == [{"role": "user", "content": "abc"}]
    running.client.post("/api/generate", json={**body, "raw": True})
    assert fake.asked[-1]["prompt"] == [97, 98, 99]
    pieces = lines(running.client.post("/api/generate", json={**body, "stream": True}).text)
    assert "".join(piece["response"] for piece in pieces) == "Hello,"


def test_what_is_there(running: Running) -> None:
    [entry] = running.client.get("/api/tags").json()["models"]
    assert entry["name"] == "fake"
    assert running.client.get("/api/version").json()["version"]
    shown = running.client.post("/api/show", json={"model": "fake"}).json()
    assert shown["capabilities"] == ["completion"]


def test_errors(running: Running) -> None:
    for fields, words in (
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"num_ctx": 10**6}}, "options.num_ctx"),
        ({"format": "xml"}, "format"),
        ({"messages": 1}, "messages"),
        ({"messages": [1]}, "messages[0]"),
    ):
        response = running.client.post("/api/chat", json={"messages": USER, **fields})
        assert response.status_code == 400, fields
        assert response.json()["error"].startswith(words)
