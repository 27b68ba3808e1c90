"""Grammars over a vocabulary: which tokens may come next, and which have to (llguidance).

Owns the limits within which a grammar of a stranger is compiled and followed. Knows nothing of
logits or batches. llguidance is imported with the first grammar.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import GrammarError
from draftproof.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Measured: a compilation within these takes well under a second, a mask a few milliseconds. Beyond
# them an ambiguous grammar can keep the parser busy for minutes.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 1_000,
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 8_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
COMPILE_SECONDS = 2.0
_COMPILING_AT_ONCE = 2
_LONGEST_MESSAGE = 200
# Between the parts of JSON: nothing, a space, or a new line with its indentation; never more, or a
# model may put spaces for ever.
_WHITESPACE = r"( |\n[ \t]{0,64})"


class GrammarCompiler:
    """Grammars for one vocabulary. Safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._ll_tokenizer: Any = None
        self._free = threading.BoundedSemaphore(_COMPILING_AT_ONCE)

    def compile(self, kind: str, source: str) -> GrammarMatcher:
        """kind: json_object (source is not looked at), json_schema, regex or lark.

        Raises GrammarError within COMPILE_SECONDS (the first call also reads the vocabulary): what
        can't be compiled, allows nothing, or takes too long.
        """
        if not _ends(self._tokenizer):
            raise GrammarError("grammar: this model has no end token, its answers can't end")
        ll_tokenizer = self._vocabulary()
        found: list[LLMatcher | str] = []

        def work() -> None:
            try:
                found.append(_matcher(ll_tokenizer, kind, source, self._tokenizer.vocab_size))
            except BaseException as error:  # a panic of the native side is no Exception
                found.append(f"{type(error).__name__}: {error}")
            finally:
                self._free.release()

        # A native call can't be stopped from outside; its own limits end it. Until then its place
        # is taken, so that hostile grammars can't take all processors.
        thread = threading.Thread(target=work, name="draftproof-grammar", daemon=True)
        if self._free.acquire(timeout=COMPILE_SECONDS):
            thread.start()
            thread.join(COMPILE_SECONDS)
        if not found:
            raise GrammarError(f"grammar ({kind}) takes too long to compile: make it smaller")
        if isinstance(found[0], str):
            raise GrammarError(f"grammar ({kind}): {_one_line(found[0])}")
        return GrammarMatcher(found[0], self._tokenizer)

    def _vocabulary(self) -> Any:
        with self._lock:
            if self._ll_tokenizer is None:
                self._ll_tokenizer = _ll_tokenizer(self._tokenizer)
            return self._ll_tokenizer


class GrammarMatcher:
    """Where one answer is in its grammar. One thread at a time.

    End tokens never enter the parser: they are allowed exactly where the text so far is complete.
    """

    def __init__(self, matcher: LLMatcher, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._matcher = matcher
        self._words = _words(tokenizer.vocab_size)
        self._ends = _ends(tokenizer)
        ends: NDArray[np.uint32] = np.zeros(self._words, np.uint32)
        for token in self._ends:
            ends[token // 32] |= np.uint32(1 << token % 32)
        self._end_bits = ends

    def copy(self) -> GrammarMatcher:
        """A matcher at the same place that goes its own way."""
        return GrammarMatcher(self._matcher.deep_copy(), self._tokenizer)

    @property
    def error(self) -> str:
        """Why nothing is allowed any more: a limit was met; "" usually."""
        return _one_line(self._matcher.get_error()) if self._matcher.is_error() else ""

    def advance(self, token: int) -> None:
        """Commits a token of the output, an end token excepted."""
        if token not in self._ends:
            self._matcher.consume_token(token)

    def allowed(self, draft: Sequence[int]) -> int:
        """How many tokens of `draft` may follow, one after the other; an end token is the last."""
        end = next((i for i, token in enumerate(draft) if token in self._ends), len(draft))
        count = self._matcher.validate_tokens(list(draft[:end])) if end else 0
        if count < end or end == len(draft):
            return count
        self._matcher.consume_tokens(list(draft[:end]))
        accepts = self._matcher.is_accepting()
        self._matcher.rollback(end)
        return end + accepts

    def forced(self) -> list[int]:
        """Tokens that have to follow, spelled as the tokenizer would; an end token if it is all
        that is left. Other spellings of the same text may be allowed as well."""
        if self._matcher.is_stopped():
            return [] if self._matcher.is_error() else [max(self._ends)]
        return self._matcher.compute_ff_tokens()

    def masks(self, draft: Sequence[int]) -> NDArray[np.uint32]:
        """[len(draft) + 1, words]: row i has the bit id % 32 of word id // 32 set if `id` may come
        after draft[:i]. Rows that can't be reached are empty."""
        masks: NDArray[np.uint32] = np.zeros((len(draft) + 1, self._words), np.uint32)
        reachable = self.allowed(draft)
        consumed = 0
        for i in range(reachable + 1):
            self._fill(masks[i])
            if i < reachable and draft[i] not in self._ends:
                self._matcher.consume_token(draft[i])
                consumed += 1
        if consumed:
            self._matcher.rollback(consumed)
        return masks

    def _fill(self, mask: NDArray[np.uint32]) -> None:
        matcher = self._matcher
        if not matcher.is_stopped():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            mask &= ~self._end_bits
        if matcher.is_error():
            mask[:] = 0
        elif matcher.is_accepting():
            mask |= self._end_bits


def _ends(tokenizer: Tokenizer) -> set[int]:
    return {token for token in tokenizer.eos_ids if token < tokenizer.vocab_size}


def _words(vocab_size: int) -> int:
    return -(-vocab_size // 32)


def _matcher(ll_tokenizer: Any, kind: str, source: str, vocab_size: int) -> LLMatcher | str:
    """A matcher whose first mask is made, or what is wrong."""
    from llguidance import LLMatcher, LLParserLimits

    if kind == "regex":
        text = LLMatcher.grammar_from_regex(source)
    elif kind == "lark":
        text = LLMatcher.grammar_from_lark(source)
    else:
        schema = '{"type": "object"}' if kind == "json_object" else source
        options: Any = {"whitespace_pattern": _WHITESPACE}
        text = LLMatcher.grammar_from_json_schema(schema, overrides=options)
    limits = LLParserLimits(**_LIMITS)
    matcher = LLMatcher(ll_tokenizer, text, log_level=0, limits=limits)
    if not matcher.is_error() and not matcher.is_stopped():
        mask: NDArray[np.uint32] = np.zeros(_words(vocab_size), np.uint32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        return matcher.get_error()
    return matcher


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = max(_ends(tokenizer))
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(
            {i for i in tokenizer.control_ids if i < tokenizer.vocab_size}
        )
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text, parse_special=False)


def _ll_tokenizer(tokenizer: Tokenizer) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapper = TokenizerWrapper(_Vocabulary(tokenizer))
    return LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size)


def _one_line(message: str) -> str:
    """The first of what llguidance says, without the places where it quotes the grammar."""
    line = " ".join(message.replace("<non-verbose/>", "").split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 3] + "..."
