"""How tokens are chosen and when an answer ends: the settings of one request, checked at the door.

Knows nothing of models, tokens' texts or the native side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.config import check_choice, check_int, check_real
from draftproof.errors import GrammarError, InvalidRequestError

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 4096
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_GRAMMAR_CHARACTERS = 256 * 1024
GRAMMAR_KINDS = ("json_object", "json_schema", "regex", "lark")
# Below this a float32 division of a logit can leave the finite range.
MIN_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class Grammar:
    """What the text of an answer has to look like.

    kind: json_object (any; no source), json_schema (source: the schema, as text or as a mapping),
    regex (the whole text matches; Rust's syntax), lark (llguidance's dialect of Lark). Raises
    GrammarError; what only a compiler sees is found when the request is made.
    """

    kind: str
    source: str | Mapping[str, Any] = ""

    def __post_init__(self) -> None:
        check_choice("grammar kind", self.kind, GRAMMAR_KINDS)
        object.__setattr__(self, "source", _checked_source(self.kind, self.source))

    @property
    def text(self) -> str:
        """The source as text; a schema that was given as a mapping is JSON now."""
        return self.source if isinstance(self.source, str) else ""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    temperature 0 = greedy; top_k 0, top_p 1, min_p 0 = off. seed None: drawn once, and returned.
    max_tokens None: until the context is full. stop: strings that end the answer, not part of the
    text. stop_token_ids: tokens that end it, like the model's own end tokens (which ignore_eos
    switches off). min_tokens: before so many tokens nothing but a limit ends the answer; end tokens
    can't be chosen, stop strings are plain text.
    repetition_penalty: divides the positive and multiplies the negative logits of tokens that occur
    in prompt or output; 1 = off. presence_penalty: taken from logits of tokens that occur in the
    output; frequency_penalty: as often as they occur there; 0 = off.
    logit_bias: token id -> number added to its logit; kept as pairs, sorted by id.
    n: answers to the same prompt, which is computed once; with a seed, each has random numbers of
    its own.
    logprobs: None = off, else the logprob of every token and that many of the likeliest ones, by
    the model's own logits: nothing above changes them.
    grammar: what the text has to look like; end tokens can come only where it is complete.
    Raises InvalidRequestError that names the field.
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
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = None
    n: int = 1
    logprobs: int | None = None
    grammar: Grammar | None = None

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
        check_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}"
            )
        check_real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        check_real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        check_int("n", self.n, 1, MAX_CHOICES)
        if self.logprobs is not None:
            check_int("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if self.grammar is not None:
            if not isinstance(self.grammar, Grammar):
                raise InvalidRequestError(f"grammar must be a Grammar, got {self.grammar!r:.80}")
            if self.ignore_eos:
                raise InvalidRequestError(
                    "ignore_eos contradicts grammar, which says where the answer ends"
                )

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """logit_bias, () if there is none."""
        return self.logit_bias if isinstance(self.logit_bias, tuple) else ()

    @property
    def penalizes(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def _checked_stop(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, (tuple, list)):
        raise InvalidRequestError(f"stop must be a string or a list of strings, got {stop!r:.80}")
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
        raise InvalidRequestError(f"stop_token_ids must be a list of token ids, got {ids!r:.80}")
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            f"stop_token_ids has {len(ids)} entries, at most {MAX_STOP_TOKEN_IDS} are allowed"
        )
    for token in ids:
        check_int("stop_token_ids", token, 0, 2**31 - 1)
    return tuple(ids)


def _checked_bias(bias: object) -> tuple[tuple[int, float], ...] | None:
    if bias is None:
        return None
    pairs = tuple(bias.items()) if isinstance(bias, Mapping) else bias
    if not isinstance(pairs, (tuple, list)):
        raise InvalidRequestError(f"logit_bias must map token ids to numbers, got {bias!r:.80}")
    if len(pairs) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(
            f"logit_bias has {len(pairs)} entries, at most {MAX_LOGIT_BIAS} are allowed"
        )
    checked: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidRequestError(f"logit_bias must hold (id, bias) pairs, got {pair!r:.80}")
        token, value = pair
        check_int("logit_bias", token, 0, 2**31 - 1)
        check_real("logit_bias", value, -100.0, 100.0)
        if token in checked:
            raise InvalidRequestError(f"logit_bias names token {token} twice")
        checked[token] = float(value)
    return tuple(sorted(checked.items()))


def _checked_source(kind: str, source: object) -> str:
    if kind == "json_object":
        if source:
            raise GrammarError("grammar json_object takes no source: for a schema, json_schema")
        return ""
    if kind == "json_schema" and isinstance(source, Mapping):
        try:
            source = json.dumps(source, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"grammar json_schema: not JSON ({error})"[:200]) from None
    if not isinstance(source, str) or not source.strip():
        raise GrammarError(f"grammar {kind} needs its source as text, got {source!r:.40}")
    if len(source) > MAX_GRAMMAR_CHARACTERS:
        raise GrammarError(
            f"grammar {kind} has {len(source)} characters, at most {MAX_GRAMMAR_CHARACTERS} are "
            "allowed"
        )
    try:
        source.encode()
        if kind == "json_schema":
            json.loads(source)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise GrammarError(f"grammar {kind}: {reason}"[:200]) from None
    return source
