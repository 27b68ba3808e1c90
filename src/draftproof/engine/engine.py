"""The loop: schedule -> draft -> forward and sample -> verify -> commit. Plain decoding is the same
path with an empty draft; there is no second loop.

Owns the sessions of the running requests. Knows nothing of text, files or HTTP.
Not thread-safe: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftproof.drafting import NO_DRAFT, Draft
from draftproof.engine.batch import BatchRunner
from draftproof.engine.block_pool import BlockPool
from draftproof.engine.scheduler import Scheduler, Segment
from draftproof.errors import ContextLengthError, InvalidRequestError, OutOfMemoryError
from draftproof.request import Request
from draftproof.verification import Replay, verify

if TYPE_CHECKING:
    from draftproof._native import KvCache, Player


class Engine:
    """player, kv: the native side. context: positions of one session. vocab_size: ids below it may
    be chosen. max_rows, max_logit_rows: what the player was built for (EngineConfig has them).
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
    ) -> None:
        self._kv = kv
        self._context = context
        self._vocab_size = vocab_size
        self.pool = BlockPool(kv.num_pages, kv.page_positions)
        self.scheduler = Scheduler(self.pool, max_rows, max_logit_rows, prefill_chunk)
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
        try:
            for segment in segments:
                self._draft(segment)
            targets = self._runner.run(segments)
        except BaseException:
            # Nothing was committed: as if the step had not begun.
            for segment in segments:
                segment.session.truncate(segment.start)
            raise
        marked = 0
        for segment, own_targets in zip(segments, targets, strict=True):
            segment.request.stats.forwards[segment.kind] += 1
            if own_targets:  # else a prompt chunk that isn't the last
                self._commit(segment, own_targets, marked)
            marked += segment.num_logits
        self.reap()
        return [segment.request for segment in segments]

    def add(self, request: Request) -> None:
        """Queues a request. Raises as `check` does."""
        self.check(request)
        request.drafter.start(request.tokens)
        self.scheduler.waiting.append(request)

    def check(self, request: Request) -> None:
        """Sets the request's limits. Raises InvalidRequestError, ContextLengthError (no room for an
        answer) or OutOfMemoryError (more KV than there is)."""
        num_prompt = request.num_prompt
        if num_prompt == 0:
            raise InvalidRequestError("prompt is empty: at least one token is needed")
        if num_prompt >= self._context:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens, the context {self._context} including the "
                "answer: shorten the prompt or raise --ctx"
            )
        if not 0 <= min(request.tokens) <= max(request.tokens) < self._vocab_size:
            raise InvalidRequestError(
                f"prompt holds a token id outside 0..{self._vocab_size - 1} (the vocabulary)"
            )
        limit = request.sampling.max_tokens or self._context
        request.max_total = min(self._context, num_prompt + limit)
        room = request.stats.k
        request.capacity = min(self._context, request.max_total + room)
        if self.pool.pages_for(request.capacity) > self.pool.num_pages:
            raise OutOfMemoryError(
                f"the request may need {request.capacity} KV positions, the KV cache has "
                f"{self.pool.num_pages * self.pool.page_positions}: lower max_tokens or --ctx"
            )

    def abort(self, request: Request) -> None:
        """Ends a request without a result; its pages are free before the next step."""
        request.cancelled = True

    def reap(self) -> None:
        """Takes out what is finished or aborted and frees its pages."""
        if any(request.cancelled for request in self.scheduler.waiting):
            kept = [request for request in self.scheduler.waiting if not request.cancelled]
            self.scheduler.waiting.clear()
            self.scheduler.waiting.extend(kept)
        for request in self.scheduler.running:
            if request.finish_reason is not None or request.cancelled:
                self._close(request)
        self.scheduler.running = [r for r in self.scheduler.running if r.session is not None]

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def _draft(self, segment: Segment) -> None:
        """Asks for a draft, appends it to the segment's rows and makes room for all of them."""
        request = segment.request
        if segment.draft_room > 0:
            draft = request.drafter.propose(request.tokens, segment.draft_room)
            segment.draft = draft = self._valid(draft, segment.draft_room)
            if draft.tokens:
                segment.tokens.extend(draft.tokens)
                segment.num_logits += len(draft.tokens)
                segment.kind = "verify" if request.speculation.verify == "exact" else "probe"
        segment.session.append(segment.tokens)

    def _valid(self, draft: Draft, room: int) -> Draft:
        """A drafter is never trusted with the bounds of an array: cut at the first bad token."""
        tokens = draft.tokens[:room]
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._vocab_size:
            good = [0 <= token < self._vocab_size for token in tokens]
            tokens = tokens[: good.index(False)]
        if not tokens:
            return NO_DRAFT
        return draft if len(tokens) == len(draft.tokens) else Draft(tokens, draft.source)

    def _commit(self, segment: Segment, targets: Sequence[int], marked: int) -> None:
        """Hands on what was verified, then takes back the KV rows of everything else.

        marked: the segment's first row among the marked rows of the batch.
        """
        request, session = segment.request, segment.session
        if segment.kind == "prefill":
            request.stats.count_plain_step(self._emit(request, targets, marked))
        elif segment.kind == "replay":
            self._commit_replay(request, targets[0], marked)
        elif segment.kind == "probe":
            result = verify(segment.draft.tokens, targets)
            request.replay = Replay(segment.draft, result.tokens)
        else:
            result = verify(segment.draft.tokens, targets)
            emitted = self._emit(request, result.tokens, marked)
            self._count(segment, len(result.accepted), emitted)
        session.truncate(min(session.length, len(request.tokens) - 1))

    def _commit_replay(self, request: Request, target: int, marked: int) -> None:
        replay = request.replay
        if replay is None:
            return
        agrees = replay.check(target)
        emitted = self._emit(request, (target,), marked)
        if agrees and not replay.is_complete and request.finish_reason is None:
            return
        request.stats.replay_mismatches += not agrees
        emitted += replay.done - 1
        agreed = len(replay.expected) - 1 if agrees else emitted - 1
        accepted = request.stats.count_try(len(replay.draft.tokens), agreed, emitted)
        request.drafter.observe(replay.draft, accepted)
        request.replay = None

    @staticmethod
    def _count(segment: Segment, agreed: int, emitted: int) -> None:
        stats, draft = segment.request.stats, segment.draft
        if draft.tokens:
            accepted = stats.count_try(len(draft.tokens), agreed, emitted)
            segment.request.drafter.observe(draft, accepted)
        else:
            stats.count_plain_step(emitted)
            stats.plain_steps[segment.plain_reason] += 1

    def _emit(self, request: Request, tokens: Sequence[int], marked: int) -> int:
        """Tokens one by one until the answer ends; returns how many were emitted."""
        before = request.num_output
        for i, token in enumerate(tokens):
            request.emit(token)
            if request.logits_hash is not None and token >= 0:
                request.logits_hash.update(self._runner.logits()[marked + i].tobytes())
            if request.finish_reason is not None:
                break
        return request.num_output - before

    def _close(self, request: Request) -> None:
        session = request.session
        if session is None:
            return
        request.kv_length = session.length
        if request.logits_hash is not None and not request.cancelled:
            request.kv_digest = session.digest(self._kv)
        session.close()
        request.session = None
