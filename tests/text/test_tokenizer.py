"""The tokenizer against a slow independent twin, known vectors, and broken vocabularies."""

from __future__ import annotations

import random
import threading
import time
import unicodedata
from typing import Any

import numpy as np
import pytest
from bpe_twin import Twin
from tiny_vocabulary import CONTROL, tiny_metadata

from draftproof.errors import InvalidRequestError, ModelFileError
from draftproof.text import Tokenizer

TEXT = (
    "hello world don't I'LL They'Ve it's naïve Straße ΑΒΓ русский 你好 世界 こんにちは 한국어 "
    'مرحبا def self.x += 1; for(int i=0;i<n;++i){ </div> `code` #include <vector> "q" \\n // '
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽 e\u0301 Å ﬁ \u1100\u1161 x² ½ ④ ٣ 3.14159 12345 0x1F 2024-11-30 ... --- ''"
)
WORDS = TEXT.split()
SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n",
    "\n ",
    "\xa0",
    "\u3000",
    "\u2028",
    "",
]
LOOK_ALIKES = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end|", "<<|im_end|>", "<|im_|im_end|>",
    "<|image_pad|>", "<|fim_prefix|>", "<tool_call>", "</tool_call>", "<tool_call", "<file_sep>",
]  # fmt: skip


def strings(count: int, seed: int) -> list[str]:
    """Random text of words, spaces, look-alikes and assigned characters of all planes."""
    draw = random.Random(seed)
    # Unicode 3.2: the same characters under every Python, and no engine is too old to know them.
    old = unicodedata.ucd_3_2_0
    codes = [code for code in range(0x20000) if old.category(chr(code)) not in ("Cn", "Co", "Cs")]
    assigned = [chr(code) for code in [*codes, *range(0x1F300, 0x1F600)]]

    def part() -> str:
        kind = draw.randrange(6)
        if kind == 0:
            return "".join(draw.choices(assigned, k=draw.randrange(1, 5)))
        if kind == 1:
            return "".join(chr(draw.randrange(128)) for _ in range(draw.randrange(1, 8)))
        if kind == 2:
            return draw.choice(LOOK_ALIKES)
        return draw.choice(WORDS) + draw.choice(SPACES)

    return ["".join(part() for _ in range(draw.randrange(1, 16))) for _ in range(count)]


def assert_equal_to_twin(metadata: Any, tokenizer: Tokenizer, count: int, seed: int) -> None:
    twin = Twin(metadata)
    for text in strings(count, seed):
        for parse_special in (False, True):
            expected = twin.encode(text, parse_special)
            assert tokenizer.encode(text, parse_special) == expected, (text, parse_special)


def test_qwen_equals_the_twin_on_2000_strings(qwen: Any) -> None:
    assert_equal_to_twin(*qwen, 2000, 1)


def test_smollm_equals_the_twin_on_2000_strings(smollm: Any) -> None:
    assert_equal_to_twin(*smollm, 2000, 2)


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "smollm", "gpt-2"])
def test_every_pre_tokenizer_equals_the_twin_on_the_tiny_vocabulary(pre: str) -> None:
    metadata = tiny_metadata(pre)
    # One whole word without the merges that would make it: only ignore_merges finds it.
    metadata["tokenizer.ggml.tokens"][256 + 10] = "return"
    metadata["tokenizer.ggml.merges"].pop()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert_equal_to_twin(metadata, tokenizer, 300, 3)
    assert (266 in tokenizer.encode("return", False)) == (pre == "llama-bpe")


