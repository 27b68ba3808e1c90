"""The engine's thread: many askers at once, cancelling, a full queue, and every way to end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support import OFF
from test_llm import SHORT, WINDOW, loaded_model

from draftproof import LLM, Completion, SamplingParams
from draftproof.config import EngineConfig
from draftproof.errors import EngineStoppedError, InvalidRequestError, QueueFullError

ENDLESS = SamplingParams(ignore_eos=True)


class Gate:
    """Holds the native call of every step until it is opened."""

    def __init__(self, loaded: Any) -> None:
        self.is_open = threading.Event()
        self.reached = threading.Event()
        self.error: Exception | None = None
        self._forward = loaded.player.forward
        loaded.player.forward = self._wait

    def _wait(self, *arrays: Any) -> Any:
        self.reached.set()
        assert self.is_open.wait(30)
        if self.error is not None:
            raise self.error
        return self._forward(*arrays)


class World:
    def __init__(self, **config: Any) -> None:
        self.loaded = loaded_model()
        self.gate = Gate(self.loaded)
        self.llm = LLM.of(self.loaded, EngineConfig(threads=1, **config))

    def in_threads(self, count: int, ask: Callable[[int], Completion]) -> list[Any]:
        """What `ask(i)` returns or raises, all at once, behind the closed gate."""
        results: list[Any] = [None] * count

        def one(i: int) -> None:
            try:
                results[i] = ask(i)
            except Exception as error:
                results[i] = error

        self.threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()
        return results

    def join(self) -> None:
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.gate.is_open.set()
    world.llm.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


PROMPTS = [f"ab{i}ab{i}" for i in range(12)]


def test_threads_and_tasks_share_steps_and_get_what_each_gets_alone(world: World) -> None:
    world.gate.is_open.set()
    llm = world.llm
    alone = [llm.generate(prompt, SHORT).token_ids for prompt in PROMPTS]
    world.gate.is_open.clear()
    world.gate.reached.clear()

    async def ask_all() -> list[Completion]:
        tasks = [asyncio.create_task(llm.agenerate(p, SHORT, WINDOW)) for p in PROMPTS[6:]]
        await asyncio.to_thread(until, lambda: len(llm._front._mailboxes) == 12)
        world.gate.is_open.set()
        return await asyncio.gather(*tasks)

    results = world.in_threads(6, lambda i: llm.generate(PROMPTS[i], SHORT, WINDOW))
    rest = asyncio.run(ask_all())
    world.join()
    assert [r.token_ids for r in [*results, *rest]] == alone
    assert sum(r.speculation["drafted"] for r in [*results, *rest]) > 20
    assert max(world.loaded.player.batches) >= 12


def test_an_async_stream_says_what_the_plain_one_says(world: World) -> None:
    world.gate.is_open.set()

    async def collect() -> list[Any]:
        stream = world.llm.astream("abcabc", SHORT, OFF, progress=True, cache_salt="other")
        return [delta async for delta in stream]

    plain = list(world.llm.stream("abcabc", SHORT, OFF, progress=True))
    other = asyncio.run(collect())
    assert [(d.text, d.token_ids, d.progress) for d in other] == [
        (d.text, d.token_ids, d.progress) for d in plain
    ]
    assert other[0].progress.processed == other[0].progress.total == 6
    assert other[-1].completion.text == "".join(d.text for d in other)


def test_closing_or_cancelling_an_async_stream_cancels_its_request(world: World) -> None:
    world.gate.is_open.set()
    llm = world.llm

    async def close() -> None:
        stream = llm.astream("abc", ENDLESS)
        await anext(stream)
        await stream.aclose()
        await asyncio.to_thread(until, lambda: not llm._front._mailboxes)
        world.gate.is_open.clear()
        task = asyncio.create_task(llm.agenerate("abc", ENDLESS))
        await asyncio.to_thread(until, lambda: len(llm._front._mailboxes) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        world.gate.is_open.set()

    asyncio.run(close())
    until(lambda: llm.metrics().running + llm.metrics().waiting == 0)
    assert llm.metrics().requests_cancelled == 2
    assert llm.metrics().kv_pages_used == 0


def test_an_event_loop_that_is_gone_cancels_its_requests(world: World) -> None:
    async def ask_and_leave() -> None:
        loop = asyncio.get_running_loop()

        def post(*_: object) -> None:
            loop.call_soon_threadsafe(lambda: None)

        world.llm._start(world.llm._maker.make([97, 98], ENDLESS, None), post)

    asyncio.run(ask_and_leave())
    world.gate.is_open.set()
    until(lambda: world.llm.metrics().requests_cancelled == 1)


def test_a_full_queue_says_when_to_come_again() -> None:
    world = World(max_queue=2)
    results = world.in_threads(1, lambda _: world.llm.generate("abc", SHORT, OFF))
    assert world.gate.reached.wait(20)
    streams = [world.llm.stream("abc", SHORT, OFF) for _ in range(3)]
    waiting = world.threads
    more = world.in_threads(2, lambda i: next(streams[i]))  # type: ignore[arg-type,return-value]
    until(lambda: world.llm.metrics().waiting == 2)
    with pytest.raises(QueueFullError, match=r"2 requests wait.*1 seconds") as caught:
        next(streams[2])
    assert 1.0 <= caught.value.retry_after <= 60.0
    world.gate.is_open.set()
    world.join()
    for thread in waiting:
        thread.join(20)
    assert results[0].finish_reason == "length"
    assert [delta.text for delta in more] == [more[0].text] * 2
    world.llm.close()


def test_an_error_inside_the_engine_reaches_everybody(world: World) -> None:
    llm = world.llm
    results = world.in_threads(5, lambda i: llm.generate(PROMPTS[i], SHORT))
    until(lambda: len(llm._front._mailboxes) == 5)
    world.gate.error = ValueError("a bad batch")
    world.gate.is_open.set()
    world.join()
    for error in results:
        assert isinstance(error, EngineStoppedError)
        assert "ValueError: a bad batch" in str(error)
        assert error.__cause__ is world.gate.error
    with pytest.raises(EngineStoppedError, match="a bad batch"):
        llm.generate("abc", SHORT)
    with pytest.raises(EngineStoppedError, match="a bad batch"):
        _ = llm.verify_cost


def test_closing_ends_what_runs_and_what_waits(world: World) -> None:
    llm = world.llm
    results = world.in_threads(3, lambda i: llm.generate(PROMPTS[i], ENDLESS))
    until(lambda: len(llm._front._mailboxes) == 3)
    closer = threading.Thread(target=llm.close)
    closer.start()
    world.gate.is_open.set()
    closer.join(20)
    world.join()
    assert [type(error) for error in results] == [EngineStoppedError] * 3
    with pytest.raises(InvalidRequestError, match="closed"):
        llm.generate("abc", SHORT)


def test_ctrl_c_while_waiting_cancels_and_leaves_the_llm_usable(world: World) -> None:
    def interrupt() -> None:
        assert world.gate.reached.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        world.llm.generate("abc", ENDLESS, OFF)
    thread.join(20)
    world.gate.is_open.set()
    assert world.llm.generate("abc", SHORT).finish_reason == "length"
    assert world.llm.metrics().requests_cancelled == 1


def test_an_llm_that_nobody_holds_ends_its_thread() -> None:
    llm = LLM.of(loaded_model(), EngineConfig(threads=1))
    llm.generate("abc", SHORT)
    thread = llm._front._thread
    assert thread is not None
    assert thread.is_alive()
    del llm
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_metrics_and_words(world: World) -> None:
    world.gate.is_open.set()
    llm = world.llm
    done = llm.generate("abcabcabc", SHORT, WINDOW)
    metrics = llm.metrics()
    assert metrics.requests_finished == 1
    assert metrics.prompt_tokens == 9
    assert metrics.generated_tokens == 50
    assert metrics.speculation["drafted"] == done.speculation["drafted"] > 0
    assert 0.0 < metrics.forward_seconds < metrics.step_seconds
    assert llm.decode(llm.encode("hi <|im_end|>")) == "hi <|im_end|>"
    assert llm.encode("<|im_end|>", parse_special=True) == [257]
    ids = llm.encode_chat("hi")
    assert llm.generate(ids, SHORT).token_ids == llm.chat("hi", SHORT).token_ids
    assert llm.render("hi").startswith("<|im_start|>")
    with pytest.raises(InvalidRequestError, match="tools"):
        llm.generate("abc", SHORT, tools=[])
    with pytest.raises(InvalidRequestError, match="enable_thinking"):
        llm.stream("abc", SHORT, enable_thinking=True)


PROGRAM = """
import os, sys, threading
from test_front import *
llm = LLM.of(loaded_model(), EngineConfig(threads=1))
stream = llm.stream("abc", ENDLESS, WINDOW)
next(stream)
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",  # with a stream that is half read
        """
def read():
    try:
        list(stream)
    except EngineStoppedError:
        pass
threading.Thread(target=read, daemon=True).start()
""",
        "sys.exit(0)",
        "llm.close(); llm.close()",
        """
pid = os.fork()
if pid == 0:
    try:
        llm.generate("abc", SHORT)
    except EngineStoppedError as error:
        assert "forked" in str(error)
        llm.close()
        sys.exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert len(llm.generate("abc", SHORT).token_ids) == 50
""",
    ],
)
def test_the_interpreter_ends(ending: str) -> None:
    folder = Path(__file__).parent
    paths = os.pathsep.join([str(folder), str(folder.parent)])
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM + ending],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        timeout=60,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
