"""The published templates of Qwen2.5, Qwen3 and Qwen3-Coder, rendered as transformers renders them:
forty conversations with tools, thoughts and empty content."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from test_chat_template import TOOLS, assistant, system, tool, user

from draftproof.text import ChatTemplate, Tokenizer

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

CALL = {"type": "function", "function": {"name": "weather", "arguments": {"z": "<Paris>", "a": 1}}}
BARE = {"name": "time", "arguments": {}}

Turns = list[dict[str, Any]]
# What comes before the last user message: nothing, answers, thoughts, calls of tools.
HISTORIES: list[Turns] = [
    [],
    [user("a"), assistant("b")],
    [user("a"), assistant("")],
    [user(""), assistant("\n\n b \n")],
    [user("a"), assistant("<think>\nhm\n</think>\n\nb")],
    [user("a"), assistant("b", reasoning_content="because")],
    [user("a"), assistant("", tool_calls=[CALL]), tool("sunny")],
    [
        user("a"),
        assistant("I look.", tool_calls=[CALL, CALL]),
        tool("1"),
        tool("2"),
        assistant("c"),
    ],
    [user("a"), assistant("<think>\nx\n</think>\n\n", tool_calls=[CALL]), tool("")],
    [user("a"), assistant("b", tool_calls=[BARE]), tool("世界 👍🏽"), assistant(""), user("z")],
]
SYSTEMS: list[Turns] = [[], [system("Be brief.")]]
LAST: list[Turns] = [[user("Why?\n\n1 < 2 & 'x'")], []]
CONVERSATIONS = [
    turns
    for first, history, last in product(SYSTEMS, HISTORIES, LAST)
    if (turns := [*first, *history, *last]) and turns[-1]["role"] != "system"
]


@pytest.fixture(scope="module")
def reference() -> Any:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(source: str, messages: Any, tools: Any, **more: Any) -> str:
        done, _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=True, **more
        )
        return str(done[0])

    return render


def test_there_are_forty_conversations() -> None:
    assert TEMPLATES == ["qwen2.5", "qwen3", "qwen3-coder"]
    assert len(CONVERSATIONS) + 2 >= 40  # and two more below


@pytest.mark.parametrize("more", [{}, {"enable_thinking": False}], ids=["usual", "no thoughts"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_equal_to_transformers(
    name: str, tools: Any, more: dict[str, Any], tiny: Tokenizer, reference: Any
) -> None:
    source = (FOLDER / f"{name}.jinja").read_text("utf-8")
    template = ChatTemplate.from_source(source)
    for messages in CONVERSATIONS:
        expected = reference(source, messages, tools, **more)
        assert template.render(messages, tools=tools, **more) == expected
        ids = template.encode(tiny, messages, tools=tools, **more)
        assert ids == tiny.encode(expected, parse_special=True)


@pytest.mark.parametrize("name", TEMPLATES)
def test_content_in_parts_and_null_reads_as_its_text(name: str, reference: Any) -> None:
    """transformers fails on these, or prints None."""
    source = (FOLDER / f"{name}.jinja").read_text("utf-8")
    template = ChatTemplate.from_source(source)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = [user("ab"), assistant("", tool_calls=[CALL]), tool("c")]
    other = [user(parts), assistant(None, tool_calls=[CALL]), tool([{"type": "text", "text": "c"}])]
    assert template.render(other) == reference(source, call, None)


def test_what_the_templates_are_known_for(reference: Any) -> None:
    def ending(name: str, **more: Any) -> str:
        source = (FOLDER / f"{name}.jinja").read_text("utf-8")
        return ChatTemplate.from_source(source).render([user("q")], **more)

    assert ending("qwen2.5").startswith(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud"
    )
    assert ending("qwen3").startswith("<|im_start|>user\nq<|im_end|>")
    assert ending("qwen3", enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert ending("qwen3").endswith("<|im_start|>assistant\n")
    assert "<function=" in ending("qwen3-coder", tools=TOOLS)
