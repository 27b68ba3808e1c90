"""The front door around a scripted model and a real tokenizer of single bytes."""

from __future__ import annotations

import itertools
import json
import re
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from engine_support import assert_same, outcome_of_completion
from fake_native import FakeKvCache, FakePlayer

from draftproof import LLM, Delta, Grammar, SamplingParams, SpeculativeConfig
from draftproof.config import EngineConfig
from draftproof.errors import ContextLengthError, GrammarError, InvalidRequestError
from draftproof.text import ChatTemplate, Tokenizer, grammar

SHORT = SamplingParams(max_tokens=50, ignore_eos=True)
WINDOW = SpeculativeConfig("window", 4)
PAGES = 200


def byte_alphabet() -> list[str]:
    """Byte -> the character by which a byte-level vocabulary names it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in names)
    names.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [names[byte] for byte in range(256)]


def loaded_model(branching: int = 23) -> Any:
    names = [*byte_alphabet(), "<|im_start|>", "<|im_end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 257,
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    kv = FakeKvCache(PAGES, 4)
    # The embedding table is padded: logits are wider than the vocabulary.
    player = FakePlayer(kv, len(names) + 6, branching=branching, seed=3)
    return SimpleNamespace(
        player=player,
        kv=kv,
        tokenizer=tokenizer,
        chat_template=ChatTemplate.from_gguf(metadata, tokenizer),
        config=SimpleNamespace(rope_sections=()),
        vision=None,
        fingerprint="fp-test",
        weights_bytes=123,
        load_ms=4.5,
        context=400,
        info="the model's info",
    )


@pytest.fixture
def llm() -> LLM:
    return LLM.of(loaded_model(), EngineConfig(threads=1))


def free_pages(llm: LLM) -> int:
    """After the step that runs; pages of the prefix cache are free for everybody."""
    return llm._front.call(lambda: llm._engine.reap() or llm._engine.pool.num_available)


def test_stream_and_generate_say_the_same(llm: LLM) -> None:
    for speculation in (None, WINDOW, SpeculativeConfig("window", 8, "replay")):
        whole = llm.generate("abcabcabcabcabc", SHORT, speculation)
        deltas = list(llm.stream("abcabcabcabcabc", SHORT, speculation))
        assert "".join(delta.text for delta in deltas) == whole.text
        assert [i for delta in deltas for i in delta.token_ids] == list(whole.token_ids)
        assert [delta.completion is not None for delta in deltas].index(True) == len(deltas) - 1
        last = deltas[-1].completion
        assert last is not None
        assert last.token_ids == whole.token_ids
    tokenizer = loaded_model().tokenizer
    assert whole.text == tokenizer.decode(whole.token_ids)
    assert whole.usage.prompt_tokens == 15
    assert whole.usage.completion_tokens == 50
    assert max(whole.token_ids) < 258


def test_speculation_changes_nothing(llm: LLM) -> None:
    for sampling in (
        SHORT,
        SamplingParams(max_tokens=50, temperature=0.1, seed=7, ignore_eos=True),
    ):
        plain = llm.generate("abcabc", sampling, audit=True)
        recording = llm.generate("abcabc", sampling).token_ids
        for verify in ("exact", "replay"):
            config = SpeculativeConfig("oracle", 5, verify, recording, acceptance=0.8)
            other = llm.generate("abcabc", sampling, config, audit=True)
            assert_same(
                outcome_of_completion(plain),
                outcome_of_completion(other),
                drafted=other.speculation["drafted"],
            )
    assert free_pages(llm) == PAGES


def test_the_json_object(llm: LLM) -> None:
    result = llm.generate("abc", SamplingParams(max_tokens=5, seed=9), WINDOW).to_dict()
    assert json.loads(json.dumps(result)) == result
    assert list(result) == [
        "text",
        "token_ids",
        "finish_reason",
        "stop_reason",
        "usage",
        "timings",
        "speculation",
        "engine",
    ]
    assert result["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "cached_tokens": 0,
        "image_tokens": 0,
    }
    assert list(result["timings"]) == [
        "load_ms",
        "prompt_ms",
        "prompt_per_second",
        "predicted_ms",
        "predicted_per_second",
    ]
    assert all(value > 0 for value in result["timings"].values())
    engine = result["engine"]
    assert engine.pop("peak_rss_bytes") > 1 << 20
    assert engine == {
        "isa": "fake",
        "threads": 1,
        "weights_bytes": 123,
        "system_fingerprint": "fp-test",
        "seed": 9,
    }


def test_a_seed_is_drawn_once_and_repeats_the_answer(llm: LLM) -> None:
    free = SamplingParams(max_tokens=40, temperature=1.5)
    first, second = llm.generate("abc", free), llm.generate("abc", free)
    assert first.engine.seed != second.engine.seed
    assert first.token_ids != second.token_ids
    again = SamplingParams(max_tokens=40, temperature=1.5, seed=first.engine.seed)
    assert llm.generate("abc", again, WINDOW).token_ids == first.token_ids


def test_chat_messages_and_ids(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi <|im_end|>"}]
    answers = {
        llm.chat("hi <|im_end|>", SHORT).token_ids,
        llm.chat(messages, SHORT).token_ids,
        llm.generate(messages, SHORT).token_ids,
    }
    assert len(answers) == 1
    ids = llm._model.tokenizer.encode("abc", parse_special=True)
    assert llm.generate(ids, SHORT).token_ids == llm.generate("abc", SHORT).token_ids


def test_stop_strings_and_end_tokens(llm: LLM) -> None:
    free = llm.generate("abc", SamplingParams(max_tokens=50, ignore_eos=True))
    text = "".join(chr(i) for i in free.token_ids if 33 <= i < 127)
    stop = next(c for c in text[8:] if text.index(c) > 4)
    done = llm.generate("abc", SamplingParams(max_tokens=50, stop=(stop,)), WINDOW)
    assert done.finish_reason == "stop"
    assert stop not in done.text
    assert done.token_ids[-1] == ord(stop)
    # A control token has no text of its own, but its name is a valid stop string.
    end = llm._model.tokenizer.control_tokens["<|im_start|>"]
    sampling = SamplingParams(max_tokens=50, stop=("<|im_start|>",))
    request_ids = llm.generate("abc", sampling).token_ids
    assert end not in request_ids[:-1]


def test_closing_a_stream_cancels(llm: LLM) -> None:
    stream = llm.stream("abc", SHORT)
    assert isinstance(next(stream), Delta)
    assert free_pages(llm) < PAGES
    stream.close()  # type: ignore[attr-defined]
    assert free_pages(llm) == PAGES
    assert not llm._engine.has_work
    assert llm.metrics().requests_cancelled == 1
    never_started = llm.stream("abc", SHORT)
    del never_started
    assert not llm._engine.has_work


def test_interleaved_streams(llm: LLM) -> None:
    alone = [llm.generate(prompt, SHORT).token_ids for prompt in ("abc", "xyxyxy")]
    streams = [llm.stream(prompt, SHORT, WINDOW) for prompt in ("abc", "xyxyxy")]
    parts: list[list[int]] = [[], []]
    for deltas in itertools.zip_longest(*streams, fillvalue=Delta("", ())):
        for part, delta in zip(parts, deltas, strict=True):
            part.extend(delta.token_ids)
    assert [tuple(part) for part in parts] == alone


def test_a_generation_inside_a_stream(llm: LLM) -> None:
    """Even when the pool has no room for both, the inner one drives the outer to its end."""
    endless = SamplingParams(ignore_eos=True)
    alone = [llm.generate(prompt, endless).token_ids for prompt in ("abc", "de", "f")]
    streams = [llm.stream(prompt, endless) for prompt in ("abc", "de")]
    got = [list(next(stream).token_ids) for stream in streams]
    assert llm.generate("f", endless).token_ids == alone[2]
    for part, stream in zip(got, streams, strict=True):
        part.extend(i for delta in stream for i in delta.token_ids)
    assert [tuple(part) for part in got] == alone[:2]


def test_threads(llm: LLM) -> None:
    prompts = [f"ab{i}ab{i}" for i in range(6)]
    alone = [llm.generate(prompt, SHORT).token_ids for prompt in prompts]
    results: dict[int, tuple[int, ...]] = {}

    def ask(i: int) -> None:
        results[i] = llm.generate(prompts[i], SHORT, WINDOW).token_ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [results[i] for i in range(len(prompts))] == alone


@pytest.mark.parametrize("prompt", ["", [], [1, "a"], [1.5], [{"role": "user"}, 3]])
def test_bad_prompts(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prompt"):
        llm.stream(prompt, SHORT)


def test_too_long_a_prompt_is_refused_before_the_first_piece(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="400 tokens"):
        llm.stream("a" * 400, SHORT)


def test_closed() -> None:
    with LLM.of(loaded_model(), EngineConfig(threads=1)) as llm:
        assert llm.generate("abc", SHORT).text
    with pytest.raises(InvalidRequestError, match="closed"):
        llm.generate("abc", SHORT)


def test_a_grammar(llm: LLM) -> None:
    """The text keeps to it, with speculation as without; mistakes are raised before anything."""
    pattern = r"[a-c]{3}(-[0-9]{2}){2,4}\.done"
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(
            max_tokens=60, temperature=temperature, seed=1, grammar=Grammar("regex", pattern)
        )
        plain = llm.generate("abc", sampling, SpeculativeConfig("off"), audit=True)
        drafted = llm.generate("abc", sampling, WINDOW, audit=True)
        assert re.fullmatch(pattern, plain.text)
        assert plain.finish_reason == "stop"
        assert_same(
            outcome_of_completion(plain),
            outcome_of_completion(drafted),
            drafted=drafted.speculation["by_source"]["grammar"]["accepted"],
        )
    with pytest.raises(GrammarError, match="unclosed"):
        llm.stream("abc", SamplingParams(grammar=Grammar("regex", "([")))


def test_a_grammar_that_meets_a_limit_on_the_way(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of this request; others don't notice."""
    monkeypatch.setitem(grammar._LIMITS, "max_items_in_row", 40)
    hard = Grammar("lark", "start: x\nx: x x x | /[a-z]/ | ")
    with pytest.raises(GrammarError, match="simpler"):
        llm.generate("abc", SamplingParams(min_tokens=300, temperature=1.0, grammar=hard))
    assert llm.generate("abc", SamplingParams(max_tokens=5, ignore_eos=True)).token_ids


