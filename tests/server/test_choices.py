"""Several answers to one prompt; what becomes of the pages of requests that end early."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from server_support import Running, events, folded, serving, wait_for

from draftproof.llm import LLM
from tiny_models import TinyModels

USER = [{"role": "user", "content": "abc"}]
FIELDS: dict[str, Any] = {"messages": USER, "temperature": 1, "seed": 3, "max_tokens": 12, "n": 3}


def test_choices_are_those_of_the_stream(tiny_server: Running) -> None:
    answer = tiny_server.chat(**FIELDS).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len({*texts}) > 1
    assert answer["usage"]["completion_tokens"] > 12
    *chunks, usage, _ = events(
        tiny_server.chat(**FIELDS, stream=True, stream_options={"include_usage": True})
    )
    assert usage["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    assert usage["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    for i, text in enumerate(texts):
        stream = folded(chunks, i)
        assert stream["message"].get("content", "") == text
        assert stream["finish_reason"] == answer["choices"][i]["finish_reason"]
    first = tiny_server.chat(**{**FIELDS, "n": 1}).json()["choices"][0]
    assert first == answer["choices"][0]


def test_choices_of_several_prompts(tiny_server: Running) -> None:
    fields = {"prompt": ["ab", "cd"], "n": 2, "seed": 1, "temperature": 1, "max_tokens": 6}
    answer = tiny_server.client.post("/v1/completions", json=fields).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    alone = tiny_server.client.post("/v1/completions", json={**fields, "prompt": "cd"}).json()
    assert [choice["text"] for choice in answer["choices"][2:]] == [
        choice["text"] for choice in alone["choices"]
    ]


# --- pages ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tiny: TinyModels) -> Iterator[Running]:
    """Plays one request at a time, its prompt in small chunks."""
    path = tiny.path("qwen3", "Q8_0")
    with (
        LLM(path, threads=1, ctx=2048, max_running=1, prefill_chunk=8) as llm,
        serving(llm, names=("tiny",)) as running,
    ):
        yield running


def busy(running: Running) -> tuple[int, int, int]:
    now = running.service.served.llm.metrics()
    return now.running, now.waiting, now.kv_pages_used


LONG = [{"role": "user", "content": "word " * 350}]


@pytest.mark.parametrize("stage", ["queued", "prompt", "answer"])
@pytest.mark.parametrize("stream", [True, False])
def test_one_who_leaves_gives_back_its_pages(narrow: Running, stage: str, stream: bool) -> None:
    wait_for(lambda: busy(narrow) == (0, 0, 0))
    cancelled = narrow.service.served.llm.metrics().requests_cancelled
    generated = narrow.service.served.llm.metrics().generated_tokens
    leave = threading.Event()
    short: dict[str, Any] = {"messages": USER, "max_tokens": 2000, "ignore_eos": True}
    body = {**short, "stream": stream, "speculation": "off"}
    if stage == "prompt":
        body = {**body, "messages": LONG, "return_progress": True}

    def one_who_leaves() -> None:
        """Hangs up as soon as it is told to."""
        address = narrow.url.removeprefix("http://").split(":")
        data = json.dumps(body).encode()
        with socket.create_connection((address[0], int(address[1]))) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(data) + data
            )
            leave.wait(10)

    others: list[httpx2.Response] = []
    first = threading.Thread(
        target=lambda: others.append(narrow.chat(**{**short, "max_tokens": 600}))
    )
    if stage == "queued":
        first.start()
        wait_for(lambda: busy(narrow)[0] == 1)
    thread = threading.Thread(target=one_who_leaves)
    thread.start()
    if stage == "queued":
        wait_for(lambda: busy(narrow)[1] == 1)
    elif stage == "prompt":
        wait_for(lambda: busy(narrow)[2] > 0)
    else:
        wait_for(lambda: narrow.service.served.llm.metrics().generated_tokens > generated)
    leave.set()
    thread.join(10)
    wait_for(lambda: narrow.service.served.llm.metrics().requests_cancelled == cancelled + 1)
    if stage == "prompt":
        assert narrow.service.served.llm.metrics().generated_tokens == generated
    if stage == "queued":
        first.join(20)
        assert others[0].json()["usage"]["completion_tokens"] == 600
    wait_for(lambda: busy(narrow) == (0, 0, 0))
    assert narrow.chat(messages=USER, max_tokens=2).status_code == 200
