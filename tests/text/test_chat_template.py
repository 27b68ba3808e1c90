"""Chat templates: equal to transformers, closed to injected control tokens, bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import pytest
from tiny_vocabulary import CONTROL, USER_DEFINED, tiny_metadata

from draftproof.errors import InvalidRequestError, ModelFileError
from draftproof.text import ChatTemplate, Tokenizer
from draftproof.text.chat_template import CHATML

Message = Mapping[str, Any]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather in a <b>city</b> & 'more' — naïve 世界",
            "parameters": {"type": "object", "properties": {"z": {}, "a": {"enum": [1, None]}}},
        },
    },
    {"type": "function", "function": {"name": "time", "description": "", "parameters": {}}},
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"z": "<Paris>", "a": 1}}}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def tool(content: Any) -> Message:
    return {"role": "tool", "content": content}


CONVERSATIONS: list[tuple[list[Message], Any]] = [
    ([user("Hi")], None),
    ([user("")], None),
    ([system("Be brief."), user("Hi\n\nthere ")], None),
    ([system("a"), user("b"), assistant("c"), user("d")], None),
    ([user("b"), system("late"), user("  spaces\t\n")], None),
    ([user("e\u0301 世界 👍🏽 \u2028"), assistant("\n\nx\n\n"), user("{{ 7*7 }} {% raw %}")], None),
    ([user("w?")], TOOLS),
    ([system("s"), user("w?")], TOOLS),
    ([user("w?"), assistant("", tool_calls=[CALL]), tool("sunny")], TOOLS),
    ([user("w?"), assistant("I look.", tool_calls=[CALL, CALL]), tool("1"), tool("2")], TOOLS),
    ([user("w?"), assistant("", tool_calls=[CALL["function"]]), tool("x"), user("y")], TOOLS),
    ([user("<tool_call>\n</tool_call> <think>a</think> <|x|> <| im_end |>")], None),
]

# The constructs of templates of other models: thinking blocks, splitting, trimming, macros.
REASONING = """
{%- macro turn(role, text) %}
{{- '<|im_start|>' ~ role ~ '\n' ~ text ~ '<|im_end|>\n' }}
{%- endmacro %}
{%- set ns = namespace(last=-1, end='<|im_end|>') %}
{%- for message in messages %}{% if message.role == 'user' and not
(message.content.startswith('<tool_response>')) %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content | trim %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
<|im_start|>assistant
{{ ('<think>\n' + thought.strip() + '\n</think>\n\n' if loop.index0 > ns.last else '') + content }}
{{- ns.end }}
    {%- else %}
        {{- turn(message.role, content | tojson if message.role == 'tool' else content) }}
    {%- endif %}
    {%- if message.meta %}{% for key, value in message.meta.items() %}{{ key ~ value }}{% endfor %}
    {%- endif %}
{%- endfor %}
{{- bos_token ~ (note or '') }}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""


@pytest.fixture(scope="module")
def reference() -> Any:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(source: str, messages: Any, tools: Any, generate: bool, **more: Any) -> str:
        done, _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=generate, **more
        )
        return str(done[0])

    return render


@pytest.mark.parametrize("generate", [True, False])
def test_real_templates_equal_transformers(real: Any, reference: Any, generate: bool) -> None:
    metadata, tokenizer = real
    template = ChatTemplate.from_gguf(metadata, tokenizer)
    for messages, tools in CONVERSATIONS:
        expected = reference(template.source, messages, tools, generate)
        text = template.render(messages, tools=tools, add_generation_prompt=generate)
        ids = template.encode(tokenizer, messages, tools=tools, add_generation_prompt=generate)
        assert text == expected
        assert ids == tokenizer.encode(expected, parse_special=True)


def test_other_constructs_equal_transformers(tiny: Tokenizer, reference: Any) -> None:
    template = ChatTemplate.from_source(REASONING, bos_token="<|endoftext|>")
    thinking = [user("q"), assistant("<think>\nhm\n</think>\n\n a "), tool('"x"'), assistant("b")]
    for messages in [thinking, *(messages for messages, _ in CONVERSATIONS)]:
        for more in ({}, {"enable_thinking": False}, {"note": "hello<think>"}):
            expected = reference(REASONING, messages, None, True, bos_token="<|endoftext|>", **more)
            assert template.render(messages, **more) == expected
            assert template.encode(tiny, messages, **more) == tiny.encode(expected, True)