def test_several_choices(llm: LLM) -> None:
    """The first of n is what n = 1 gives; the others differ; each is the same with drafts."""
    one = SamplingParams(max_tokens=30, temperature=1.0, seed=7, ignore_eos=True, logprobs=1)
    several = replace(one, n=3)
    plain = llm.generate("abcabcabc", several, SpeculativeConfig("off"), audit=True)
    first = SpeculativeConfig("oracle", 4, recording=plain.token_ids)  # wrong for the others
    drafted = llm.generate("abcabcabc", several, first, audit=True)
    assert len({choice.text for choice in plain.choices}) == len(plain.choices) == 3
    for a, b in zip(plain.choices, drafted.choices, strict=True):
        assert_same(
            outcome_of_completion(a),
            outcome_of_completion(b),
            drafted=b.speculation["drafted"],
        )
    assert all(choice.speculation["rejected"] > 0 for choice in drafted.choices[1:])
    alone = llm.generate("abcabcabc", one, first, audit=True)
    assert_same(
        outcome_of_completion(plain),
        outcome_of_completion(alone),
        drafted=alone.speculation["drafted"],
    )
    assert alone.choices == (alone,)
    drawn = llm.generate("abc", replace(several, seed=None))
    assert len({choice.engine.seed for choice in drawn.choices}) == 1
    greedy = llm.generate("abc", SamplingParams(max_tokens=9, n=4))
    assert len({choice.token_ids for choice in greedy.choices}) == 1
    assert len(json.loads(json.dumps(drawn.to_dict()))["siblings"]) == 2


