"""Logprobs over HTTP are those of the Python API, streamed and whole."""

from __future__ import annotations

from typing import Any

from server_support import Running, events

from draftproof.sampling import SamplingParams

FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def test_of_a_chat(tiny_server: Running) -> None:
    llm = tiny_server.service.served.llm
    expected = llm.chat("abc", SamplingParams(max_tokens=12, logprobs=3)).logprobs
    assert expected is not None
    fields = {**FIELDS, "logprobs": True, "top_logprobs": 2}
    message = [{"role": "user", "content": "abc"}]
    whole = tiny_server.chat(**fields, messages=message).json()["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in whole] == [one.logprob for one in expected]
    for one, other in zip(whole, expected, strict=True):
        assert bytes(one["bytes"]) == llm.token_bytes(other.token_id)
        assert [top["logprob"] for top in one["top_logprobs"]] == [lp for _, lp in other.top[:2]]
    chunks = events(tiny_server.chat(**fields, messages=message, stream=True))[:-1]
    streamed = [
        one
        for chunk in chunks
        for choice in chunk["choices"]
        for one in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert streamed == whole
    plain = tiny_server.chat(**FIELDS, messages=message).json()["choices"][0]
    assert "logprobs" not in plain


def test_of_a_raw_prompt(tiny_server: Running) -> None:
    post, fields = tiny_server.client.post, {**FIELDS, "prompt": "abc", "logprobs": 2}
    whole = post("/v1/completions", json=fields).json()["choices"][0]
    logprobs = whole["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 12
    assert all(len(top) <= 2 for top in logprobs["top_logprobs"])
    assert logprobs["text_offset"][0] == 0
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    chunks = events(post("/v1/completions", json={**fields, "stream": True}))[:-1]
    streamed = [chunk["choices"][0]["logprobs"]["token_logprobs"] for chunk in chunks]
    assert [value for values in streamed for value in values] == logprobs["token_logprobs"]