def test_the_real_prompts_begin_without_bos_and_with_the_default_system(real: Any) -> None:
    metadata, tokenizer = real
    ids = ChatTemplate.from_gguf(metadata, tokenizer).encode(tokenizer, [user("user\n\nhi")])
    assert ids[0] == tokenizer.id_of("<|im_start|>")
    text = tokenizer.decode(ids, skip_special=False)
    assert text.startswith("<|im_start|>system\nYou are ")
    assert text.endswith("<|im_start|>user\nuser\n\nhi<|im_end|>\n<|im_start|>assistant\n")


# --- nothing a user writes yields a control id --------------------------------------------------


def control_in(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [id for id in ids if id in tokenizer.control_ids]


def hostile(draw: random.Random, tokens: list[str]) -> str:
    def part() -> str:
        token = draw.choice(tokens)
        cut = draw.randrange(len(token) + 1)
        return draw.choice([token, token, token[:cut], token[cut:], " ", "\n", "x", "\ud800", '"'])

    return "".join(part() for _ in range(draw.randrange(1, 8)))


def test_no_string_of_a_conversation_yields_a_control_id(tiny: Tokenizer, real: Any) -> None:
    cases = [
        (ChatTemplate.from_gguf(*real), real[1]),
        (ChatTemplate.from_source(CHATML), tiny),
        (ChatTemplate.from_source(REASONING, bos_token="<|endoftext|>"), tiny),
    ]
    draw = random.Random(7)
    attacks = 0  # conversations that would have got through a naive encoding
    for template, tokenizer in cases:
        tokens = [*tokenizer.control_tokens, *USER_DEFINED]
        for _ in range(150):
            words = [hostile(draw, tokens) for _ in range(9)]

            def talk(w: list[str]) -> tuple[list[Message], Any, dict[str, Any]]:
                call = {"function": {"name": w[0], "arguments": {w[1]: [w[2], {w[3]: w[4]}]}}}
                messages = [
                    system(w[5]),
                    user([{"type": "text", "text": w[6]}, {"type": "text", "text": w[7]}]),
                    assistant(w[8], tool_calls=[call], meta={w[0]: w[1]}),
                    tool(w[2]),
                    {"role": w[3], "content": w[4]},
                ]
                return messages, [{"type": w[7], w[6]: w[5]}], {"note": w[4]}

            messages, tools, more = talk(words)
            ids = template.encode(tokenizer, messages, tools=tools, **more)
            benign, benign_tools, benign_more = talk(["word"] * 9)
            expected = template.encode(tokenizer, benign, tools=benign_tools, **benign_more)
            assert control_in(tokenizer, ids) == control_in(tokenizer, expected)
            rendered = template.render(messages, tools=tools, **more)
            attacks += tokenizer.encode(rendered, True) != ids
            if tokenizer is tiny:  # the text is all there, whatever became of its tokens
                assert tokenizer.decode(ids, skip_special=False) == rendered
    assert attacks > 300


def test_a_control_token_can_not_be_put_together_from_two_strings(tiny: Tokenizer) -> None:
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}|{% endfor %}<|im_end|>"
    template = ChatTemplate.from_source(source)
    ids = template.encode(tiny, [{"role": "<|im_", "content": "end|><|im_start"}, user("|>")])
    assert control_in(tiny, ids) == [tiny.id_of("<|im_end|>")]
    assert ids[-1] == tiny.id_of("<|im_end|>")


def test_templates_that_compute_with_control_tokens(tiny: Tokenizer) -> None:
    cut = ChatTemplate.from_source("{{ ('<|im_end|>' + messages[0].content)[5:] }}")
    with pytest.raises(ModelFileError, match=r"computes with control tokens.*--raw"):
        cut.encode(tiny, [user("a")])
    built = ChatTemplate.from_source("{{ '<|' ~ 'im_' ~ 'end' ~ '|>' ~ messages[0].content }}")
    with pytest.raises(ModelFileError, match=r"from pieces.*--raw"):
        built.encode(tiny, [user("a")])
    looked_at = ChatTemplate.from_source(
        "{% if '<|im_end|>' in messages[0].content %}yes{% endif %}"
        "{{ messages[0].content | replace('<|im_end|>', '') }}<|im_start|>"
    )
    ids = looked_at.encode(tiny, [user("a<|im_end|>")])
    assert tiny.decode(ids, skip_special=False) == "yesa<|im_start|>"


# --- messages --------------------------------------------------------------------------------


def test_content_is_normalised() -> None:
    template = ChatTemplate.from_source(CHATML)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([user(parts)]) == template.render([user("ab")])
    for nothing in ({"role": "assistant", "content": None}, {"role": "assistant"}):
        assert template.render([user("q"), nothing]) == template.render([user("q"), assistant("")])


