"""The vocabulary out of a Hugging Face tokenizer.json.

Owns which of its many settings are understood: those of byte-level BPE with one of the known ways
to split. Anything else is refused, since a wrong split degrades every answer unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.errors import ModelFileError
from draftproof.text.tokenizer import (
    CONTROL,
    NORMAL,
    PRE_TOKENIZERS,
    UNUSED,
    USER_DEFINED,
    PreTokenizer,
    Vocabulary,
    checked_vocabulary,
    replace_surrogates,
)

_MAX_TOKENS = 1 << 22
_WHERE = "tokenizer.json: model"


def vocabulary_from_json(file: Mapping[str, Any], end_ids: Sequence[int]) -> Vocabulary:
    """Ids that no token has become unused padding, as in a GGUF file.

    Raises ModelFileError for a kind of tokenizer that isn't built here and for a vocabulary that
    contradicts itself.
    """
    model = file.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else model
        raise _error(f"model is {str(kind)[:40]!r}: only byte-level BPE is supported")
    for key in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise _error(f"model.{key} is set: only byte-level BPE is supported")
    pre = _pre_tokenizer_name(file, bool(model.get("ignore_merges")))
    by_id = _ordinary_tokens(model)
    _add_tokens(by_id, file.get("added_tokens") or [])
    count = max(by_id) + 1
    if count > 2 * len(by_id) + 1024:
        raise _error(f"token ids go up to {count - 1}, but there are only {len(by_id)} tokens")
    entries = [by_id.get(i, (f"[PAD{i}]", UNUSED)) for i in range(count)]
    for id in end_ids:
        if not 0 <= id < count:
            raise _error(f"the end token {id} isn't in the vocabulary of {count} tokens")
    return checked_vocabulary(
        [token for token, _ in entries],
        [kind for _, kind in entries],
        _merges(model),
        pre,
        end_ids,
        _WHERE,
    )


def _ordinary_tokens(model: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not 1 <= len(vocab) <= _MAX_TOKENS:
        raise _error("model.vocab is missing or empty")
    by_id: dict[int, tuple[str, int]] = {}
    for token, id in vocab.items():
        if type(id) is not int or not 0 <= id < _MAX_TOKENS:
            raise _error(f"model.vocab[{token[:40]!r}] is no token id")
        if id in by_id or not token or replace_surrogates(token) != token:
            raise _error(f"model.vocab: id {id} belongs to two tokens, or to none that is text")
        by_id[id] = token, NORMAL
    return by_id


def _add_tokens(by_id: dict[int, tuple[str, int]], added: Any) -> None:
    """Puts the added tokens over the ordinary ones."""
    if not isinstance(added, list) or len(added) > _MAX_TOKENS:
        raise _error("added_tokens is not a list")
    id_of = {token: id for id, (token, _) in by_id.items()}
    seen: set[str] = set()
    for i, entry in enumerate(added):
        if not isinstance(entry, dict):
            raise _error(f"added_tokens[{i}] is not an object")
        id, token, special = entry.get("id"), entry.get("content"), entry.get("special", False)
        if type(id) is not int or not 0 <= id < _MAX_TOKENS or type(special) is not bool:
            raise _error(f"added_tokens[{i}] has no sound id")
        if not isinstance(token, str) or not token or replace_surrogates(token) != token:
            raise _error(f"added_tokens[{i}] has no text")
        if token in seen:
            raise _error(f"added_tokens[{i}] repeats another")
        if id_of.get(token, id) != id or by_id.get(id, (token,))[0] != token:
            raise _error(f"added_tokens[{i}] ({token[:40]!r}) contradicts model.vocab")
        for flag in ("single_word", "lstrip", "rstrip"):
            if entry.get(flag):
                raise _error(f"added_tokens[{i}].{flag} is set: that isn't supported")
        seen.add(token)
        by_id[id] = token, CONTROL if special else USER_DEFINED


def _merges(model: Mapping[str, Any]) -> list[str]:
    """As "left right"; newer files have pairs."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise _error("model.merges is missing")
    out = []
    for i, merge in enumerate(merges):
        if isinstance(merge, list) and len(merge) == 2:
            left, right = merge
            if isinstance(left, str) and isinstance(right, str) and " " not in left + right:
                merge = f"{left} {right}"
        if not isinstance(merge, str):
            raise _error(f"model.merges[{i}] isn't a pair of tokens")
        out.append(merge)
    return out


def _pre_tokenizer_name(file: Mapping[str, Any], ignore_merges: bool) -> str:
    """The name in PRE_TOKENIZERS of what the file does before BPE."""
    normalizer = _steps(file.get("normalizer"), "normalizers")
    nfc = [step.get("type") for step in normalizer] == ["NFC"]
    found: PreTokenizer | None = None
    steps = _steps(file.get("pre_tokenizer"), "pretokenizers")
    if (nfc or not normalizer) and steps and steps[-1].get("type") == "ByteLevel":
        *before, last = steps
        pattern, digits = None, False
        understood = not last.get("add_prefix_space", True)
        for step in before:
            if step.get("type") == "Split" and pattern is None:
                wanted = {"behavior": "Isolated", "invert": False}
                understood &= all(step.get(key) == value for key, value in wanted.items())
                regex = step.get("pattern")
                pattern = regex.get("Regex", "") if isinstance(regex, dict) else ""
            elif step.get("type") == "Digits" and step.get("individual_digits"):
                digits = True
            else:
                understood = False
        understood &= last.get("use_regex", True) is (pattern is None)
        if understood:
            found = PreTokenizer(pattern, digits, nfc, ignore_merges)
    for name, known in PRE_TOKENIZERS.items():
        if known == found:
            return name
    kinds = [str(step.get("type"))[:40] for step in (*normalizer, *steps)]
    raise _error(
        f"splits text in a way that isn't known here ({', '.join(kinds) or 'no steps'}): a wrong "
        f"split would degrade every answer; supported are {', '.join(sorted(PRE_TOKENIZERS))}"
    )


def _steps(value: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, a sequence of one level taken apart."""
    if value is None:
        return []
    steps = value.get(inner) if isinstance(value, dict) and inner in value else [value]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise _error(f"{inner} are not a list of objects")
    return steps


def _error(what: str) -> ModelFileError:
    return ModelFileError(f"tokenizer.json: {what}")