def test_qwen_vectors(qwen: Any) -> None:
    tokenizer = qwen[1]
    text = "a<|im_end|>b<tool_call>"
    assert tokenizer.encode(text, True) == [64, 151645, 65, 151657]
    assert tokenizer.encode(text, False) == [64, 27, 91, 318, 6213, 91, 29, 65, 151657]
    assert tokenizer.encode("e\u0301 Cafe\u0301", False) == [963, 65671]
    assert tokenizer.encode("user\n\nhi", False) == [872, 271, 6023]
    assert len(tokenizer.encode("1234", False)) == 4
    assert tokenizer.encode("", True) == []
    assert tokenizer.vocab_size == 151665
    assert tokenizer.eos_ids == {151643, 151645}
    assert tokenizer.control_ids == {*range(151643, 151657), *range(151659, 151665)}
    assert tokenizer.token_bytes(151700) == b""


def test_smollm_vectors(smollm: Any) -> None:
    tokenizer = smollm[1]
    ids = tokenizer.encode("Hello 123  world", False)
    pieces = [tokenizer.token_bytes(i) for i in ids]
    assert pieces == [b"Hello", b" ", b"1", b"2", b"3", b" ", b" world"]
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.control_ids == set(range(17))
    # No token for the byte 4: dropped, as in the reference implementation.
    assert tokenizer.encode("he\x04", False) == tokenizer.encode("he", False)


def test_qwen_equals_the_class_of_transformers(qwen: Any) -> None:
    transformers = pytest.importorskip("transformers")
    metadata, tokenizer = qwen
    vocab = {t: i for i, t in enumerate(metadata["tokenizer.ggml.tokens"]) if i < 151643}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    reference = transformers.Qwen2Tokenizer(vocab=vocab, merges=merges)
    for text in strings(300, 4):
        for special in LOOK_ALIKES:  # the reference knows other added tokens
            text = text.replace(special, "")
        if "<|endoftext|>" not in text:
            assert tokenizer.encode(text, False) == reference.encode(text), text


def test_round_trip(qwen: Any) -> None:
    tokenizer = qwen[1]
    for text in strings(500, 5):
        text = unicodedata.normalize("NFC", text)
        for parse_special in (False, True):
            ids = tokenizer.encode(text, parse_special)
            assert tokenizer.decode(ids, skip_special=False) == text


def test_plain_text_never_yields_a_control_id(tiny: Tokenizer, real: Any) -> None:
    for tokenizer in (tiny, real[1]):
        for text in [*tokenizer.control_tokens, *strings(300, 6)]:
            assert not tokenizer.control_ids & set(tokenizer.encode(text, parse_special=False))
        for token, id in tokenizer.control_tokens.items():
            assert tokenizer.encode(token, parse_special=True) == [id]


def test_decoding(tiny: Tokenizer) -> None:
    ids = tiny.encode("hello<|im_end|><tool_call>é", parse_special=True)
    assert tiny.decode(ids) == "hello<tool_call>é"
    assert tiny.decode(ids, skip_special=False) == "hello<|im_end|><tool_call>é"
    assert tiny.decode([0xC3, 0x41, 0xE4, 0xBD]) == "\ufffdA\ufffd"
    assert tiny.token_bytes(0x20) == b" "
    assert tiny.id_of("<think>") == tiny.encode("<think>", False)[0]
    assert tiny.id_of("nothing of the kind") is None
    assert tiny.vocab_size == len(tiny_metadata()["tokenizer.ggml.tokens"]) - 3
    assert tiny.decode([tiny.vocab_size + 1]) == ""
    for id in (-1, tiny.vocab_size + 3):
        with pytest.raises(InvalidRequestError, match="token id"):
            tiny.token_bytes(id)


def test_lone_surrogates_become_replacement_characters(tiny: Tokenizer) -> None:
    assert tiny.encode("a\ud800b", False) == tiny.encode("a\ufffdb", False)
    assert tiny.encode("\udfff<|im_end|>", True) == tiny.encode("\ufffd<|im_end|>", True)


def test_token_types_may_be_an_array() -> None:
    metadata = tiny_metadata()
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], "i4")
    assert Tokenizer.from_gguf(metadata).control_tokens.keys() == set(CONTROL)


