"""The life of a request: cancelled wherever it is, cut off at its end, errors on the way; and the
life of the server."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpx2
import pytest
from server_support import FakeLLM, Running, events, serving, wait_for

from draftproof.errors import ModelNotFoundError, QueueFullError


def ask_and_leave(running: Running, after: int, **fields: Any) -> None:
    """Sends a chat request, reads `after` lines of its answer and closes the connection."""
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    if after == 0:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{running.url}/v1/chat/completions", json=body, timeout=0.3)
        return
    with running.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(after):
            next(lines)


@pytest.mark.parametrize(
    ("llm", "after", "stream"),
    [
        (FakeLLM(prefill_rows=1000, pause=0.01), 0, True),
        (FakeLLM(prefill_rows=1000, pause=0.01), 0, False),
        (FakeLLM(prefill_rows=1000, pause=0.01), 2, True),
        (FakeLLM(text="a" * 3000, pause=0.01), 5, True),
        (FakeLLM(text="a" * 3000, pause=0.01), 0, False),
    ],
    ids=["prefill", "prefill, whole", "prefill with progress", "decode", "decode, whole"],
)
def test_a_client_that_leaves_is_noticed(llm: FakeLLM, after: int, stream: bool) -> None:
    with serving(llm) as running:
        ask_and_leave(running, after, stream=stream, return_progress=after == 2)
        wait_for(lambda: llm.cancelled == 1)
        wait_for(lambda: any(line.get("outcome") == "cancelled" for line in running.log()))
        assert not running.service.running
        assert llm.ended == 0


def test_embeddings_end_when_their_client_leaves() -> None:
    llm = FakeLLM(pause=30)
    with serving(llm) as running:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{running.url}/v1/embeddings", json={"input": "a"}, timeout=0.3)
        wait_for(lambda: llm.cancelled == 1)
        wait_for(lambda: any(line.get("outcome") == "cancelled" for line in running.log()))
        assert llm.ended == 0
        llm.pause = 0.0
        running.client.post("/v1/embeddings", json={"input": "a"}).raise_for_status()


def test_an_error_before_the_first_piece_is_a_status(fake: FakeLLM, running: Running) -> None:
    fake.fails = QueueFullError(3.2, 5)
    for stream in (False, True):
        response = running.chat(stream=stream)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "4"
        assert response.json()["error"]["code"] == "queue_full"


def test_an_unexpected_error_says_nothing_of_the_inside(
    fake: FakeLLM, running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.fails = KeyError("secret")
    response = running.chat()
    assert response.status_code == 500
    assert "secret" not in response.text
    wait_for(lambda: any("KeyError" in line.get("error", "") for line in running.log()))
    assert "KeyError" in capsys.readouterr().err
    fake.fails = None
    running.chat().raise_for_status()


def test_an_unexpected_error_of_a_handler_is_in_the_log(
    fake: FakeLLM,
    running: Running,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(fake, "embed", broken, raising=False)
    monkeypatch.setattr(fake, "encode_chat", broken)
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        response = running.client.post(path, json=body)
        assert response.status_code == 500
        assert "secret" not in response.text
        written = capsys.readouterr().err
        assert "Traceback" in written
        assert "in broken" in written
        wait_for(lambda path=path: _logged(running, path, "KeyError: 'secret'"))


def _logged(running: Running, path: str, error: str) -> bool:
    return any(line.get("path") == path and line.get("error") == error for line in running.log())


def test_an_answer_that_takes_too_long() -> None:
    llm = FakeLLM(text="a" * 3000, pause=0.05)
    with serving(llm, request_timeout=1.0) as running:
        response = running.chat()
        assert response.status_code == 504
        assert response.headers["x-should-retry"] == "false"
        *chunks, last = events(running.chat(stream=True))
        assert chunks
        assert last["error"]["code"] == "request_timeout"
        wait_for(lambda: llm.cancelled == 2)


def test_until_the_model_is_there() -> None:
    there = threading.Event()

    def load() -> FakeLLM:
        there.wait(10)
        return FakeLLM()

    with serving(load) as running:
        for response in (running.client.get("/health"), running.chat()):
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert response.json()["error"]["code"] == "model_loading"
        there.set()
        wait_for(lambda: running.client.get("/health").status_code == 200)
        running.chat().raise_for_status()


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    def load() -> FakeLLM:
        raise ModelNotFoundError("no such model")

    with serving(load) as running:
        wait_for(lambda: running.server.error is not None)
    assert isinstance(running.server.error, ModelNotFoundError)


def stream_to_the_end(running: Running, into: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: into.extend(events(running.chat(stream=True))))
    thread.start()
    wait_for(lambda: running.service.running)
    return thread


def test_open_streams_are_finished_at_the_end() -> None:
    got: list[Any] = []
    with serving(FakeLLM(text="a" * 60, pause=0.02), shutdown_grace=10) as running:
        thread = stream_to_the_end(running, got)
        running.server.handle_exit(15, None)
        assert running.chat().status_code == 503 if _open(running) else True
        thread.join(10)
    assert got[-1] == "[DONE]"
    assert got[-2]["choices"][0]["finish_reason"] == "stop"


def _open(running: Running) -> bool:
    host, port = running.url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_open_streams_end_with_an_error_when_their_time_is_up() -> None:
    llm = FakeLLM(text="a" * 30000, pause=0.01)
    got: list[Any] = []
    with serving(llm, shutdown_grace=0.3) as running:
        thread = stream_to_the_end(running, got)
        running.server.handle_exit(15, None)
        thread.join(10)
    assert got[-1]["error"]["code"] == "shutting_down"
    assert llm.cancelled == 1
