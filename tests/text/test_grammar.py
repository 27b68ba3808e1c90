"""Grammars over a vocabulary: masks, drafts and forced tokens agree with one another; hostile
grammars end in an error."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_vocabulary import tiny_metadata

from draftproof.errors import GrammarError, InvalidRequestError
from draftproof.sampling import Grammar, SamplingParams
from draftproof.text import Tokenizer
from draftproof.text.grammar import COMPILE_SECONDS, GrammarCompiler, GrammarMatcher

TINY = Tokenizer.from_gguf(tiny_metadata())
COMPILER = GrammarCompiler(TINY)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
SCHEMA_TEXT = json.dumps(SCHEMA)
CASES = [
    ("json_schema", SCHEMA_TEXT, '{"name": "hello", "old": true}'),
    ("json_object", "", '{"a": [1, 2.5e3, null, {"b": "\\n"}]}'),
    ("regex", "(he|wo)+l{2,3}", "hewohelll"),
    ("lark", 'start: "he" (" " word)*\nword: /[lo]+/', "he llo o"),
]


def encode(text: str) -> list[int]:
    return TINY.encode(text, parse_special=False)


def bits(mask: NDArray[np.uint32]) -> NDArray[np.uint8]:
    unpacked: NDArray[np.uint8] = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return unpacked[: TINY.vocab_size]


def after(matcher: GrammarMatcher, tokens: list[int]) -> NDArray[np.uint32]:
    for token in tokens:
        matcher.advance(token)
    return matcher.masks(())[0]


@pytest.mark.parametrize(("kind", "source", "text"), CASES)
def test_every_row_of_a_draft_has_the_mask_of_its_place(kind: str, source: str, text: str) -> None:
    """A draft leaves no trace, whatever it was; end tokens are allowed where the text is whole."""
    tokens = encode(text)
    ends = sorted(TINY.eos_ids)
    expected = [
        after(COMPILER.compile(kind, source), tokens[:i]).tolist() for i in range(len(tokens) + 1)
    ]
    matcher = COMPILER.compile(kind, source)
    for i in range(len(tokens) + 1):
        for draft in (tokens[i:], tokens[i : i + 2], [*tokens[i:], ends[0], 3], [ends[0]]):
            masks = matcher.masks(draft)
            assert masks.shape == (len(draft) + 1, -(-TINY.vocab_size // 32))
            count = matcher.allowed(draft)
            for j, mask in enumerate(masks[: len(tokens) + 1 - i]):
                if j <= count and not {*draft[:j]} & {*ends}:
                    assert mask.tolist() == expected[i + j]
            if draft == tokens[i:]:
                assert count == len(draft)
        row = bits(matcher.masks(())[0])
        whole = {int(row[end]) for end in ends}
        assert len(whole) == 1
        assert matcher.allowed([ends[0], 3]) == whole.pop()
        assert i < len(tokens) or row[ends[0]]
        # What a mask allows a draft may hold. (Where text is forced, a mask knows its usual
        # spelling only.)
        assert all(matcher.allowed([token]) for token in np.flatnonzero(row).tolist())
        if i < len(tokens):
            assert row[tokens[i]]
            matcher.advance(tokens[i])
    assert matcher.error == ""


def test_what_is_forbidden_is_cut_off_a_draft() -> None:
    matcher = COMPILER.compile("regex", "hello( hello)*")
    good = encode("hello hello")
    assert matcher.allowed([*good, *encode("x")]) == len(good)
    assert matcher.allowed(encode("x")) == 0
    assert matcher.allowed([]) == 0
    masks = matcher.masks([*good, encode("x")[0], good[0]])
    assert masks[len(good)].any()
    assert not masks[len(good) + 1 :].any()


def test_forced_tokens_are_allowed_and_the_end_is_forced() -> None:
    matcher = COMPILER.compile("json_schema", SCHEMA_TEXT)
    seen = 0
    for token in encode('{"name": "hello", "old": true}'):
        forced = matcher.forced()
        seen += len(forced)
        assert matcher.allowed(forced) == len(forced)
        matcher.advance(token)
    assert seen > 0
    assert matcher.forced() == [max(TINY.eos_ids)]
    ends = np.flatnonzero(bits(matcher.masks(())[0]))
    assert {*ends.tolist()} == TINY.eos_ids


def test_no_endless_space_in_json() -> None:
    matcher = COMPILER.compile("json_object", "")
    assert matcher.allowed(encode('{"a": 1,\n    "b": 2}')) == len(encode('{"a": 1,\n    "b": 2}'))
    assert matcher.allowed(encode('{  "a": 1}')) < len(encode('{  "a": 1}'))
    assert matcher.allowed(encode("{\n\n}")) < len(encode("{\n\n}"))


# --- hostile grammars ----------------------------------------------------------------------------


def nested(count: int) -> str:
    return '{"properties":{"a":' * count + "{}" + "}}" * count


def laughs(count: int) -> str:
    names = [f"#/$defs/d{i}" for i in range(count + 1)]
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": names[i + 1]}] * 2} for i in range(count)}
    return json.dumps({"$defs": {**defs, f"d{count}": {"type": "string"}}, "$ref": names[0]})


BAD = [
    ("json_schema", '{"type": "nonsense"}'),
    ("json_schema", "3"),
    ("json_schema", nested(300)),
    ("json_schema", '{"$ref": "#"}'),
    ("json_schema", '{"$ref": "https://example.org/x.json"}'),
    ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}'),
    ("regex", "(["),
    ("regex", r"(a)\1"),
    ("regex", "(?=a)b"),
    ("regex", "(" * 5000 + ")" * 5000),
    ("lark", "begin: A"),
    ("lark", "start: nobody"),
    ("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    ("lark", "%import common.NOPE\nstart: NOPE"),
    ("lark", "start: \0"),
]


@pytest.mark.parametrize(("kind", "source"), BAD, ids=lambda text: text[:20])
def test_what_can_not_be_compiled_is_named_quickly(kind: str, source: str) -> None:
    COMPILER.compile("regex", "a")  # the vocabulary has been read
    start = time.perf_counter()
    with pytest.raises(GrammarError) as caught:
        COMPILER.compile(kind, source)
    assert time.perf_counter() - start < COMPILE_SECONDS + 1.0
    message = str(caught.value)
    assert message.startswith("grammar")
    assert kind in message
    assert len(message) < 300
    assert "\n" not in message


HARD = [
    ("regex", "((((a{100}){100}){100}){100}){100}"),
    ("json_schema", laughs(30)),
    ("json_schema", json.dumps({"enum": [f"v{i}" for i in range(10_000)]})),
    ("json_schema", json.dumps({"type": "array", "minItems": 10**9})),
    ("json_schema", json.dumps({"type": "string", "minLength": 10**9})),
    ("json_schema", json.dumps({"properties": {f"p{i}": {} for i in range(2_000)}})),
    ("regex", "(a|b){1,1000000}"),
    ("regex", "(.*a){20}.{20}"),
    ("regex", "(a|aa)*b.*(x.{200})"),
    ("regex", "|".join(f"a{i}" for i in range(20_000))),
    ("lark", 'start: x\nx: x x x | "a" | '),
    ("lark", 'start: ("a"{1,100000}){1,100000}'),
]


@pytest.mark.parametrize(("kind", "source"), HARD, ids=lambda text: text[:20])
def test_no_grammar_keeps_the_engine_busy(kind: str, source: str) -> None:
    """Accepted or not: nothing takes long, and where a limit is met nothing is allowed any more."""
    start = time.perf_counter()
    try:
        matcher = COMPILER.compile(kind, source)
    except GrammarError:
        assert time.perf_counter() - start < COMPILE_SECONDS + 1.0
        return
    rng = np.random.default_rng(0)
    for _ in range(60):
        start = time.perf_counter()
        allowed = np.flatnonzero(bits(matcher.masks(())[0]))
        assert time.perf_counter() - start < 0.5
        if matcher.error:
            assert len(allowed) == 0
            assert not matcher.masks([3, 4]).any()
            assert matcher.allowed([3]) == 0
            assert matcher.forced() == []
        text = [token for token in allowed.tolist() if token not in TINY.eos_ids]
        if not text:
            break
        matcher.advance(int(rng.choice(text)))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("xml", "a"),
        ("json_object", "{}"),
        ("json_schema", ""),
        ("json_schema", "{"),
        ("json_schema", {"a": float("nan")}),
        ("json_schema", {"a": object()}),
        ("json_schema", "[" * 100_000),
        ("regex", ""),
        ("regex", 3),
        ("regex", "a" * 300_000),
        ("regex", "\ud800"),
        ("lark", None),
    ],
)
def test_mistakes_at_the_door(kind: str, source: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^grammar") as caught:
        Grammar(kind, source)
    assert len(str(caught.value)) <= 200


def test_a_schema_as_a_mapping() -> None:
    grammar = Grammar("json_schema", SCHEMA)
    assert json.loads(grammar.text) == SCHEMA
    assert hash(grammar) == hash(Grammar("json_schema", dict(SCHEMA)))
    with pytest.raises(InvalidRequestError, match=r"^grammar"):
        SamplingParams(grammar="json_object")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^ignore_eos"):
        SamplingParams(grammar=grammar, ignore_eos=True)
