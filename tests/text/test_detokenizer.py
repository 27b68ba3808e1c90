"""The incremental detokenizer: deltas add up to the whole decoding, stops cut it exactly."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_vocabulary import tiny_metadata

from draftproof.errors import InvalidRequestError
from draftproof.text import Detokenizer, Tokenizer

TINY = Tokenizer.from_gguf(tiny_metadata())
ROWS = len(tiny_metadata()["tokenizer.ggml.tokens"])
any_ids = st.lists(st.integers(0, ROWS - 1), max_size=40)
text_ids = st.text(alphabet="helo wé😀👩‍👧<|im_end|>", max_size=30).map(
    lambda text: [byte_id(byte) for byte in text.encode()]
)
stops = st.lists(st.text(alphabet="helo w<\ufffdé", min_size=1, max_size=4), max_size=3)


def byte_id(byte: int) -> int:
    return next(i for i in range(256) if TINY.token_bytes(i) == bytes([byte]))


def deltas(ids: list[int], stop: list[str], skip_special: bool) -> tuple[list[str], str | None]:
    detokenizer = Detokenizer(TINY, stop, skip_special)
    pieces = [detokenizer.push(id) for id in ids]
    return [*pieces, detokenizer.finish()], detokenizer.stopped


def cut(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The rule, spelled out: read until some stop string is complete; of several, the longest."""
    for end in range(len(text) + 1):
        met = [s for s in stop if text[:end].endswith(s)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(any_ids, st.booleans())
def test_deltas_add_up_for_any_ids(ids: list[int], skip_special: bool) -> None:
    pieces, stopped = deltas(ids, [], skip_special)
    assert "".join(pieces) == TINY.decode(ids, skip_special)
    assert stopped is None


@given(any_ids | text_ids, stops, st.booleans())
def test_stop_strings_cut_the_same_text_however_it_is_divided(
    ids: list[int], stop: list[str], skip_special: bool
) -> None:
    pieces, stopped = deltas(ids, stop, skip_special)
    assert ("".join(pieces), stopped) == cut(TINY.decode(ids, skip_special), stop)


@given(text_ids, stops)
def test_nothing_is_held_back_longer_than_needed(ids: list[int], stop: list[str]) -> None:
    detokenizer = Detokenizer(TINY, stop)
    shown = ""
    for at, id in enumerate(ids, 1):
        shown += detokenizer.push(id)
        if detokenizer.stopped is not None:
            break
        known = b"".join(TINY.token_bytes(i) for i in ids[:at]).decode(errors="ignore")
        held = known[len(shown) :]
        assert not held or any(s.startswith(held) for s in stop)


def test_an_emoji_split_over_four_tokens() -> None:
    detokenizer = Detokenizer(TINY)
    assert [detokenizer.push(byte_id(b)) for b in "😀!".encode()] == ["", "", "", "😀", "!"]
    detokenizer.push(byte_id(0xF0))
    assert detokenizer.finish() == "\ufffd"


def test_a_stop_string_across_tokens() -> None:
    detokenizer = Detokenizer(TINY, ["lo wor"])
    ids = [TINY.encode(text, False) for text in ("hel", "l", "o", " wor", "hello")]
    pieces = [detokenizer.push(id) for part in ids for id in part]
    assert "".join(pieces) == "hel"
    assert detokenizer.stopped == "lo wor"
    assert detokenizer.finish() == ""


def test_of_two_stops_the_first_complete_counts_then_the_longest() -> None:
    ids = TINY.encode("say hello", False)
    for stop in (["llo", "hello", "lo"], ["lo", "hello", "llo"]):
        pieces, stopped = deltas(ids, stop, True)
        assert ("".join(pieces), stopped) == ("say ", "hello")
    pieces, stopped = deltas(ids, ["y hello", "e"], True)
    assert ("".join(pieces), stopped) == ("say h", "e")


def test_a_false_alarm_is_released() -> None:
    detokenizer = Detokenizer(TINY, ["<end>"])
    assert [detokenizer.push(byte_id(b)) for b in b"<enx<e"] == ["", "", "", "<enx", "", ""]
    assert detokenizer.finish() == "<e"


def test_control_tokens_are_silent_unless_asked_for() -> None:
    ids = TINY.encode("hello<|im_end|>", parse_special=True)
    assert "".join(deltas(ids, [], True)[0]) == "hello"
    assert "".join(deltas(ids, [], False)[0]) == "hello<|im_end|>"


@given(text_ids, stops, st.integers(0, 12))
def test_stops_that_are_complete_too_early_are_text(
    ids: list[int], stop: list[str], early: int
) -> None:
    detokenizer = Detokenizer(TINY, stop)
    shown = "".join(detokenizer.push(id, may_stop=i >= early) for i, id in enumerate(ids))
    shown += detokenizer.finish()
    codec = codecs.getincrementaldecoder("utf-8")(errors="replace")
    length = len(codec.decode(b"".join(TINY.token_bytes(id) for id in ids[:early])))
    text = TINY.decode(ids)
    want = (text, None)
    for end in range(length + 1, len(text) + 1):
        met = [s for s in stop if text[:end].endswith(s)]
        if met:
            longest = max(met, key=len)
            want = (text[: end - len(longest)], longest)
            break
    # Of a stop string that begins in what was shown before, the shown part stays.
    assert shown == want[0] or (want[0] == shown[: len(want[0])] and len(shown) <= length)
    assert detokenizer.stopped == want[1]


def test_bad_arguments() -> None:
    with pytest.raises(InvalidRequestError, match="stop"):
        Detokenizer(TINY, ["a", ""])
    with pytest.raises(InvalidRequestError, match="token id"):
        Detokenizer(TINY).push(ROWS)
