"""One generation: what was asked (SamplingParams) and how far it has come (Request).

Owns the rules by which a request ends, token by token. Knows nothing of batches or kernels.
"""

from __future__ import annotations

import itertools
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from draftproof.config import SpeculativeConfig, check_int, check_real
from draftproof.drafting import Controller, SpeculationStats
from draftproof.errors import InvalidRequestError
from draftproof.outputs import FinishReason, Progress, TokenEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from draftproof.engine.session import Session
    from draftproof.verification import Replay

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
# Below this a float32 division of a logit can leave the finite range.
MIN_TEMPERATURE = 1e-6

ForwardKind = Literal["prefill", "decode", "verify", "probe", "replay"]


class RowHash(Protocol):
    """Is fed the logits row behind every emitted token (a hash of hashlib, or a LogitsTrail)."""

    def update(self, row: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class TextSink(Protocol):
    """Turns tokens into text piece by piece (text.Detokenizer is one)."""

    @property
    def stopped(self) -> str | None:
        """The stop string that is complete, if any."""

    def push(self, token_id: int) -> str:
        """The text that is certain after this token: no partial characters, no partial stops."""

    def finish(self) -> str:
        """What was held back."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    temperature 0 = greedy; top_k 0, top_p 1, min_p 0 = off. seed None: drawn once, and returned.
    max_tokens None: until the context is full. stop: strings that end the answer, not part of the
    text. stop_token_ids: tokens that end it, like the model's own end tokens (which ignore_eos
    switches off). Raises InvalidRequestError that names the field.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        check_real("temperature", self.temperature, 0.0, 100.0)
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidRequestError(
                f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, "
                f"got {self.temperature}"
            )
        check_int("top_k", self.top_k, 0, 2**31 - 1)
        check_real("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequestError("top_p must be above 0 (1 = off), got 0")
        check_real("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**64 - 1)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(f"ignore_eos must be true or false, got {self.ignore_eos!r}")
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "stop_token_ids", _checked_stop_ids(self.stop_token_ids))


def _checked_stop(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, (tuple, list)):
        raise InvalidRequestError(f"stop must be a string or a list of strings, got {stop!r}")
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"stop has {len(strings)} entries, at most {MAX_STOP_STRINGS} are allowed"
        )
    for text in strings:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                f"stop must hold strings of 1 to {MAX_STOP_CHARACTERS} characters, got {text!r:.80}"
            )
    return tuple(strings)


def _checked_stop_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, (tuple, list)):
        raise InvalidRequestError(f"stop_token_ids must be a list of token ids, got {ids!r}")
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            f"stop_token_ids has {len(ids)} entries, at most {MAX_STOP_TOKEN_IDS} are allowed"
        )
    for token in ids:
        check_int("stop_token_ids", token, 0, 2**31 - 1)
    return tuple(ids)


_request_ids = itertools.count()


class Request:
    """The mutable state of one generation.

    tokens: prompt + output, committed tokens only. Between steps the session holds exactly
    tokens[:-1] once the prompt is in: the last token is forwarded by the next step, so the last
    token of a finished request never enters the KV, with speculation as without.
    """

    __slots__ = (
        "cancelled",
        "capacity",
        "completed_text",
        "controller",
        "finish_reason",
        "id",
        "inbox",
        "kv_digest",
        "kv_length",
        "logits_hash",
        "max_total",
        "num_prompt",
        "replay",
        "sampling",
        "seed",
        "session",
        "speculation",
        "stats",
        "stop_ids",
        "text_sink",
        "time_first",
        "time_last",
        "time_start",
        "tokens",
        "wants_progress",
    )

    def __init__(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        speculation: SpeculativeConfig | None = None,
        *,
        eos_ids: Collection[int] = (),
        stop_ids: Collection[int] = (),
        text_sink: TextSink | None = None,
        logits_hash: RowHash | None = None,
        wants_progress: bool = False,
    ) -> None:
        """eos_ids: the model's end tokens. stop_ids: further ones, whatever ignore_eos says.
        logits_hash: if given, it is fed the logits row behind every emitted token, and the KV
        digest is taken at the end (an audit: slow)."""
        self.id = next(_request_ids)
        self.tokens: list[int] = list(prompt_ids)
        self.num_prompt = len(self.tokens)
        self.sampling = sampling
        self.speculation = speculation or SpeculativeConfig()
        # A greedy run uses no random number: nothing to draw.
        drawn = secrets.randbits(53) if sampling.temperature > 0.0 else 0
        self.seed: int = drawn if sampling.seed is None else sampling.seed
        self.stop_ids = {*sampling.stop_token_ids, *stop_ids}
        if not sampling.ignore_eos:
            self.stop_ids.update(eos_ids)
        self.text_sink = text_sink
        self.controller: Controller  # set by Engine.add
        self.stats = SpeculationStats.of(self.speculation)
        self.session: Session | None = None
        self.replay: Replay | None = None
        self.max_total = 0  # tokens at which the answer ends by length; set by Engine.add
        self.capacity = 0  # positions that may be written, drafts included; set by Engine.add
        self.finish_reason: FinishReason | None = None
        self.cancelled = False
        self.wants_progress = wants_progress
        self.inbox: list[TokenEvent | Progress] = []
        self.completed_text: list[str] = []
        self.logits_hash = logits_hash
        self.kv_digest = ""
        self.kv_length = 0
        self.time_start = self.time_first = self.time_last = 0.0

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
        """So many prompt rows are in the KV."""
        if self.wants_progress:
            self.inbox.append(Progress(processed, 0, self.num_prompt))

    def emit(self, token: int) -> None:
        """Commits one token of the sampler, in order; sets finish_reason where the answer ends.

        -1 is the sampler's word for a row without finite logits. The end tokens come first, then
        stop strings, then the limits, so that a limit never hides a stop.
        """
        if token < 0:
            self._stamp()
            self._finish("numeric_error", "")
            return
        self.tokens.append(token)
        self._stamp()
        text = ""
        reason: FinishReason | None = None
        if token in self.stop_ids:
            reason = "stop"
        elif self.text_sink is not None:
            text = self.text_sink.push(token)
            if self.text_sink.stopped is not None:
                reason = "stop"
        if reason is None and len(self.tokens) >= self.max_total:
            reason = "length"
        if reason is not None:
            self._finish(reason, text, token)
        else:
            self._deliver(TokenEvent(token, text, None))

    def _stamp(self) -> None:
        self.time_last = time.perf_counter()
        if not self.time_first:
            self.time_first = self.time_last

    def _finish(self, reason: FinishReason, text: str, token: int = -1) -> None:
        self.finish_reason = reason
        if self.text_sink is not None and self.text_sink.stopped is None:
            text += self.text_sink.finish()
        self._deliver(TokenEvent(token, text, reason))

    def _deliver(self, event: TokenEvent) -> None:
        self.inbox.append(event)
        if event.text:
            self.completed_text.append(event.text)
