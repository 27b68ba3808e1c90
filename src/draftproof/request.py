"""One generation: what was asked and how far it has come.

Owns the rules by which a request ends, token by token. Knows nothing of batches or kernels.
"""

from __future__ import annotations

import itertools
import secrets
import time
from typing import TYPE_CHECKING, Literal, Protocol

from draftproof.config import SpeculativeConfig
from draftproof.drafting import Controller, DraftGrammar, SpeculationStats
from draftproof.errors import DraftproofError, GrammarError
from draftproof.outputs import PLAIN, FinishReason, Origin, Progress, TokenEvent, TokenLogprob
from draftproof.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from draftproof.engine.batch import BatchRunner
    from draftproof.engine.logit_edits import LogitEdits
    from draftproof.engine.session import Session
    from draftproof.verification import Replay
    from draftproof.vision.prompt import VisionPrompt

__all__ = ["ForwardKind", "Request", "SamplingParams", "TextSink"]

ForwardKind = Literal["prefill", "decode", "verify", "probe", "replay"]


class TokenGrammar(DraftGrammar, Protocol):
    """Where the answer is in its grammar (text.GrammarMatcher is one)."""

    @property
    def error(self) -> str:
        """Why nothing is allowed any more, "" usually."""

    def advance(self, token: int) -> None:
        """Commits a token."""

    def masks(self, draft: Sequence[int]) -> NDArray[np.uint32]:
        """[len(draft) + 1, words]: the ids that may come after each beginning of a draft."""


