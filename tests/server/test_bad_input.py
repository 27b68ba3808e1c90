"""Whatever a client sends: a 4xx that says what is wrong, and the server goes on."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from server_support import FakeLLM, Running, serving

CHAT = "/v1/chat/completions"


def refused(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 10**30}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"seed": -7}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0661": 1}}, "logit_bias"),  # a digit, but not of ASCII
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"speculation": "sometimes"}, "speculation"),
        ({"speculation": {"drafter": "psychic"}}, "speculation.drafter"),
        ({"speculation": {"drafter": "oracle"}}, "speculation.drafter"),
        ({"speculation": {"k": 1000}}, "speculation.k"),
        ({"speculation": {"verify": "never"}}, "speculation.verify"),
        ({"speculation": {"remember": 1}}, "speculation.remember"),
        ({"cache_salt": "x" * 1000}, "cache_salt"),
        ({"sse_ping_interval": -1}, "sse_ping_interval"),
    ],
)
def test_a_wrong_field_is_named(running: Running, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    error = refused(running.client.post(CHAT, json=body))
    assert error["param"] == param
    assert param.rsplit(".", maxsplit=1)[-1].partition("[")[0] in error["message"]


def test_a_missing_field_is_named(running: Running) -> None:
    assert refused(running.client.post(CHAT, json={}))["param"] == "messages"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": "\xff"}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"temperature": NaN, "messages": []}',
        b'{"temperature": 1e999, "messages": []}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a": ' * 500 + b"1" + b"}" * 500,
        b'{"seed": ' + b"9" * 10_000 + b', "messages": []}',
        b"[" + b"1," * 1_100_000 + b"1]",
    ],
    ids=range(16),
)
def test_a_body_that_is_no_request(running: Running, data: bytes) -> None:
    headers = {"content-type": "application/json"}
    refused(running.client.post(CHAT, content=data, headers=headers))
    running.chat().raise_for_status()


def test_bodies_have_a_limit() -> None:
    with serving(FakeLLM(), max_body=2000) as running:
        too_large = b'{"messages": "' + b"x" * 3000
        headers = {"content-type": "application/json"}
        response = running.client.post(CHAT, content=too_large, headers=headers)
        refused(response, 413)
        chunked = iter([too_large[:1000]] * 4)  # without a length
        refused(running.client.post(CHAT, content=chunked, headers=headers), 413)
        running.chat().raise_for_status()


def test_a_body_that_does_not_come() -> None:
    with serving(FakeLLM(), body_timeout=0.2) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as slow:
            slow.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_form_is_no_request(running: Running) -> None:
    """What another site's page could send without asking."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = running.client.post(CHAT, content=b"{}", headers={"content-type": kind})
        refused(response, 415)


def test_paths_and_methods(running: Running) -> None:
    assert refused(running.client.get("/v1/nothing"), 404)["code"] == "unknown_url"
    response = running.client.get(CHAT)
    refused(response, 405)
    assert response.headers["allow"] == "POST"


def test_errors_do_not_echo_what_was_sent(running: Running) -> None:
    secret = "s3cret" * 100
    for body in ({"messages": secret}, {"model": secret, "messages": []}, {"stop": {secret: 1}}):
        text = running.client.post(CHAT, json=body).text
        assert len(text) < 600
    assert "s3crets3crets3crets3crets3crets3cret" * 3 not in running.output.getvalue()


def test_a_log_line_cannot_be_forged() -> None:
    with serving(FakeLLM(), log_json=False) as running:
        running.client.get("/x%0Atime=now%20forged=yes")
        running.chat()
    lines = running.output.getvalue().splitlines()
    assert not any(line.startswith("time=now") for line in lines)
    assert json.dumps("/x\ntime=now forged=yes") in running.output.getvalue()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": ["a", 1]}, "prompt[1]"),
        ("/v1/completions", {"prompt": [True]}, "prompt[0]"),
        ("/v1/completions", {"prompt": {}}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 1000}, "prompt"),
        ("/v1/completions", {"prompt": "a", "logprobs": 99}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": [1, 2], "echo": True}, "echo"),
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 1}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/apply-template", {"messages": 3}, "messages"),
        ("/v1/responses", {"input": []}, "input"),
        ("/v1/responses", {"input": [], "instructions": "Be kind."}, "input"),
        ("/v1/responses", {"input": [{"type": "reasoning", "summary": 5}]}, "input[0].summary"),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": 5}]}, "input[0].content"),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
    ],
)
def test_other_endpoints(running: Running, path: str, body: dict[str, Any], param: str) -> None:
    error = refused(running.client.post(path, json=body))
    assert error["param"] == param


def test_nothing_at_all(running: Running, tiny_server: Running) -> None:
    headers = {"content-type": "application/json"}
    for data in (b"", b" \n"):
        error = refused(running.client.post(CHAT, content=data, headers=headers))
        assert error["message"] == "the body is empty"
    for path in (CHAT, "/apply-template"):
        error = refused(tiny_server.client.post(path, json={"messages": []}))
        assert (error["message"], error["param"]) == ("messages must not be empty", "messages")
    body = {"messages": [], "system": "Be kind.", "max_tokens": 1}
    answer = tiny_server.client.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "messages must not be empty"
