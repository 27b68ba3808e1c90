"""Who takes part in the next step, and with how many rows. Knows no model and no drafter.

Every running request gets its row first, then drafts share what is left, then one prefill chunk.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from draftproof.drafting import NO_DRAFT, Draft
from draftproof.engine.block_pool import BlockPool
from draftproof.engine.session import Session
from draftproof.request import ForwardKind, Request


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

    def trim(self) -> None:
        """Takes back the KV rows of tokens that were not emitted (the last one never was there)."""
        length = len(self.request.tokens) - 1
        self.session.truncate(min(self.session.length, length))


class Scheduler:
    """max_rows, max_logit_rows: limits of one step. prefill_chunk: prompt rows of one step."""

    def __init__(
        self, pool: BlockPool, max_rows: int, max_logit_rows: int, prefill_chunk: int
    ) -> None:
        self._pool = pool
        self._max_rows = max_rows
        self._max_logit_rows = max_logit_rows
        self._prefill_chunk = prefill_chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def admit(self) -> None:
        """Opens sessions in order of arrival as long as the pool can promise their worst case."""
        while self.waiting and len(self.running) < self._max_logit_rows:
            request = self.waiting[0]
            if self._pool.pages_for(request.capacity) > self._pool.num_unreserved:
                return
            request.session = Session(self._pool, request.capacity)
            request.time_start = time.perf_counter()
            self.running.append(self.waiting.popleft())

    def schedule(self) -> list[Segment]:
        """The segments of the next step, drafts still missing, prefill last."""
        prefilling: list[tuple[Request, Session]] = []
        segments: list[Segment] = []
        rows_left = self._max_rows - len(self.running)
        drafts_left = min(self._max_rows, self._max_logit_rows) - len(self.running)
        drafting = sum(
            r.session is not None and r.session.length >= r.num_prompt for r in self.running
        )
        for request in self.running:
            session = request.session
            if session is None:
                continue
            if session.length < request.num_prompt:
                prefilling.append((request, session))
                continue
            start = session.length
            own_room = self._room(request, session)
            # An even share of what is left, so that the first doesn't take it all.
            room = min(own_room, -(-drafts_left // drafting))
            drafting -= 1
            drafts_left -= room
            rows_left -= room
            kind: ForwardKind = "decode" if request.replay is None else "replay"
            reason = _plain_reason(request, own_room, room)
            tokens = request.tokens[start:]
            segments.append(Segment(request, session, kind, start, tokens, room, 1, reason))
        chunk = self._prefill_chunk
        for request, session in prefilling:
            start = session.length
            # Its own row was set aside above; a chunk takes what it can beyond that.
            rows = min(chunk, rows_left + 1, request.num_prompt - start)
            if rows <= 0:
                break
            chunk -= rows
            rows_left -= rows - 1
            marked = int(start + rows == request.num_prompt)
            tokens = request.tokens[start : start + rows]
            segments.append(Segment(request, session, "prefill", start, tokens, 0, marked))
        return segments

    @staticmethod
    def _room(request: Request, session: Session) -> int:
        """Draft tokens that fit behind the last token without writing past the session."""
        if request.replay is not None:
            return 0
        return min(request.stats.k, session.capacity - len(request.tokens))


def _plain_reason(request: Request, own_room: int, room: int) -> str:
    if request.stats.k == 0:
        return "disabled"
    if own_room == 0:
        return "context_end"
    return "batch_full" if room == 0 else "no_match"
