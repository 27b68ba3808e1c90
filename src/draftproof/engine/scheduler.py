"""Who takes part in the next step, and with how many rows. Knows no model and no drafter.

Every running answer gets its row first, then drafts share what is left, then prompts get a chunk:
a large one while nobody waits for a next token, else one that holds nobody up for long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.drafting import NO_DRAFT, Draft
from draftproof.engine.block_pool import BlockPool
from draftproof.engine.session import Session
from draftproof.errors import OutOfMemoryError
from draftproof.request import ForwardKind, Request

# A prompt may make a step of running answers so much longer, in plain steps: one stream waits for
# three plain steps at most, its own one included.
MOST_DELAY = 2.0
# Positions of an answer that a request is promised when it begins. What it needs beyond that it
# takes when it is there; where nothing is left, the request that came last makes room and is
# computed again later, to the same bits.
PROMISED_ANSWER = 256

StepCost = Callable[[int, int], float]
"""(rows, context) -> time of a step, in plain steps."""


@dataclass(slots=True, eq=False)
class Segment:
    """The rows of one request in one step.

    start: KV index of the first row. tokens: the rows' token ids, draft included.
    draft_room: how many draft tokens may join. num_logits: marked rows, the last of the segment.
    plain_reason: why this is a plain step, should no draft join.
    """

    request: Request
    session: Session
    kind: ForwardKind
    start: int
    tokens: list[int]
    draft_room: int
    num_logits: int
    plain_reason: str = ""
    draft: Draft = NO_DRAFT

    def take_draft(self) -> None:
        """The draft's tokens become rows."""
        if self.draft.tokens:
            self.tokens.extend(self.draft.tokens)
            self.num_logits += len(self.draft.tokens)
            self.kind = "verify" if self.request.speculation.verify == "exact" else "probe"
        elif self.draft_room > 0:
            self.plain_reason = self.request.controller.reason

    def trim(self) -> None:
        """Takes back the KV rows of tokens that were not emitted (the last one never was there)."""
        length = len(self.request.tokens) - 1
        self.session.truncate(min(self.session.length, length))


