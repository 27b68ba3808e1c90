"""Reasoning, content and tool calls out of a stream: the same parts wherever the text is cut."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.text.answer_parts import AnswerSplitter, Part, Splitter
from draftproof.text.reasoning import ReasoningSplitter, begins_inside
from draftproof.text.tool_calls import call_format, call_splitter

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "tags": {"type": "array"},
        },
    },
    "noop": {},
}

Parts = tuple[str, str, list[tuple[str, object]]]


def splitter(style: str) -> AnswerSplitter:
    """style: words out of think, inside, hermes, xml."""
    words = style.split()
    calls: Splitter | None = None
    if "hermes" in words:
        calls = call_splitter("hermes", TOOLS)
    if "xml" in words:
        calls = call_splitter("xml", TOOLS)
    reasoning = None
    if "think" in words or "inside" in words:
        reasoning = ReasoningSplitter(inside="inside" in words, calls_count=calls is not None)
    return AnswerSplitter(reasoning, calls)


def split(style: str, pieces: Iterable[str]) -> Parts:
    """(reasoning, content, calls) of a text that arrives in pieces."""
    machine = splitter(style)
    parts: list[Part] = []
    for piece in pieces:
        parts += machine.push(piece)
    parts += machine.finish()
    assert all(part.text or part.name for part in parts)
    return (
        "".join(part.text for part in parts if part.kind == "reasoning"),
        "".join(part.text for part in parts if part.kind == "content"),
        [(part.name, json.loads(part.text)) for part in parts if part.kind == "tool_call"],
    )


OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
OSLO_CALL = ("get_weather", {"city": "Oslo"})
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
XML_CALL = ("get_weather", {"city": "Oslo", "days": 3})

CASES: dict[str, tuple[str, str, Parts]] = {
    "text": ("think hermes", "Just text.\n", ("", "Just text.\n", [])),
    "nothing": ("think hermes", "", ("", "", [])),
    "thoughts": ("think", "<think>\nHm, é.\n</think>\n\nYes.", ("Hm, é.", "Yes.", [])),
    "space before": ("think", " \n<think>a</think>b", ("a", "b", [])),
    "no thoughts": ("think", "<think>\n\n</think>\n\nYes.", ("", "Yes.", [])),
    "inside": ("inside", "Hm.\n</think>\n\nYes.", ("Hm.", "Yes.", [])),
    "inside, opened again": ("inside", "<think>\nHm.\n</think>\nYes.", ("Hm.", "Yes.", [])),
    "thoughts cut short": ("think", "<think>\nHm, let me s", ("Hm, let me s", "", [])),
    "almost a tag": ("think", "<thin air", ("", "<thin air", [])),
    "a tag later": ("think", "x <think>y</think>", ("", "x <think>y</think>", [])),
    "almost closed": ("think", "<think>a</thin</think>b", ("a</thin", "b", [])),
    "unfinished tag": ("think", "<think>a</thi", ("a</thi", "", [])),
    "call": ("hermes", OSLO, ("", "", [OSLO_CALL])),
    "text and call": ("hermes", f"Let me look.\n{OSLO}\n", ("", "Let me look.", [OSLO_CALL])),
    "two calls": ("hermes", f"{OSLO}\n{OSLO}", ("", "", [OSLO_CALL, OSLO_CALL])),
    "text between": ("hermes", f"{OSLO}\nand\n{OSLO}", ("", "\nand", [OSLO_CALL, OSLO_CALL])),
    "no closing tag": ("hermes", OSLO[: -len("\n</tool_call>")], ("", "", [OSLO_CALL])),
    "no arguments": ("hermes", '<tool_call>{"name": "noop"}</tool_call>', ("", "", [("noop", {})])),
    "arguments as a string": (
        "hermes",
        r'<tool_call>{"name": "noop", "arguments": "{\"a\": 1}"}</tool_call>',
        ("", "", [("noop", {"a": 1})]),
    ),
    "doubled braces": (
        "hermes",
        '<tool_call>{{"name": "noop", "arguments": {"a": 1}}}</tool_call>',
        ("", "", [("noop", {"a": 1})]),
    ),
    "tag in a string": (
        "hermes",
        r'<tool_call>{"name": "noop", "arguments": {"a": "\"</tool_call>\\"}}</tool_call>',
        ("", "", [("noop", {"a": '"</tool_call>\\'})]),
    ),
    "broken JSON": (
        "hermes",
        f'a <tool_call>{{"name": }}</tool_call> b {OSLO}',
        ("", 'a<tool_call>{"name": }</tool_call> b', [OSLO_CALL]),
    ),
    "call cut short": (
        "hermes",
        'Hm <tool_call>{"name": "noop", "argu',
        ("", 'Hm<tool_call>{"name": "noop", "argu', []),
    ),
    "NaN": (
        "hermes",
        '<tool_call>{"name": "noop", "arguments": {"a": NaN}}</tool_call>',
        ("", '<tool_call>{"name": "noop", "arguments": {"a": NaN}}</tool_call>', []),
    ),
    "no tools": ("think", OSLO, ("", OSLO, [])),
    "thoughts, then call": (
        "think hermes",
        f"<think>\nI should call.\n</think>\n\n{OSLO}",
        ("I should call.", "", [OSLO_CALL]),
    ),
    "call among thoughts": (
        "think hermes",
        f"<think>\nlike {OSLO}, no\n</think>\nNo.",
        (f"like {OSLO}, no", "No.", []),
    ),
    "thoughts end in a call": (
        "think hermes",
        f"<think>\nI call.\n{OSLO}",
        ("I call.", "", [OSLO_CALL]),
    ),
    "inside, ends in a call": ("inside hermes", f"I call.\n{OSLO}", ("I call.", "", [OSLO_CALL])),
    "xml": ("xml", f"Well:\n\n{XML}\n", ("", "Well:", [XML_CALL])),
    "xml without the outer tag": (
        "xml",
        XML.removeprefix("<tool_call>\n"),
        ("", "", [XML_CALL]),
    ),
    "xml bare at the end": (
        "xml",
        XML.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
        ("", "", [XML_CALL]),
    ),
    "xml of an undeclared tool": (
        "xml",
        "see <function=other>\n</function>",
        ("", "see <function=other>\n</function>", []),
    ),
    "xml twice": ("xml", f"{XML}\n{XML}", ("", "", [XML_CALL, XML_CALL])),
    "xml, lines and tags in a value": (
        "xml",
        "<tool_call><function=get_weather><parameter=city>\n\na </function>\nb\n</parameter>"
        "</function></tool_call>",
        ("", "", [("get_weather", {"city": "\na </function>\nb"})]),
    ),
    "xml types": (
        "xml",
        "<tool_call><function=get_weather><parameter=units>True</parameter>"
        "<parameter=tags>[1, 2]</parameter><parameter=days>many</parameter>"
        "<parameter=else>5</parameter></function></tool_call>",
        ("", "", [("get_weather", {"units": True, "tags": [1, 2], "days": "many", "else": "5"})]),
    ),
    "xml broken": (
        "xml",
        f"<tool_call>\nnothing</tool_call> {XML}",
        ("", "<tool_call>\nnothing</tool_call>", [XML_CALL]),
    ),
    "xml cut short": (
        "xml",
        "a <tool_call>\n<function=noop>\n<para",
        ("", "a<tool_call>\n<function=noop>\n<para", []),
    ),
}


@pytest.mark.parametrize(("style", "text", "expected"), CASES.values(), ids=CASES)
def test_parts(style: str, text: str, expected: Parts) -> None:
    assert split(style, [text]) == expected


@pytest.mark.parametrize(("style", "text", "expected"), CASES.values(), ids=CASES)
def test_a_cut_anywhere_changes_nothing(style: str, text: str, expected: Parts) -> None:
    assert split(style, text) == expected  # every character by itself
    for i in range(len(text)):
        assert split(style, [text[:i], text[i:]]) == expected, i


MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=noop>", "</function>")


@given(
    st.sampled_from(["think", "inside hermes", "think hermes", "think xml", "xml"]),
    st.lists(st.sampled_from([*MARKERS, *'<>/t{}"\\\n ', "<para", OSLO, XML]), max_size=12),
    st.integers(1, 5),
)
def test_any_text_in_any_pieces(style: str, words: list[str], size: int) -> None:
    text = "".join(words)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert split(style, pieces) == split(style, [text])


@given(st.text(alphabet='<tool_cal>/{"name":a}\n ', max_size=60))
def test_without_calls_nothing_but_space_is_lost(text: str) -> None:
    _, content, calls = split("hermes", text)
    if not calls:
        assert "".join(content.split()) == "".join(text.split())


def test_text_comes_as_soon_as_it_is_certain() -> None:
    machine = splitter("think hermes")
    assert machine.push("Hello") == [Part("content", "Hello")]
    assert machine.push(" <") == []
    assert machine.push("b") == [Part("content", " <b")]


def test_what_the_template_says() -> None:
    assert call_format("{{ messages }}") is None
    assert call_format("{% if tools %}<tool_call>{% endif %}") == "hermes"
    xml = "{% if tools %}<tool_call><function=x><parameter=y>{% endif %}"
    assert call_format(xml) == "xml"
    assert begins_inside("<|im_start|>assistant\n<think>\n")
    assert not begins_inside("<think>\n\n</think>\n\n")