def test_a_pad_in_the_middle_keeps_its_place() -> None:
    metadata = tiny_metadata()
    metadata["tokenizer.ggml.token_type"][-2] = 4
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.vocab_size == len(metadata["tokenizer.ggml.tokens"]) - 1
    assert tokenizer.encode("[PAD1][PAD0]", False)[0] == tokenizer.vocab_size - 1


def test_the_longest_added_token_is_matched() -> None:
    metadata = tiny_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    for short, long, kind in (("<a", "<a>", 3), ("<b>", "<b", 4)):
        tokens += [short, long]
        metadata["tokenizer.ggml.token_type"] += [kind, kind]
    tokenizer = Tokenizer.from_gguf(metadata)
    ids = [tokens.index(token) for token in ("<a>", "<a", "<b>", "<b")]
    assert tokenizer.encode("<a><a<b><b", True) == ids


def test_the_token_that_ends_a_turn_is_control_in_a_careless_file() -> None:
    metadata = tiny_metadata()
    at = metadata["tokenizer.ggml.tokens"].index("<|im_end|>")
    for kind in (1, 4):
        metadata["tokenizer.ggml.token_type"][at] = kind
        tokenizer = Tokenizer.from_gguf(metadata)
        assert at in tokenizer.control_ids & tokenizer.eos_ids
        assert at not in tokenizer.encode("<|im_end|>", False)


T = "tokenizer.ggml."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "'llama': only byte-level BPE"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"pre": "qwen35"}, "tokenizer.ggml.pre is 'qwen35'.*qwen2"),
        ({"pre": None}, "pre is None"),
        ({"pre": ["qwen2"]}, "pre is "),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": "abc"}, "tokens is not a list"),
        ({"tokens": [1, 2]}, r"tokens\[0\] is 1, not str"),
        ({"token_type": [1, 1]}, "token_type has 2 entries for 278 tokens"),
        ({"token_type": [7] * 278}, r"token_type\[0\] is 7"),
        ({"token_type": [1.5] * 278}, r"token_type\[0\] is 1.5, not int"),
        ({"token_type": [5] * 278}, "no ordinary token"),
        ({"merges": ["h e", "q z"]}, r"merges\[1\] \('q z'\) names 'qz'"),
        ({"merges": ["he"]}, r"merges\[0\] is 'he', not two tokens"),
        ({"merges": [" "]}, r"merges\[0\]"),
        ({"merges": ["h "]}, r"merges\[0\]"),
        ({"eos_token_id": 278}, "eos_token_id is 278, but there are only 278"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eot_token_id": "x"}, "eot_token_id is 'x', not a token id"),
        ({"tokens": ["a"] * 278}, r"tokens\[1\] repeats token 0"),
        ({"tokens": [""] * 278}, r"tokens\[0\] is empty"),
    ],
)
def test_broken_vocabularies_are_refused_in_one_line(changes: Any, message: str) -> None:
    metadata = tiny_metadata() | {T + key: value for key, value in changes.items()}
    with pytest.raises(ModelFileError, match=message) as caught:
        Tokenizer.from_gguf(metadata)
    assert "\n" not in str(caught.value)


def test_a_long_text_gives_the_ids_of_a_short_one_and_holds_up_no_other_thread() -> None:
    tokenizer = Tokenizer.from_gguf(tiny_metadata())
    text = "hello world don't " * 40_000
    ids: list[int] = []
    thread = threading.Thread(target=lambda: ids.extend(tokenizer.encode(text, False)))
    longest, last = 0.0, time.monotonic()
    start = last
    thread.start()
    while thread.is_alive():
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        time.sleep(0.001)
    taken = time.monotonic() - start
    assert longest < 0.6 * taken
    assert tokenizer.decode(ids) == text
    short = tokenizer.encode("hello world don't " * 2, False)
    assert ids[: len(short) // 2] == short[: len(short) // 2]
