"""Vocabularies out of tokenizer.json: the ids of the library itself, and broken ones refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from test_tokenizer import strings

from draftproof.errors import ModelFileError
from draftproof.text import Tokenizer
from draftproof.text.tokenizer_json import vocabulary_from_json
from tiny_folders import tokenizer_json
from tiny_models import SPECS

Json = dict[str, Any]


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_ids_are_those_of_the_library(name: str) -> None:
    file = tokenizer_json(SPECS[name])
    library = tokenizers.Tokenizer.from_str(json.dumps(file))
    ours = Tokenizer(vocabulary_from_json(file, []))
    seen = set()
    for text in strings(300, 4):
        ids = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, parse_special=True) == ids
        assert ours.decode(ids, skip_special=False) == library.decode(
            ids, skip_special_tokens=False
        )
        seen.update(ids)
    assert len(seen) > 150
    assert seen & ours.control_ids
    assert not {*ours.encode("<|im_end|>", parse_special=False)} & ours.control_ids


def test_merges_may_be_strings_and_ids_may_have_holes() -> None:
    file = tokenizer_json(SPECS["qwen2"])
    pairs = vocabulary_from_json(file, [])
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    assert vocabulary_from_json(file, []) == pairs
    last = max(file["model"]["vocab"].values(), default=0)
    file["added_tokens"].append({"id": last + 60, "content": "<|far|>", "special": True})
    vocabulary = vocabulary_from_json(file, [])
    assert vocabulary.tokens[last + 59] == f"[PAD{last + 59}]"
    assert Tokenizer(vocabulary).control_tokens["<|far|>"] == last + 60


def test_an_added_token_may_be_in_the_vocabulary_too() -> None:
    file = tokenizer_json(SPECS["qwen2"])
    added = file["added_tokens"][0]
    file["model"]["vocab"][added["content"]] = added["id"]
    ours = Tokenizer(vocabulary_from_json(file, []))
    assert ours.control_tokens[added["content"]] == added["id"]


def model(**keys: Any) -> Callable[[Json], None]:
    return lambda file: file["model"].update(keys)


def top(**keys: Any) -> Callable[[Json], None]:
    return lambda file: file.update(keys)


def added(**keys: Any) -> Callable[[Json], None]:
    return lambda file: file["added_tokens"][0].update(keys)


SPLIT = {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
BAD: dict[str, tuple[Callable[[Json], None], str]] = {
    "Unigram": (model(type="Unigram"), "only byte-level BPE"),
    "no model": (top(model=None), "only byte-level BPE"),
    "byte fallback": (model(byte_fallback=True), "model.byte_fallback is set"),
    "a suffix": (model(end_of_word_suffix="</w>"), "model.end_of_word_suffix is set"),
    "no vocab": (model(vocab={}), "model.vocab is missing or empty"),
    "an id twice": (model(vocab={"a": 1, "b": 1}), "belongs to two tokens"),
    "a huge id": (model(vocab={"a": 1 << 40}), "is no token id"),
    "a negative id": (model(vocab={"a": -1}), "is no token id"),
    "true for an id": (model(vocab={"a": True}), "is no token id"),
    "half a character": (model(vocab={"\ud800": 0}), "none that is text"),
    "ids far apart": (added(id=4_000_000), "but there are only"),
    "merges missing": (model(merges=None), "model.merges is missing"),
    "a merge of three": (model(merges=[["a", "b", "c"]]), "model.merges[0] isn't a pair"),
    "a merge of none": (model(merges=[["zz", "yy"]]), "not in the vocabulary"),
    "another pattern": (
        top(pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}),
        "in a way that isn't known here (NFC, Split, ByteLevel)",
    ),
    "Metaspace": (top(pre_tokenizer={"type": "Metaspace"}), "(NFC, Metaspace)"),
    "no split": (top(pre_tokenizer=None), "in a way that isn't known here"),
    "a prefix space": (
        top(pre_tokenizer={**BYTES, "add_prefix_space": True}), "isn't known here",
    ),
    "NFKC": (top(normalizer={"type": "NFKC"}), "(NFKC, Split, ByteLevel)"),
    "steps of nonsense": (top(normalizer={"normalizers": 5}), "not a list of objects"),
    "added contradicts": (added(content="a"), "contradicts model.vocab"),
    "added strips": (added(lstrip=True), "added_tokens[0].lstrip is set"),
    "added without text": (added(content=""), "added_tokens[0] has no text"),
    "added twice": (lambda f: f["added_tokens"].append(f["added_tokens"][0]), "repeats another"),
    "added is no list": (top(added_tokens={"a": 1}), "added_tokens is not a list"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused(case: str) -> None:
    change, said = BAD[case]
    file = tokenizer_json(SPECS["qwen2"])
    change(file)
    with pytest.raises(ModelFileError) as caught:
        vocabulary_from_json(file, [])
    message = str(caught.value)
    assert said in message
    assert message.startswith("tokenizer.json: ")
    assert "\n" not in message
    assert len(message) < 400


def test_an_end_token_outside_is_refused() -> None:
    with pytest.raises(ModelFileError, match="the end token 5000 isn't in the vocabulary"):
        vocabulary_from_json(tokenizer_json(SPECS["qwen2"]), [5000])
