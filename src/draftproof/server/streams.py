"""Plays jobs and answers in one protocol: as a stream of events, or whole, folded from the same
steps.

Owns the life of an answer: cancelled when its client goes away, pinged while it is slow, cut off
when its time or the server ends. Knows no protocol: an Encoder writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

from starlette.types import Receive, Scope, Send

from draftproof.outputs import Progress
from draftproof.server.errors import ApiError, not_finite, of_exception, took_too_long
from draftproof.server.jobs import Answer, ChoiceReader, Job, Step
from draftproof.server.log import RequestRecord

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.server.service import Service


class Encoder(Protocol):
    """Writes one answer in one protocol; every method returns bytes of the body ("" = none)."""

    stream_type: str

    def opening(self) -> bytes: ...

    def step(self, step: Step) -> bytes: ...

    def progress(self, progress: Progress) -> bytes: ...

    def ping(self) -> bytes: ...

    def closing(self, answers: Sequence[Answer]) -> bytes: ...

    def failure(self, error: ApiError) -> bytes: ...

    def whole(self, answers: Sequence[Answer]) -> bytes: ...


async def steps_of(llm: LLM, job: Job) -> AsyncGenerator[Step | Progress, None]:
    """One job's steps. Closing it cancels the job."""
    readers = [ChoiceReader(job, i) for i in range(job.choices)]
    async with aclosing(job.start(llm)) as deltas:
        async for delta in deltas:
            if delta.progress is not None:
                yield delta.progress
                continue
            yield readers[delta.index].read(delta)


async def steps_of_all(llm: LLM, jobs: Sequence[Job]) -> AsyncGenerator[Step | Progress, None]:
    """The steps of several jobs as they come. The first error ends all of them."""
    if len(jobs) == 1:
        async with aclosing(steps_of(llm, jobs[0])) as steps:
            async for step in steps:
                yield step
        return
    arrived: asyncio.Queue[Step | Progress | BaseException | None] = asyncio.Queue()

    async def pump(job: Job) -> None:
        try:
            async with aclosing(steps_of(llm, job)) as steps:
                async for step in steps:
                    arrived.put_nowait(step)
            arrived.put_nowait(None)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(pump(job)) for job in jobs]
    running = len(tasks)
    try:
        while running:
            item = await arrived.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Reply:
    """The ASGI response to one request for an answer."""

    def __init__(
        self,
        service: Service,
        jobs: Sequence[Job],
        encoder: Encoder,
        record: RequestRecord,
        *,
        stream: bool,
        ping_interval: float | None = None,
        to_error: Callable[[BaseException], ApiError] = of_exception,
    ) -> None:
        """to_error: says what went wrong, in the words of this request's protocol."""
        self._service = service
        self._jobs = jobs
        self._encoder = encoder
        self._record = record
        self._stream = record.stream = stream
        default = service.config.ping_interval
        self._ping_interval = default if ping_interval is None else ping_interval
        self._to_error = to_error
        self._writing = asyncio.Lock()
        self._started = self._ended = False
        self._last_write = time.monotonic()
        self._cut: ApiError | None = None
        self._work: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._work = asyncio.create_task(self._answer())
        helpers = [asyncio.create_task(self._watch(receive))]
        if self._stream and self._ping_interval > 0:
            helpers.append(asyncio.create_task(self._ping()))
        timeout = self._service.config.request_timeout
        timer = asyncio.get_running_loop().call_later(timeout, self.cut, took_too_long(timeout))
        self._service.running.add(self)
        try:
            await self._work
        except asyncio.CancelledError:
            if self._cut is not None:
                await self._fail(self._cut)
            elif self._record.outcome != "cancelled":
                raise
        except OSError:
            self._record.outcome = "cancelled"  # the connection broke while we wrote
        except Exception as error:
            await self._fail(self._to_error(error), error)
        finally:
            self._service.running.discard(self)
            timer.cancel()
            for task in (self._work, *helpers):
                task.cancel()
            await asyncio.gather(self._work, *helpers, return_exceptions=True)

    def cut(self, error: ApiError) -> None:
        """Ends the answer early, with an error that the client sees."""
        if self._work is not None and not self._work.done():
            self._cut = error
            self._work.cancel()

    async def _watch(self, receive: Receive) -> None:
        """Cancels the work once the client has gone away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._work is not None and not self._work.done() and not self._ended:
            self._record.outcome = "cancelled"
            self._work.cancel()

    async def _ping(self) -> None:
        interval = self._ping_interval
        while True:
            await asyncio.sleep(max(0.01, interval + self._last_write - time.monotonic()))
            if time.monotonic() - self._last_write >= interval and not self._ended:
                await self._write(self._encoder.ping())

    async def _answer(self) -> None:
        encoder, record, metrics = self._encoder, self._record, self._service.metrics
        answers = [Answer() for job in self._jobs for _ in range(job.choices)]
        async with aclosing(steps_of_all(self._service.served.llm, self._jobs)) as steps:
            async for step in steps:
                if isinstance(step, Progress):
                    if self._stream:
                        await self._write(encoder.progress(step))
                    continue
                if step.token_ids and not record.first_token:
                    record.first_token = time.perf_counter()
                answers[step.choice].add(step)
                if step.finish_reason == "numeric_error":
                    raise not_finite()
                if self._stream:
                    await self._write(encoder.step(step))
        self._note(answers)
        metrics.count_answers(answers, record)
        if self._stream:
            await self._write(encoder.closing(answers), more=False)
        else:
            await self._write(encoder.whole(answers), more=False)

    def _note(self, answers: Sequence[Answer]) -> None:
        record = self._record
        results = [answer.result for answer in answers]
        first = {job.first_choice for job in self._jobs}
        record.prompt_tokens = sum(results[i].usage.prompt_tokens for i in first)
        record.cached_tokens = sum(results[i].usage.cached_tokens for i in first)
        record.completion_tokens = sum(result.usage.completion_tokens for result in results)
        record.finish_reason = answers[0].finish_reason or ""
        record.spec_line = " ".join(result.spec_line for result in results)

    async def _write(self, data: bytes, more: bool = True) -> None:
        """Starts the response with its first bytes: until then, a failure is a status."""
        if not data and more:
            return
        async with self._writing:
            self._last_write = time.monotonic()
            if not self._started:
                self._started = True
                self._record.status = 200
                await self._send(self._head())
                if self._stream:
                    data = self._encoder.opening() + data
            self._ended = not more
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _fail(self, error: ApiError, cause: BaseException | None = None) -> None:
        self._record.fail(error, cause)
        if not self._started:
            raise error
        with suppress(OSError):
            await self._write(self._encoder.failure(error), more=False)

    def _head(self) -> dict[str, object]:
        kind = self._encoder.stream_type if self._stream else "application/json"
        head = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
        if self._stream:
            head.append((b"x-accel-buffering", b"no"))  # a proxy must not collect the events
        return {"type": "http.response.start", "status": 200, "headers": head}