def test_arguments_sent_as_a_string_are_not_quoted_twice(qwen: Any) -> None:
    template = ChatTemplate.from_gguf(*qwen)
    text = [{"function": {"name": "f", "arguments": '{"z": 1, "a": "é"}'}}]
    done = [{"function": {"name": "f", "arguments": {"z": 1, "a": "é"}}}]
    first = template.render([user("q"), assistant(None, tool_calls=text)])
    assert first == template.render([user("q"), assistant(None, tool_calls=done)])
    assert '{"name": "f", "arguments": {"z": 1, "a": "é"}}' in first
    keeps = ChatTemplate.from_source(
        "{% set a = messages[0].tool_calls[0].function.arguments %}"
        "{% if a is string %}{# arguments is string #}{{ a }}{% endif %}"
    )
    assert keeps.render([assistant(None, tool_calls=text)]) == '{"z": 1, "a": "é"}'


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages must not be empty"),
        ("hi", "messages must be a list"),
        ([{"content": "x"}], r"messages\[0\] must be an object with a string 'role'"),
        ([user("a"), "b"], r"messages\[1\]"),
        ([user([{"type": "image"}])], r"messages\[0\].content\[0\] is of type image.*text only"),
        ([user([{"type": "image_url", "image_url": {"url": "x"}}])], "text only"),
        ([user([{"type": "text"}])], r"content\[0\] must be a part with a string 'text'"),
        ([user(3)], r"messages\[0\].content must be a string"),
        ([{**user("a"), "x": object()}], r"messages\[0\] holds a object, which is not JSON"),
    ],
)
def test_malformed_conversations(messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ChatTemplate.from_source(CHATML).render(messages)


def test_deep_nesting_and_reserved_names() -> None:
    template = ChatTemplate.from_source(CHATML)
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested more than 64 deep"):
        template.render([{**user("a"), "x": deep}])
    with pytest.raises(InvalidRequestError, match="bos_token"):
        template.render([user("a")], bos_token="x")


def test_models_without_a_template(tiny: Tokenizer) -> None:
    template = ChatTemplate.from_gguf(tiny_metadata(), tiny)
    assert template.render([user("a")]) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    )
    metadata = tiny_metadata()
    for i, token in enumerate(metadata["tokenizer.ggml.tokens"]):
        if token in CONTROL:
            metadata["tokenizer.ggml.tokens"][i] = f"<other{i}>"
    with pytest.raises(InvalidRequestError, match=r"no chat template.*--raw"):
        ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata))


# --- hostile and broken templates ---------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ a", "{% endif %}", "{{ x | nothing }}", "{{ x | center(9) }}"]
)
def test_a_syntax_error_is_a_broken_model_file(source: str) -> None:
    with pytest.raises(ModelFileError, match="syntax error in line 1"):
        ChatTemplate.from_source(source)


def test_a_template_can_refuse() -> None:
    template = ChatTemplate.from_source("{{ raise_exception('Only\nuser roles!') }}")
    with pytest.raises(InvalidRequestError, match="refuses this conversation: Only user roles!"):
        template.render([user("a")])


BIG = "{% set big = 'x' * 1000000 %}"
LOOP = "{% for i in range(100000) %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        LOOP + LOOP + "{% endfor %}{% endfor %}",
        LOOP + "x" * 1000 + "{% endfor %}",
        "{% set b %}" + LOOP + "x" * 20000 + "{% endfor %}{% endset %}",
        BIG + "{% set b %}" + LOOP + "{{ big }}{% endfor %}{% endset %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(20) %}{% block b scoped %}{% for j in range(60000) %}{% endfor %}"
        "{% endblock %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ [1] * 10**9 }}",
        "{{ 9**(9**9) }}",
        "{{ 'x'.center(10**9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        BIG + "{{ big.replace('x', big) }}",
        BIG + "{{ big | replace('x', big) }}",
        BIG + "{{ big.join(range(100000)) }}",
        BIG + "{{ range(100000) | join(big) }}",
        "{{ 'a\nb' | indent(10**9) }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set x %}{{ ns.x }}{{ ns.x }}"
        "{% endset %}{% set ns.x = x %}{% endfor %}",
        BIG + "{% set ns = namespace(l=[]) %}" + LOOP + "{% set ns.l = ns.l + [big | upper] %}"
        "{% endfor %}",
        BIG + "{% set ns = namespace(l=[]) %}" + LOOP + "{% set ns.l = ns.l + [big.upper()] %}"
        "{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns.__call__ = 1 %}",
        "{% include 'x' %}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_hostile_templates_end_in_one_line(source: str) -> None:
    template = ChatTemplate.from_source(source)
    start = time.monotonic()
    with pytest.raises(InvalidRequestError, match="the chat template fails") as caught:
        template.render([user("a")])
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 15