def test_choices_are_streamed_side_by_side(llm: LLM) -> None:
    settings = SamplingParams(max_tokens=20, temperature=1.0, seed=7, ignore_eos=True, n=3)
    text = ["", "", ""]
    ended: dict[int, Any] = {}
    for delta in llm.stream("abcabcabc", settings):
        assert delta.index not in ended
        text[delta.index] += delta.text
        if delta.completion is not None:
            ended[delta.index] = delta.completion
    whole = llm.generate("abcabcabc", settings)
    assert text == [choice.text for choice in whole.choices]
    assert [ended[i].token_ids for i in range(3)] == [c.token_ids for c in whole.choices]
    # Closing the stream ends all of them.
    stream = llm.stream("abcabcabc", replace(settings, max_tokens=300))
    next(stream)
    stream.close()
    assert llm.generate("abc", SamplingParams(max_tokens=5, ignore_eos=True)).token_ids
    assert llm.metrics().running == 0


def test_the_prompt_of_several_choices_is_computed_once() -> None:
    prompt = [97 + i % 26 for i in range(101)]
    with LLM.of(loaded_model(), EngineConfig(ctx=400)) as llm:
        settings = SamplingParams(max_tokens=5, temperature=1.0, n=4, ignore_eos=True)
        choices = llm.generate(prompt, settings).choices
    cached = sorted(choice.usage.cached_tokens for choice in choices)
    assert cached[0] == 0
    assert min(cached[1:]) >= 96  # whole pages of four