class Scheduler:
    """max_rows, max_logit_rows: limits of one step. prefill_chunk: prompt rows of one step.
    max_running: requests that take part at the same time. step_cost: V(m)."""

    def __init__(
        self,
        pool: BlockPool,
        max_rows: int,
        max_logit_rows: int,
        prefill_chunk: int,
        max_running: int,
        step_cost: StepCost,
    ) -> None:
        self._pool = pool
        self._max_rows = max_rows
        self._max_logit_rows = max_logit_rows
        self._prefill_chunk = prefill_chunk
        self._max_running = min(max_running, max_logit_rows)
        self._step_cost = step_cost
        self.preemptions = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order in which they began

    def admit(self) -> None:
        """Opens sessions in order of arrival as long as the pool can promise what they need."""
        while self.waiting and len(self.running) < self._max_running:
            request = self.waiting[0]
            sure = min(request.max_total, len(request.tokens) + PROMISED_ANSWER)
            try:
                session = Session(
                    self._pool,
                    request.capacity,
                    sure,
                    tokens=_cacheable(request),
                    salt=request.cache_salt,
                    content=request.content_keys,
                )
            except OutOfMemoryError:
                return
            request.session = session
            if not request.time_start:
                request.time_start = time.perf_counter()
                request.num_cached = min(session.length, request.num_prompt)
            self.running.append(self.waiting.popleft())

    def schedule(self) -> list[Segment]:
        """The segments of the next step, drafts still missing, prefill last."""
        for request in self.running:
            if request.session is not None:
                request.session.publish()  # what earlier steps computed
        self._make_room()
        answering = [r for r in self.running if not self._is_prompt_missing(r)]
        segments = self._decode_segments(answering)
        missing = [r for r in self.running if self._is_prompt_missing(r)]
        if missing:
            rooms = sum(segment.draft_room for segment in segments)
            most = self._max_rows - len(segments) - rooms
            marks = self._max_logit_rows - len(self.running) - rooms
            chunk = min(most, self._chunk(segments))
            segments += self._prefill_segments(missing, chunk, 1 + marks // len(missing))
        return segments

    @staticmethod
    def _is_prompt_missing(request: Request) -> bool:
        """Whether there are rows to compute before the next token can be drafted for: those of the
        prompt, or of all tokens of a request that had to make room."""
        length = 0 if request.session is None else request.session.length
        return length < request.num_prompt or length < len(request.tokens) - 1

    def _make_room(self) -> None:
        """A page for the next row of every answer, oldest first; the youngest make room."""
        spare = self._pool.num_unreserved
        for request in list(self.running):
            if request.session is None or self._is_prompt_missing(request):
                continue  # what a prompt needs was promised
            need = request.session.beyond_promise(request.session.length + 1)
            while need > spare and request.session is not None:
                before = self._pool.num_unreserved
                self._preempt(self.running[-1])
                spare += self._pool.num_unreserved - before
            spare -= need if request.session is not None else 0

    def _preempt(self, request: Request) -> None:
        session = request.session
        if session is None:
            raise RuntimeError("a request without a session can't make room")
        session.close(keep=True)
        request.session = None
        self.running.remove(request)
        self.waiting.appendleft(request)
        self.preemptions += 1

    def _decode_segments(self, requests: Sequence[Request]) -> list[Segment]:
        segments: list[Segment] = []
        left = min(self._max_rows, self._max_logit_rows) - len(self.running)
        sessions = [(r, r.session) for r in requests if r.session is not None]
        spare = self._pool.num_unreserved
        spare -= sum(session.beyond_promise(session.length + 1) for _, session in sessions)
        for i, (request, session) in enumerate(sessions):
            start = session.length
            own_room = 0
            if request.replay is None:
                own_room = min(request.stats.k, session.capacity - len(request.tokens))
            # An even share of what is left, so that the first doesn't take it all.
            room = min(own_room, -(-left // (len(sessions) - i)))
            own = session.beyond_promise(start + 1)
            room = min(room, session.fits(own + spare) - start - 1)
            spare -= session.beyond_promise(start + 1 + room) - own
            left -= room
            kind: ForwardKind = "decode" if request.replay is None else "replay"
            reason = _plain_reason(request, own_room, room)
            tokens = request.tokens[start:]
            segments.append(Segment(request, session, kind, start, tokens, room, 1, reason))
        return segments

    def _chunk(self, answers: Sequence[Segment]) -> int:
        """Prompt rows of a step that these rows are part of."""
        if not answers:
            return self._prefill_chunk
        rows = len(answers)
        context = max(segment.start for segment in answers)
        limit = self._step_cost(rows, context) + MOST_DELAY
        low, high = 1, self._prefill_chunk
        while low < high:
            middle = (low + high + 1) // 2
            if self._step_cost(rows + middle, context) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _prefill_segments(
        self, requests: Sequence[Request], chunk: int, most_read: int
    ) -> list[Segment]:
        """The oldest gets half of the chunk, the one that has least to go the rest, and so on: no
        prompt waits for ever, and a short one not for a long one. Of several that are about to
        compute the same page, only the first does; the others find it in the cache. most_read:
        rows of a request that reads all of them."""
        left: dict[Request, int] = {}
        coming = set()
        for request in requests:
            session = request.session
            if session is None:
                continue
            adopted = session.adopt(_cacheable(request))
            if not request.num_output:
                request.num_cached += adopted
            block = session.next_block(_cacheable(request))
            if block is None or block not in coming:
                left[request] = len(request.tokens) - session.length
                if request.reader is not None:
                    left[request] = min(left[request], most_read)
            coming.add(block)
        oldest, *others = left
        rows = dict.fromkeys(left, 0)
        rows[oldest] = min(left[oldest], -(-chunk // 2) if others else chunk)
        chunk -= rows[oldest]
        for request in sorted(others, key=left.__getitem__):
            rows[request] = min(left[request], chunk)
            chunk -= rows[request]
        rows[oldest] = min(left[oldest], rows[oldest] + chunk)
        return [_prefill_segment(request, count) for request, count in rows.items() if count > 0]


def _cacheable(request: Request) -> list[int]:
    """What needs no computing if it is known. The last row is computed for its logits, and all of
    them if all are read."""
    return request.tokens[:-1] if request.reader is None else []


def _prefill_segment(request: Request, rows: int) -> Segment:
    session = request.session
    assert session is not None
    start = session.length
    is_last = start + rows == len(request.tokens)
    marked = rows if request.reader is not None else int(is_last)
    return Segment(
        request, session, "prefill", start, request.tokens[start : start + rows], 0, marked
    )


def _plain_reason(request: Request, own_room: int, room: int) -> str:
    if request.stats.k == 0:
        return "disabled"
    if own_room == 0:
        return "context_end"
    return "batch_full" if room == 0 else "no_match"
