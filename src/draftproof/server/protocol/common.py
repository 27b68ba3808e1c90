"""Fields that the OpenAI-style endpoints share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from draftproof.config import SpeculativeConfig
from draftproof.errors import InvalidRequestError
from draftproof.outputs import Completion
from draftproof.sampling import SamplingParams
from draftproof.server.errors import ApiError, bad_field, of_exception
from draftproof.server.served import Served

encode = msgspec.json.encode
MAX_TOP_LOGPROBS = 20


class SpeculationFields(msgspec.Struct, kw_only=True):
    """How this request drafts; what is left out is as by default."""

    drafter: str | None = None
    k: int | None = None
    verify: str | None = None
    reference: str | list[int] | None = None
    remember: bool | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class Fields(msgspec.Struct, kw_only=True):
    """Sampling, stopping, speculation and streaming. null is as good as absent."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    speculation: SpeculationFields | Literal["auto", "off"] | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    speculation_trace: bool | None = None
    sse_ping_interval: float | None = None


def of_client(
    fields: msgspec.Struct, renamed: Mapping[str, str] | None = None
) -> Callable[[BaseException], ApiError]:
    """Errors of one request, in its own field names."""
    names = type(fields).__struct_fields__
    return lambda error: of_exception(error, names, renamed)


def sampling(fields: Fields, served: Served, **more: Any) -> SamplingParams:
    """The sampling of a request: what it says, else the model's defaults. more: parameters that
    have other names on the wire. Raises InvalidRequestError and ApiError."""
    said = {
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "top_k": None if fields.top_k is None else max(0, fields.top_k),  # -1 is off elsewhere
        "min_p": fields.min_p,
        "seed": None if fields.seed == -1 else fields.seed,  # llama.cpp's word for a drawn one
        "max_tokens": fields.max_tokens,
        "min_tokens": fields.min_tokens,
        "stop": _stop(fields.stop),
        "stop_token_ids": fields.stop_token_ids,
        "ignore_eos": fields.ignore_eos,
        "repetition_penalty": fields.repetition_penalty,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "logit_bias": _logit_bias(fields.logit_bias),
        "n": fields.n,
        **more,
    }
    if fields.top_k is not None and fields.top_k < -1:
        raise bad_field("top_k", f"must be at least 0 (or -1 = off), got {fields.top_k}")
    if fields.n is not None and not 1 <= fields.n <= served.config.max_choices:
        raise bad_field("n", f"must be between 1 and {served.config.max_choices}, got {fields.n}")
    chosen = {**served.defaults, **{k: v for k, v in said.items() if v is not None}}
    return SamplingParams(**chosen)


def _stop(stop: str | list[str] | None) -> tuple[str, ...] | None:
    if stop is None:
        return None
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logit_bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    if len(bias) > 1024:
        raise bad_field("logit_bias", f"has {len(bias)} entries, at most 1024 are allowed")
    result: dict[int, float] = {}
    for token, value in bias.items():
        if not (token.isascii() and token.isdecimal()) or len(token) > 9:
            raise bad_field("logit_bias", f"must have token ids as keys, got {token[:20]!r}")
        if int(token) in result:
            raise bad_field("logit_bias", f"has token {int(token)} twice")
        result[int(token)] = value
    return result


def speculation(fields: Fields, tenant: str) -> SpeculativeConfig:
    """How this request drafts; what it remembers stays with its tenant (and salt)."""
    scope = salt(fields.cache_salt, tenant)
    wanted = fields.speculation
    if wanted is None or wanted == "auto":
        return SpeculativeConfig(scope=scope)
    if wanted == "off":
        return SpeculativeConfig(drafter="off", scope=scope)
    if isinstance(wanted, str):
        raise bad_field("speculation", "must be auto, off or an object")
    said = {k: v for k, v in msgspec.structs.asdict(wanted).items() if v is not None}
    if said.get("drafter") == "oracle":
        raise bad_field("speculation.drafter", "oracle is for tests on the command line")
    try:
        return SpeculativeConfig(scope=scope, **said)
    except InvalidRequestError as error:
        names = {name: f"speculation.{name}" for name in SpeculationFields.__struct_fields__}
        raise of_exception(error, (), names) from None


def salt(cache_salt: str | None, tenant: str) -> str:
    """What may share cached prefixes and drafts: requests with the same result of this."""
    if cache_salt is not None and len(cache_salt) > 256:
        raise bad_field("cache_salt", "must have at most 256 characters")
    return f"{tenant}:{cache_salt}" if cache_salt else tenant


def ping_interval(fields: msgspec.Struct) -> float | None:
    """Seconds between pings, where the request says so."""
    seconds: float | None = getattr(fields, "sse_ping_interval", None)
    if seconds is None:
        return None
    if not 0 <= seconds <= 3600:
        raise bad_field("sse_ping_interval", f"must be between 0 and 3600 seconds, got {seconds}")
    return max(seconds, 0.05) if seconds else 0.0


def timings(result: Completion) -> dict[str, Any]:
    """llama-server's names. prompt_n counts what was computed: without the cached tokens."""
    cached = result.usage.cached_tokens
    times, stats = result.timings, result.speculation
    predicted = result.usage.completion_tokens
    return {
        "cache_n": cached,
        "prompt_n": result.usage.prompt_tokens - cached,
        "prompt_ms": times.prompt_ms,
        "prompt_per_second": times.prompt_per_second,
        "predicted_n": predicted,
        "predicted_ms": times.predicted_ms,
        "predicted_per_second": times.predicted_per_second,
        "draft_n": stats["drafted"],
        "draft_n_accepted": stats["accepted"],
    }


_RESERVED = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "tokenizer", "self", "pictures"),
    }
)


def template_variables(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """chat_template_kwargs, which may not stand in for what has a field of its own."""
    for name in given or {}:
        if name in _RESERVED or not name.isidentifier():
            raise bad_field("chat_template_kwargs", f"can't set {name[:50]!r}")
    return dict(given or {})


def stop_reason(result: Completion) -> str | int | None:
    """The stop string or stop token that ended the answer."""
    return result.stop_reason


def checked_top_logprobs(name: str, count: int) -> int:
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise bad_field(name, f"must be between 0 and {MAX_TOP_LOGPROBS}, got {count}")
    return count


def sse(value: Any) -> bytes:
    """One event of the OpenAI-style streams."""
    return b"data: " + encode(value) + b"\n\n"
