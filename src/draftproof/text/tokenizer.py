"""Byte-level BPE tokenizer built from the vocabulary of a GGUF file or of a tokenizer.json.

Owns the pre-tokenizers, the merges and the matching of added tokens. The Hugging Face `tokenizers`
object inside holds ordinary tokens only; added tokens are found here, so that an ordinary text
can't turn into a control token by any route. Knows nothing of chat templates or of GGUF's bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from draftproof.errors import InvalidRequestError, ModelFileError

# Values of `tokenizer.ggml.token_type` (GGUF specification).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_WORDS_AND_SPACE = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Tokens that end an answer in every chat model known here, whatever the file's eos_token_id says.
END_TEXTS = ("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>")
# Control tokens whatever type a careless conversion gave them.
_ALWAYS_CONTROL = frozenset({*END_TEXTS, "<|im_start|>"})
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# A batch of one is encoded without the interpreter's lock, so that megabytes stop nobody else;
# short texts do without: it starts threads of the library's own.
_LONG_TEXT = 1 << 15  # characters
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class PreTokenizer:
    """How one value of `tokenizer.ggml.pre` splits a text (source: the models' tokenizer.json)."""

    pattern: str | None  # split by this Unicode pattern; None: the GPT-2 pattern
    single_digits: bool = False  # isolate every digit before the pattern is applied
    nfc: bool = False  # Qwen normalises to NFC; a GGUF file doesn't say so
    ignore_merges: bool = False  # a piece that is a token as a whole is taken without merging


@dataclass(frozen=True)
class Vocabulary:
    """All that a tokenizer is made of, one entry of `tokens` and `types` per id.

    types: the values of GGUF's `tokenizer.ggml.token_type`. pre: a key of PRE_TOKENIZERS.
    end_ids: ids that end a generation beside those that always do.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str
    end_ids: tuple[int, ...]


_LLAMA3 = PreTokenizer(_WORDS_AND_SPACE % r"\p{N}{1,3}", ignore_merges=True)
PRE_TOKENIZERS = {
    "qwen2": PreTokenizer(_WORDS_AND_SPACE % r"\p{N}", nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smollm": PreTokenizer(None, single_digits=True),
    "gpt-2": PreTokenizer(None),
}


def _byte_alphabet() -> dict[int, int]:
    """code point -> byte: printable Latin-1 stands for itself, the rest is numbered from 256 up."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def replace_surrogates(text: str) -> str:
    """`text` with every lone surrogate, which has no UTF-8 form, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text


class Tokenizer:
    """Text to token ids and back, for one vocabulary. Immutable; safe to use from any thread.

    vocab_size: number of real tokens; ids from there on only pad the embedding table.
    eos_ids: every id that ends a generation. control_ids: ids that text alone can't produce;
    control_tokens: their names, each with its id.
    """

    vocab_size: int
    eos_ids: frozenset[int]
    control_ids: frozenset[int]
    control_tokens: Mapping[str, int]

    def __init__(self, vocabulary: Vocabulary) -> None:
        """The vocabulary is taken as valid: `from_gguf` and tokenizer_json are the doors
        for files."""
        tokens, types = vocabulary.tokens, vocabulary.types
        pre = PRE_TOKENIZERS[vocabulary.pre]
        self._tokens = tokens
        self.vocab_size = len(tokens)
        while self.vocab_size and types[self.vocab_size - 1] == UNUSED:
            self.vocab_size -= 1
        self._added = {
            i: token
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        }
        self.control_ids = frozenset(i for i in self._added if types[i] == CONTROL)
        self.control_tokens = MappingProxyType({self._added[i]: i for i in self.control_ids})
        self._id_of: dict[str, int] = {}
        for i in range(self.vocab_size):
            self._id_of.setdefault(tokens[i], i)
        self._id_of.update({token: i for i, token in reversed(self._added.items())})
        self.eos_ids = frozenset(vocabulary.end_ids) | {
            i for i, token in self._added.items() if token in END_TEXTS
        }

        user_defined = [token for i, token in self._added.items() if i not in self.control_ids]
        self._user_defined = _any_of(user_defined)
        self._all_added = _any_of(list(self._added.values()))

        normal = {token: i for i, token in enumerate(tokens) if types[i] in (NORMAL, BYTE)}
        self._bpe = tokenizers.Tokenizer(
            models.BPE(
                vocab=normal, merges=list(vocabulary.merges), ignore_merges=pre.ignore_merges
            )
        )
        if pre.nfc:
            self._bpe.normalizer = normalizers.NFC()
        self._bpe.pre_tokenizer = _splitter(pre)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer described by the `tokenizer.ggml.*` keys of a GGUF file.

        Raises ModelFileError for a kind of tokenizer that isn't built here (with its name) and for
        a vocabulary that contradicts itself.
        """
        kind = metadata.get("tokenizer.ggml.model")
        if kind != "gpt2":
            raise ModelFileError(
                f"tokenizer.ggml.model is {kind!r}: only byte-level BPE ('gpt2') is supported"
            )
        pre = metadata.get("tokenizer.ggml.pre")
        if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
            raise ModelFileError(
                f"tokenizer.ggml.pre is {pre!r}: a wrong split would degrade every answer; "
                f"supported are {', '.join(sorted(PRE_TOKENIZERS))}: convert the model again"
            )
        tokens = _list_of(metadata, "tokenizer.ggml.tokens", str)
        types = _list_of(metadata, "tokenizer.ggml.token_type", int)
        if len(types) != len(tokens):
            raise ModelFileError(
                f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
            )
        _check_tokens(tokens, types)
        merges = _list_of(metadata, "tokenizer.ggml.merges", str)
        end_ids = []
        for key in _END_KEYS:
            value = metadata.get(f"tokenizer.ggml.{key}")
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ModelFileError(f"tokenizer.ggml.{key} is {value!r}, not a token id")
            if not 0 <= value < len(tokens):
                raise ModelFileError(
                    f"tokenizer.ggml.{key} is {value}, but there are only {len(tokens)} tokens"
                )
            end_ids.append(value)
        return cls(checked_vocabulary(tokens, types, merges, pre, end_ids, "tokenizer.ggml"))

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Token ids of `text`; no BOS is ever added.

        parse_special: names of control tokens in the text become their ids; otherwise they stay
        text. User-defined tokens (`<tool_call>`, `<think>`) are matched in both cases, as the
        models were trained. Lone surrogates are read as U+FFFD. A byte for which the vocabulary
        has no token is dropped, as the reference does (SmolLM2 lacks six ASCII control codes).
        """
        ids: list[int] = []
        pattern = self._all_added if parse_special else self._user_defined
        for piece, added in _split(pattern, replace_surrogates(text)):
            if piece:
                ids += self._plain(piece)
            if added:
                ids.append(self._id_of[added])
        return ids

    def _plain(self, text: str) -> list[int]:
        if len(text) < _LONG_TEXT:
            return self._bpe.encode(text, add_special_tokens=False).ids
        return self._bpe.encode_batch([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD, control tokens are left out
        unless skip_special is False. Raises InvalidRequestError for an id out of range."""
        return b"".join(
            self.token_bytes(i) for i in ids if not (skip_special and i in self.control_ids)
        ).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        """The bytes that token `id` stands for: an added token's text, nothing for padding.

        Raises InvalidRequestError if `id` is not a row of the vocabulary.
        """
        if not 0 <= id < len(self._tokens):
            raise InvalidRequestError(f"token id {id} is not in 0..{len(self._tokens) - 1}")
        if id >= self.vocab_size:
            return b""
        token = self._tokens[id]
        if id in self._added:
            return token.encode()
        try:
            return bytes([_BYTE_OF[ord(char)] for char in token])
        except KeyError:  # a token that the converter stored as plain text
            return token.encode()

    def id_of(self, token: str) -> int | None:
        """Id of the token with this name in the vocabulary (byte alphabet unless it is added)."""
        return self._id_of.get(token)


def _splitter(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.pattern is None)
    steps: list[pre_tokenizers.PreTokenizer] = [byte_level]
    if pre.pattern is not None:
        steps.insert(0, pre_tokenizers.Split(tokenizers.Regex(pre.pattern), "isolated"))
    if pre.single_digits:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    return pre_tokenizers.Sequence(steps)


def _any_of(texts: list[str]) -> re.Pattern[str] | None:
    """A pattern for any of `texts`, the longest first; None if there are none."""
    if not texts:
        return None
    return re.compile("|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True)))


def _split(pattern: re.Pattern[str] | None, text: str) -> Iterator[tuple[str, str]]:
    """(text before, match) pairs; the last pair has an empty match."""
    start = 0
    if pattern is not None:
        for match in pattern.finditer(text):
            yield text[start : match.start()], match.group()
            start = match.end()
    yield text[start:], ""


def _list_of(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    value = metadata.get(key)
    if value is None:
        raise ModelFileError(f"{key} is missing: the file has no usable tokenizer")
    values = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(values, (list, tuple)):
        raise ModelFileError(f"{key} is not a list")
    for i, item in enumerate(values):
        if not isinstance(item, kind):
            raise ModelFileError(f"{key}[{i}] is {item!r}, not {kind.__name__}")
    return list(values)


def _check_tokens(tokens: Sequence[str], types: Sequence[int]) -> None:
    ordinary: dict[str, int] = {}
    added: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if not NORMAL <= kind <= BYTE:
            raise ModelFileError(f"tokenizer.ggml.token_type[{i}] is {kind}, not in 1..6")
        if kind in (UNKNOWN, UNUSED):
            continue
        if not token:
            raise ModelFileError(f"tokenizer.ggml.tokens[{i}] is empty")
        table = added if kind in (CONTROL, USER_DEFINED) else ordinary
        if token in table:
            raise ModelFileError(
                f"tokenizer.ggml.tokens[{i}] repeats token {table[token]}, {token[:40]!r}"
            )
        table[token] = i
    if not ordinary:
        raise ModelFileError("tokenizer.ggml.tokens has no ordinary token")


def checked_vocabulary(
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[str],
    pre: str,
    end_ids: Sequence[int],
    where: str,
) -> Vocabulary:
    """merges: "left right" each. Raises ModelFileError, which starts with `where`, for a merge that
    isn't one of two ordinary tokens."""
    types = [
        CONTROL if token in _ALWAYS_CONTROL else kind
        for token, kind in zip(tokens, types, strict=True)
    ]
    ordinary = {t for t, kind in zip(tokens, types, strict=True) if kind in (NORMAL, BYTE)}
    pairs = _parse_merges(merges, ordinary, where)
    return Vocabulary(tuple(tokens), tuple(types), tuple(pairs), pre, tuple(end_ids))


def _parse_merges(merges: Sequence[str], ordinary: set[str], where: str) -> list[tuple[str, str]]:
    pairs = []
    for i, merge in enumerate(merges):
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or not right:
            raise ModelFileError(f"{where}.merges[{i}] is {merge[:40]!r}, not two tokens")
        if left not in ordinary or right not in ordinary or left + right not in ordinary:
            unknown = next(token for token in (left, right, left + right) if token not in ordinary)
            raise ModelFileError(
                f"{where}.merges[{i}] ({merge[:40]!r}) names {unknown[:40]!r}, "
                "which is not in the vocabulary"
            )
        pairs.append((left, right))
    return pairs