class RowHash(Protocol):
    """Is fed the logits row behind every emitted token (a hash of hashlib, or a LogitsTrail)."""

    def update(self, row: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class RowReader(Protocol):
    """Wants the rows of a prompt instead of an answer; see engine.row_readers."""

    def read(self, runner: BatchRunner, marked: int, start: int, rows: int) -> None: ...


class TextSink(Protocol):
    """Turns tokens into text piece by piece (text.Detokenizer is one)."""

    @property
    def stopped(self) -> str | None:
        """The stop string that is complete, if any."""

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """The text that is certain after this token: no partial characters, no partial stops.
        may_stop False: a stop string that it completes is plain text."""

    def finish(self) -> str:
        """What was held back."""


_request_ids = itertools.count()


class Request:
    """The mutable state of one generation.

    tokens: prompt + output, committed tokens only. Between steps the session holds exactly
    tokens[:-1] once the prompt is in: the last token is forwarded by the next step, so the last
    token of a finished request never enters the KV, with speculation as without.
    """

    __slots__ = (
        "cache_salt",
        "cancelled",
        "capacity",
        "choice_index",
        "completed_text",
        "content_keys",
        "controller",
        "edits",
        "error",
        "finish_reason",
        "grammar",
        "id",
        "inbox",
        "kv_digest",
        "kv_length",
        "logits_hash",
        "logprobs",
        "max_total",
        "num_cached",
        "num_prompt",
        "reader",
        "replay",
        "sampling",
        "seed",
        "session",
        "speculation",
        "stats",
        "stop_ids",
        "stop_reason",
        "text_sink",
        "text_tokens",
        "time_first",
        "time_last",
        "time_start",
        "tokens",
        "vision",
        "wants_progress",
    )

    def __init__(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        speculation: SpeculativeConfig | None = None,
        *,
        choice_index: int = 0,
        eos_ids: Collection[int] = (),
        stop_ids: Mapping[int, str] | None = None,
        text_sink: TextSink | None = None,
        grammar: TokenGrammar | None = None,
        logits_hash: RowHash | None = None,
        wants_progress: bool = False,
        cache_salt: str = "",
        content_keys: Mapping[int, Hashable] | None = None,
        reader: RowReader | None = None,
    ) -> None:
        """choice_index: which of the answers to its prompt. eos_ids: the model's end tokens.
        stop_ids: further ones, whatever ignore_eos says, each with the stop string that it stands
        for. grammar: follows this answer alone. logits_hash: if given, it is fed the logits row
        behind every emitted token, and the KV digest is taken at the end (an audit: slow)."""
        self.id = next(_request_ids)
        self.tokens: list[int] = list(prompt_ids)
        self.text_tokens = self.tokens  # what drafters see; another list once there are pictures
        self.vision: VisionPrompt | None = None
        self.num_prompt = len(self.tokens)
        self.sampling = sampling
        self.choice_index = choice_index
        self.speculation = speculation or SpeculativeConfig()
        # A greedy run uses no random number: nothing to draw.
        drawn = secrets.randbits(53) if sampling.temperature > 0.0 else 0
        self.seed: int = drawn if sampling.seed is None else sampling.seed
        # Where the answer ends, and what is reported then: nothing special for an end token.
        self.stop_ids: dict[int, int | str | None] = {}
        if not sampling.ignore_eos:
            self.stop_ids.update(dict.fromkeys(eos_ids))
        self.stop_ids.update({token: token for token in sampling.stop_token_ids})
        self.stop_ids.update(stop_ids or {})
        self.text_sink = text_sink
        self.grammar = grammar
        self.controller: Controller  # set by Engine.add
        self.stats = SpeculationStats.of(self.speculation)
        self.edits: LogitEdits | None = None  # set by Engine.add
        self.session: Session | None = None
        self.replay: Replay | None = None
        self.max_total = 0  # tokens at which the answer ends by length; set by Engine.add
        self.capacity = 0  # positions that may be written, drafts included; set by Engine.add
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None  # the stop string or stop_token_ids entry met
        self.error: DraftproofError | None = None  # what to raise instead of a result
        self.logprobs: list[TokenLogprob] = []
        self.cancelled = False
        self.wants_progress = wants_progress
        self.cache_salt = cache_salt
        self.reader = reader
        self.content_keys = content_keys
        self.num_cached = 0  # prompt rows that were in the KV before
        self.inbox: list[TokenEvent | Progress] = []
        self.completed_text: list[str] = []
        self.logits_hash = logits_hash
        self.kv_digest = ""
        self.kv_length = 0
        self.time_start = self.time_first = self.time_last = 0.0

    def show(self, vision: VisionPrompt) -> None:
        """Puts pictures into the prompt, whose ids have their placeholders already. Drafters get
        the text without them: what stands for a picture is never drafted and matches nothing."""
        self.vision = vision
        self.content_keys = vision.content_keys()
        is_text = (vision.feature_of < 0).tolist()
        self.text_tokens = [t for t, text in zip(self.tokens, is_text, strict=True) if text]

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def text(self) -> str:
        return "".join(self.completed_text)

    def report(self, processed: int) -> None:
        """So many rows are in the KV."""
        if self.wants_progress and processed <= self.num_prompt:
            self.inbox.append(Progress(processed, self.num_cached, self.num_prompt))

    def emit(self, token: int, logprob: TokenLogprob | None = None, origin: Origin = PLAIN) -> None:
        """Commits one token of the sampler, in order; sets finish_reason where the answer ends.

        -1 is the sampler's word for a row without a token to choose. The end tokens come first,
        then stop strings, then the limits, so that a limit never hides a stop.
        """
        if token < 0:
            self._stamp()
            if self.grammar is not None and self.grammar.error:
                self.error = GrammarError(f"grammar: {self.grammar.error}: make it simpler")
            self._finish("numeric_error", "")
            return
        self.tokens.append(token)
        if self.text_tokens is not self.tokens:
            self.text_tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        self._stamp()
        text = ""
        reason: FinishReason | None = None
        if token in self.stop_ids:
            reason = "stop"
            self.stop_reason = self.stop_ids[token]
        elif self.text_sink is not None:
            text = self.text_sink.push(token, self.num_output > self.sampling.min_tokens)
            if self.text_sink.stopped is not None:
                reason = "stop"
                self.stop_reason = self.text_sink.stopped
        if reason is None and self.grammar is not None:
            self.grammar.advance(token)
        if reason is None and len(self.tokens) >= self.max_total:
            reason = "length"
        if reason is not None:
            self._finish(reason, text, token, logprob, origin)
        else:
            self._deliver(TokenEvent(token, text, None, logprob, origin))

    def end_reading(self) -> None:
        """All rows of the prompt have been read."""
        self._stamp()
        self._finish("length", "")

    def _stamp(self) -> None:
        self.time_last = time.perf_counter()
        if not self.time_first:
            self.time_first = self.time_last

    def _finish(
        self,
        reason: FinishReason,
        text: str,
        token: int = -1,
        logprob: TokenLogprob | None = None,
        origin: Origin = PLAIN,
    ) -> None:
        self.finish_reason = reason
        if self.text_sink is not None and self.text_sink.stopped is None:
            text += self.text_sink.finish()
        self._deliver(TokenEvent(token, text, reason, logprob, origin))

    def _deliver(self, event: TokenEvent) -> None:
        self.inbox.append(event)
        if event.text:
            self.completed_text.append(event.text)
