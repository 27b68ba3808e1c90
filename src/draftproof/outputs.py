"""Results: pure values, frozen. Knows nothing of how they came about."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "numeric_error"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of probabilities, by the model's own logits: of the token, and of the
    likeliest ones, (id, logprob), likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a token came from. source: the drafter whose draft had it, "bonus" for the step's own
    token behind a draft, "plain" for that of a step without one. step: which emitting step of its
    request, from 0. rejected: the draft tokens that it put an end to."""

    source: str
    step: int
    rejected: tuple[int, ...] = ()


PLAIN = Origin("plain", 0)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token. token_id -1: the request ended without one (numeric_error).

    text: what became certain with this token; may be empty while a character or a possible stop
    string is incomplete. origin: who thought of it.
    """

    token_id: int
    text: str
    finish_reason: FinishReason | None
    logprob: TokenLogprob | None = None
    origin: Origin = PLAIN


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a prompt is, in rows: `processed` of `total` are in the KV, `cached` of them were
    there before."""

    processed: int
    cached: int
    total: int


@dataclass(frozen=True)
class Usage:
    """Token counts; end tokens are counted. cached_tokens: tokens of the prompt whose keys and
    values were there already, from requests that began alike. image_tokens: tokens of the prompt
    that show images."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    image_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Milliseconds and tokens per second.

    prompt_ms: first step to first token, which the prompt's last row yields. predicted_ms: first
    token to last. predicted_per_second = (completion_tokens - 1) / predicted time: the first token
    belongs to the prompt. A rate over no time is 0.
    """

    load_ms: float
    prompt_ms: float
    prompt_per_second: float
    predicted_ms: float
    predicted_per_second: float


@dataclass(frozen=True)
class EngineInfo:
    """Where and with what numeric settings a result was computed."""

    isa: str
    threads: int
    weights_bytes: int
    peak_rss_bytes: int
    system_fingerprint: str
    seed: int


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """The logits behind one emitted token. sha256: of its float32 bytes, the first 16 hex digits.
    top: the five highest, as (token id, logit)."""

    sha256: str
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Audit:
    """Evidence for comparing runs bit by bit.

    logits_sha256: over the logits rows behind the emitted tokens, in order. kv_sha256: over the K
    and V bits of the session's kv_length positions at the end (prompt + output without its last
    token). rows: one per emitted token; not part of `to_dict`.
    """

    logits_sha256: str
    kv_sha256: str
    kv_length: int
    rows: tuple[LogitsRow, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "logits_sha256": self.logits_sha256,
            "kv_sha256": self.kv_sha256,
            "kv_length": self.kv_length,
        }


@dataclass(frozen=True)
class Completion:
    """One finished generation. stop_reason: the stop string that was met, or the entry of
    stop_token_ids. logprobs: one per token of token_ids, if they were asked for. siblings: see
    choices."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    speculation: dict[str, Any]
    spec_line: str
    engine: EngineInfo
    audit: Audit | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    siblings: tuple[Completion, ...] = field(default=(), repr=False)

    @property
    def choices(self) -> tuple[Completion, ...]:
        """All answers to the prompt, this one first, where all were waited for; else this one."""
        return (self, *self.siblings)

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        result: dict[str, Any] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "usage": asdict(self.usage),
            "timings": asdict(self.timings),
            "speculation": self.speculation,
            "engine": asdict(self.engine),
        }
        if self.logprobs is not None:
            result["logprobs"] = [asdict(entry) for entry in self.logprobs]
        if self.siblings:
            result["siblings"] = [sibling.to_dict() for sibling in self.siblings]
        if self.audit is not None:
            result["audit"] = self.audit.to_dict()
        return result


@dataclass(frozen=True)
class Delta:
    """A piece of a stream. index: of which of the n choices; the last piece of each carries its
    completion. logprobs: one per token, if they were asked for. events: the same tokens one by one,
    each with its text and origin. progress: this piece has no text, it says how far the prompt is
    (only where that was asked for)."""

    text: str
    token_ids: tuple[int, ...]
    progress: Progress | None = field(default=None, kw_only=True)
    completion: Completion | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    events: tuple[TokenEvent, ...] = field(default=(), kw_only=True, repr=False)
    index: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class ModelInfo:
    """What is loaded. name: as its file says. family: the GGUF architecture. context: positions of
    one request. parameters: weights of all tensors. quantization: the type that most of them have.
    kv_type: how keys and values are stored. fingerprint: equal ones mean comparable bits.
    chat_template: its source. generation_config: sampling settings that the file recommends."""

    name: str
    path: str
    family: str
    context: int
    vocab_size: int
    parameters: int
    quantization: str
    kv_type: str
    fingerprint: str
    chat_template: str
    generation_config: dict[str, Any]


@dataclass(frozen=True)
class EngineMetrics:
    """A moment's counts, and totals since the model was loaded.

    running, waiting: requests. preemptions: how often one went back to the queue to make room.
    kv_pages_used: pages of running requests; kv_pages_cached: pages that are kept for later ones.
    prefix_queries: requests that looked into the prefix cache; prefix_hits: those that found
    something, prefix_hit_tokens long; prefix_evictions: pages given up for others.
    prompt_tokens: prompt rows that were computed. generated_tokens: tokens that were emitted.
    rows: of all steps. step_seconds: time inside steps; forward_seconds: the native part of it.
    speculation, accepted_per_position: sums over the requests that ended.
    """

    running: int
    waiting: int
    preemptions: int
    kv_pages_total: int
    kv_pages_used: int
    kv_pages_cached: int
    prefix_queries: int
    prefix_hits: int
    prefix_hit_tokens: int
    prefix_evictions: int
    requests_finished: int
    requests_cancelled: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    rows: int
    step_seconds: float
    forward_seconds: float
    speculation: dict[str, int]
    accepted_per_position: list[int]


@dataclass(frozen=True)
class Score:
    """How likely a prompt is. logprobs: of every token after the first, given those before it, from
    the raw logits; one fewer than token_ids."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def perplexity(self) -> float:
        """exp of the mean of -logprobs; 1 for a single token."""
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs)) if self.logprobs else 1.0


@dataclass(frozen=True)
class Embedding:
    """What a model makes of a text. values: [width of the model]. tokens: of the text."""

    values: tuple[float, ...]
    tokens: int
