"""The engine's own thread: requests come in from any thread, what they produce goes out to their
mailboxes. Owns the queue's bound, and the promise that nobody waits for an answer that can't come.

Knows nothing of text, asyncio or HTTP: a mailbox is a function.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import TypeVar

from draftproof.engine.engine import Engine
from draftproof.engine.prefix_cache import PrefixStats
from draftproof.errors import DraftproofError, EngineStoppedError, QueueFullError
from draftproof.outputs import EngineMetrics, Progress, TokenEvent
from draftproof.request import Request

Received = list[TokenEvent | Progress]
Arrival = Received | DraftproofError
"""What one step gave a request, in order; or why there is nothing more to come."""
Mailbox = Callable[[Request, Arrival], object]
"""Called on the engine's thread: has to be quick, must not call the engine. If it raises, its
request is cancelled."""

_Result = TypeVar("_Result")
_CLOSED = "this LLM was closed while requests were running"
_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds, of a hint when to try again


class Inbox:
    """A mailbox that a thread waits at. given_up: whoever sets it ends the waiting."""

    def __init__(self, given_up: threading.Event | None = None) -> None:
        self._arrivals: SimpleQueue[tuple[Request, Arrival]] = SimpleQueue()
        self._given_up = given_up

    def put(self, request: Request, arrived: Arrival) -> None:
        self._arrivals.put((request, arrived))

    def get(self) -> tuple[Request, Received]:
        """What comes next. Raises what `received` raises, and CancelledError once given up.

        Looks up from time to time: a Ctrl-C that came just before we began to wait wakes nobody."""
        while True:
            if self._given_up is not None and self._given_up.is_set():
                raise CancelledError
            with suppress(Empty):
                request, arrived = self._arrivals.get(timeout=0.5)
                return request, received(arrived)


def received(arrived: Arrival) -> Received:
    """Raises the error that came instead of tokens."""
    if isinstance(arrived, DraftproofError):
        raise arrived
    return arrived


def cancel(requests: Sequence[Request]) -> None:
    """Those that haven't ended."""
    for request in requests:
        request.cancelled = request.finish_reason is None


