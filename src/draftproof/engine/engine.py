"""The loop: schedule -> draft -> forward and sample -> verify -> commit. Plain decoding is the same
path with an empty draft; there is no second loop.

Owns the sessions of the running requests. Knows nothing of text, files or HTTP.
Not thread-safe: one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftproof.drafting import NO_DRAFT, Controller, DraftMemory, allot, make_drafter
from draftproof.drafting.verify_cost import MAX_ROWS, Measurement, measure
from draftproof.engine.batch import FAILED, BatchRunner
from draftproof.engine.block_pool import BlockPool
from draftproof.engine.logit_edits import LogitEdits
from draftproof.engine.prefix_cache import PrefixCache
from draftproof.engine.scheduler import Scheduler, Segment
from draftproof.engine.totals import Totals
from draftproof.errors import ContextLengthError, InvalidRequestError, OutOfMemoryError
from draftproof.request import Request, RowReader
from draftproof.verification import Replay, origins, verify

if TYPE_CHECKING:
    from draftproof._native import KvCache, Player
    from draftproof.outputs import Origin, TokenLogprob


class Engine:
    """player, kv: the native side. context: positions of one session. vocab_size: ids below it may
    be chosen. max_rows, max_logit_rows: what the player was built for (EngineConfig has them).
    max_running: requests of one step, None = as many as have logits rows. prefix_cache: keep what
    was computed for requests that begin alike. memory: what drafting has learned; None = nothing.
    """

    def __init__(
        self,
        player: Player,
        kv: KvCache,
        *,
        context: int,
        vocab_size: int,
        max_rows: int,
        max_logit_rows: int,
        prefill_chunk: int,
        max_running: int | None = None,
        prefix_cache: bool = False,
        memory: DraftMemory | None = None,
    ) -> None:
        self._player = player
        self._kv = kv
        self.memory = memory or DraftMemory()
        self._context = context
        self._vocab_size = vocab_size
        self.pool = BlockPool(kv.num_pages, kv.page_positions)
        self.prefix_cache = PrefixCache(self.pool, kv.copy_page) if prefix_cache else None
        self.scheduler = Scheduler(
            self.pool,
            max_rows,
            max_logit_rows,
            prefill_chunk,
            max_running or max_logit_rows,
            self.memory.verify_cost.cost,
        )
        self.totals = Totals()
        self._runner = BatchRunner(player, max_rows, max_logit_rows, context, vocab_size)

    def step(self) -> list[Request]:
        """One pass over the weights for all running requests; returns those that took part.

        New tokens are in their inboxes. An empty list: nothing to do.
        """
        self.reap()
        self.scheduler.admit()
        segments = self.scheduler.schedule()
        if not segments:
            return []
        begin = time.perf_counter()
        try:
            self._draft(segments)
            start = time.perf_counter()
            targets = self._runner.run(segments)
            self._observe(segments, time.perf_counter() - start)
        except BaseException:
            # Nothing was committed: as if the step had not begun.
            for segment in segments:
                segment.session.truncate(segment.start)
            raise
        marked = 0
        try:
            for segment, own_targets in zip(segments, targets, strict=True):
                segment.request.stats.forwards[segment.kind] += 1
                segment.request.stats.shared_forwards += len(segments) > 1
                if segment.kind == "prefill":
                    segment.request.report(segment.session.length)
                if own_targets:  # else a prompt chunk that isn't the last
                    self._commit(segment, own_targets, marked)
                marked += segment.num_logits
        finally:
            # Also when interrupted: no session keeps rows of tokens that were not emitted.
            for segment in segments:
                segment.trim()
        self.reap()
        self.totals.step_seconds += time.perf_counter() - begin
        return [segment.request for segment in segments]

    @property
    def can_measure(self) -> bool:
        """Whether there are pages for `measure_verify_cost`."""
        return self.pool.pages_for(MAX_ROWS) <= self.pool.num_unreserved

    def measure_verify_cost(self, known: Measurement | None = None) -> Measurement:
        """V(m), played on pages that nobody uses; ask `can_measure` first. known: what an earlier
        run measured, returned if it still holds."""
        pages = self.pool.free_pages(self.pool.pages_for(MAX_ROWS))
        return measure(
            self._player, self._kv, vocab_size=self._vocab_size, pages=pages, known=known
        )

    def add(self, request: Request) -> None:
        """Queues a request. Raises as `check` does."""
        self.check(request)
        drafter = make_drafter(request.speculation, self.memory, request.grammar)
        request.controller = Controller(
            drafter, request.speculation, request.stats, self.memory, self._vocab_size
        )
        request.controller.start(request.text_tokens)
        request.edits = LogitEdits.of(request)
        self.scheduler.waiting.append(request)

    def check(self, request: Request) -> None:
        """Sets the request's limits. Raises InvalidRequestError, ContextLengthError (no room for an
        answer) or OutOfMemoryError (more KV than there is)."""
        num_prompt = request.num_prompt
        if num_prompt == 0:
            raise InvalidRequestError("prompt is empty: at least one token is needed")
        answer = request.reader is None  # there is to be one
        if num_prompt + answer > self._context:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens, the context {self._context} including the "
                "answer: shorten the prompt or raise --ctx",
                num_prompt,
                self._context,
            )
        if not 0 <= min(request.tokens) <= max(request.tokens) < self._vocab_size:
            raise InvalidRequestError(
                f"prompt holds a token id outside 0..{self._vocab_size - 1} (the vocabulary)"
            )
        outside = [t for t, _ in request.sampling.bias_pairs if t >= self._vocab_size]
        if outside:
            raise InvalidRequestError(
                f"logit_bias names token {outside[0]}, outside 0..{self._vocab_size - 1} (the "
                "vocabulary)"
            )
        positions = self.pool.num_pages * self.pool.page_positions
        most = min(self._context, positions)
        limit = request.sampling.max_tokens
        request.max_total = most if limit is None else min(self._context, num_prompt + limit)
        if not answer:
            request.max_total = num_prompt
        if request.max_total > positions or num_prompt + answer > positions:
            raise OutOfMemoryError(
                f"the request may need {max(request.max_total, num_prompt + 1)} KV positions, the "
                f"KV cache has {positions}: lower max_tokens or raise --kv-memory"
            )
        request.capacity = min(most, request.max_total + request.stats.k)

    def abort(self, request: Request) -> None:
        """Ends a request without a result; its pages are free before the next step."""
        request.cancelled = True

    def reap(self) -> None:
        """Takes out what is finished or aborted and frees its pages."""
        if any(request.cancelled for request in self.scheduler.waiting):
            kept = [request for request in self.scheduler.waiting if not request.cancelled]
            self.totals.requests_cancelled += len(self.scheduler.waiting) - len(kept)
            self.scheduler.waiting.clear()
            self.scheduler.waiting.extend(kept)
        for request in self.scheduler.running:
            if request.finish_reason is not None or request.cancelled:
                self._close(request)
        self.scheduler.running = [r for r in self.scheduler.running if r.session is not None]

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def _draft(self, segments: Sequence[Segment]) -> None:
        """Asks for drafts, shares out what the step can bear, and makes room for all rows."""
        rows = sum(len(segment.tokens) for segment in segments)
        for segment in segments:
            if segment.draft_room > 0:
                segment.draft = segment.request.controller.propose(
                    segment.request.text_tokens,
                    segment.draft_room,
                    rows - len(segment.tokens),
                    len(segments) - 1,
                )
        if len(segments) > 1:
            self._share_out(segments, rows)
        for segment in segments:
            segment.take_draft()
            segment.session.append(segment.tokens)

    def _share_out(self, segments: Sequence[Segment], rows: int) -> None:
        """Each draft was chosen as if it were the only one: together they may be too many."""
        drafting = [segment for segment in segments if segment.draft.tokens]
        ours = [segment for segment in drafting if segment.request.controller.is_controlled]
        rows += sum(len(segment.draft.tokens) for segment in drafting if segment not in ours)
        context = max(segment.start for segment in segments)
        cost = self.memory.verify_cost.cost
        counts = allot(
            [segment.request.controller.chances(segment.draft) for segment in ours],
            sum(segment.request.controller.speed for segment in segments),
            lambda m: cost(m, context),
            rows,
        )
        rows += sum(counts)
        for segment, k in zip(ours, counts, strict=True):
            others = rows - len(segment.tokens) - k
            segment.draft = segment.request.controller.grant(segment.draft, k, others)

    def _observe(self, segments: Sequence[Segment], seconds: float) -> None:
        """Every step of one sequence teaches what its rows cost."""
        self.totals.count_step(segments, seconds)
        if len(segments) == 1 and segments[0].kind != "prefill":
            rows = len(segments[0].tokens)
            self.memory.verify_cost.observe(rows, segments[0].start, seconds)

    def _commit(self, segment: Segment, targets: Sequence[int], marked: int) -> None:
        """Hands on what was verified, then takes back the KV rows of everything else.

        marked: the segment's first row among the marked rows of the batch.
        """
        request = segment.request
        step = request.stats.steps
        if request.reader is not None:
            self._read(segment, request.reader, targets, marked)
        elif segment.kind == "prefill":
            origin = origins(NO_DRAFT, 0, step)
            request.stats.count_plain_step(self._emit(request, targets, marked, origin))
        elif segment.kind == "replay":
            self._commit_replay(request, targets[0], marked)
        elif segment.kind == "probe":
            result = verify(segment.draft.tokens, targets)
            request.replay = Replay(segment.draft, result.tokens)
        else:
            result = verify(segment.draft.tokens, targets)
            origin = origins(segment.draft, len(result.accepted), step)
            emitted = self._emit(request, result.tokens, marked, origin)
            if segment.draft.tokens:
                request.controller.settle(segment.draft, len(result.accepted), emitted)
            else:
                request.controller.settle_plain(emitted, segment.plain_reason)
        segment.trim()

    def _read(
        self, segment: Segment, reader: RowReader, targets: Sequence[int], marked: int
    ) -> None:
        request = segment.request
        if FAILED in targets:
            request.emit(FAILED)
            return
        reader.read(self._runner, marked, segment.start, len(segment.tokens))
        if segment.session.length == request.num_prompt:
            request.end_reading()

    def _commit_replay(self, request: Request, target: int, marked: int) -> None:
        replay = request.replay
        if replay is None:
            return
        origin = replay.origin(request.stats.steps)
        agrees = replay.check(target)
        emitted = self._emit(request, (target,), marked, [origin])
        if agrees and not replay.is_complete and request.finish_reason is None:
            return
        request.stats.replay_mismatches += not agrees
        emitted += replay.done - 1
        agreed = len(replay.expected) - 1 if agrees else emitted - 1
        request.controller.settle(replay.draft, agreed, emitted)
        request.replay = None

    def _emit(
        self, request: Request, tokens: Sequence[int], marked: int, origin: Sequence[Origin]
    ) -> int:
        """Tokens one by one until the answer ends; returns how many were emitted. origin: one per
        token."""
        before = request.num_output
        logprobs: list[TokenLogprob] = []
        if request.sampling.logprobs is not None:
            logprobs = self._runner.logprobs(marked, tokens, request.sampling.logprobs)
        for i, token in enumerate(tokens):
            request.emit(token, logprobs[i] if logprobs else None, origin[i])
            if request.logits_hash is not None and token >= 0:
                request.logits_hash.update(self._runner.logits()[marked + i].tobytes())
            if request.finish_reason is not None:
                break
        emitted = request.num_output - before
        self.totals.generated_tokens += emitted
        return emitted

    def _close(self, request: Request) -> None:
        session = request.session
        if session is None:
            return
        request.kv_length = session.length
        if request.logits_hash is not None and not request.cancelled:
            request.kv_digest = session.digest(self._kv)
        session.close(keep=request.finish_reason != "numeric_error")
        request.session = None
        self.totals.count_request(request)
        if not request.cancelled:
            request.controller.finish(request.text_tokens)