class EngineThread:
    """Plays all requests together, on a thread that starts with the first of them.

    max_queue: requests that may wait for their first step. Thread-safe.
    """

    def __init__(self, engine: Engine, max_queue: int) -> None:
        self.engine = engine
        self._max_queue = max_queue
        # Reentrant: a finalizer that closes may run inside any of our own lines.
        self._changed = threading.Condition(threading.RLock())
        self._jobs: deque[Future[None]] = deque()
        self._work: dict[Future[None], Callable[[], None]] = {}
        self._mailboxes: dict[Request, Mailbox] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._stopped: tuple[str, BaseException | None] | None = None
        self._pid = os.getpid()
        self._usual_seconds = _SHORTEST_WAIT  # of a request, from its first step to its last

    # --- for any thread --------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request], mailbox: Mailbox) -> None:
        """Queues requests, all or none. Raises QueueFullError or EngineStoppedError.

        Set `cancelled` of a request to end it before the next step."""
        self._check_process()
        with self._changed:
            waiting = self.num_waiting
            if waiting + len(requests) > self._max_queue:
                raise QueueFullError(self._retry_after(), waiting)
            self._put(lambda: self._add(requests))
            for request in requests:
                self._mailboxes[request] = mailbox

    def call(self, work: Callable[[], _Result]) -> _Result:
        """What `work` returns or raises, run on the engine's thread between two steps."""
        self._check_process()
        results: list[_Result] = []
        with self._changed:
            job = self._put(lambda: results.append(work()))
        job.result()
        return results[0]

    def post(self, work: Callable[[], None]) -> None:
        """Like `call`, but doesn't wait: what is submitted later finds it done."""
        self._check_process()
        with self._changed:
            self._put(work)

    def close(self) -> None:
        """Ends the thread after the step that it is in; waiting requests get an error. May be
        called twice, from any thread, at the end of the interpreter and in a forked child."""
        if os.getpid() != self._pid:
            return  # the thread exists in the parent only
        with self._changed:
            self._is_closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is None:
            self._stop(_CLOSED, None)
        elif thread is not threading.current_thread():
            thread.join()

    @property
    def num_waiting(self) -> int:
        """Requests that haven't had their first step."""
        with self._changed:
            return sum(not (r.time_start or r.cancelled) for r in self._mailboxes)

    def metrics(self) -> EngineMetrics:
        """What the engine does at this moment, and what it has done. Never waits for a step."""
        engine, pool = self.engine, self.engine.pool
        prefix = engine.prefix_cache.stats if engine.prefix_cache is not None else PrefixStats()
        return EngineMetrics(
            running=len(engine.scheduler.running),
            waiting=self.num_waiting,
            preemptions=engine.scheduler.preemptions,
            kv_pages_total=pool.num_pages,
            kv_pages_used=pool.num_pages - pool.num_available,
            kv_pages_cached=pool.num_available - pool.num_free,
            **{f"prefix_{name}": value for name, value in asdict(prefix).items()},
            **asdict(engine.totals),
        )

    def _put(self, work: Callable[[], None]) -> Future[None]:
        if self._stopped is not None:
            raise self._error()
        if self._is_closing:
            raise EngineStoppedError(_CLOSED)
        job: Future[None] = Future()
        self._work[job] = work
        self._jobs.append(job)
        if self._thread is None:
            # A daemon, because the interpreter joins other threads before it would close this one.
            self._thread = threading.Thread(target=self._run, name="draftproof", daemon=True)
            self._thread.start()
        self._changed.notify_all()
        return job

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineStoppedError(
                "this LLM was loaded before the process forked, and its threads stayed behind: "
                "load it in the process that uses it"
            )

    def _error(self) -> EngineStoppedError:
        message, cause = self._stopped or ("", None)
        error = EngineStoppedError(message)
        error.__cause__ = cause
        return error

    def _retry_after(self) -> float:
        """Seconds until a request that runs will probably have left."""
        running = max(1, len(self.engine.scheduler.running))
        return min(_LONGEST_WAIT, max(_SHORTEST_WAIT, self._usual_seconds / running))

    # --- on the engine's thread ------------------------------------------------------------------

    def _run(self) -> None:
        message, cause = _CLOSED, None
        try:
            while self._wait_for_work():
                self._do_jobs()
                self._step()
        except BaseException as error:  # whatever it is, those who wait have to hear of it
            message = (
                f"the engine stopped after an error inside it ({type(error).__name__}: {error}): "
                "close this LLM and load it again"
            )
            self._stop(message, error)
        else:
            self._stop(message, cause)

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._is_closing or self._jobs or self.engine.has_work):
                self._changed.wait()
            return not self._is_closing

    def _do_jobs(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                work = self._work.pop(job)
            try:
                work()
            except Exception as error:  # the caller's, not the engine's
                job.set_exception(error)
            else:
                job.set_result(None)

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.cancelled:
                continue
            try:
                self.engine.add(request)
            except DraftproofError as error:
                self._send(request, error)

    def _step(self) -> None:
        stepped = self.engine.step()
        if not stepped and self.engine.has_work:
            raise RuntimeError("requests are waiting that no step takes up")
        for request in stepped:
            if request.inbox:
                arrived, request.inbox = request.inbox, []
                self._send(request, request.error or arrived)
        if any(request.cancelled for request in self._mailboxes):
            with self._changed:
                self._mailboxes = {r: m for r, m in self._mailboxes.items() if not r.cancelled}

    def _send(self, request: Request, arrived: Arrival) -> None:
        """Hands over; forgets the request if nothing more will come."""
        mailbox = self._mailboxes.get(request)
        if request.finish_reason is not None:
            taken = request.time_last - request.time_start
            self._usual_seconds += 0.2 * (taken - self._usual_seconds)
        if request.finish_reason is not None or isinstance(arrived, DraftproofError):
            with self._changed:
                self._mailboxes.pop(request, None)
        if mailbox is None or request.cancelled:
            return
        try:
            mailbox(request, arrived)
        except Exception:  # the receiver is gone, e.g. a closed event loop
            request.cancelled = True

    def _stop(self, message: str, cause: BaseException | None) -> None:
        """Nothing can be asked any more; everybody who waits gets to know why."""
        with self._changed:
            self._stopped = self._stopped or (message, cause)
            jobs, mailboxes = list(self._jobs), list(self._mailboxes)
            self._jobs.clear()
            self._work.clear()
        for job in jobs:
            job.set_exception(self._error())
        for request in mailboxes:
            self._send(request, self._error())
