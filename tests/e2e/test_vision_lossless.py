"""With images as without: speculation, batches, chunks, caches, threads and instruction sets change
no bit; different images share nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tiny_vision as tv
from draftproof import LLM, SamplingParams, SpeculativeConfig
from draftproof.outputs import Completion

SPEC = tv.TinyVision()
OFF = SpeculativeConfig(drafter="off")
TOKENS = 40
LIMITS: dict[str, Any] = {"image_min_tokens": 4, "image_max_tokens": 40}


def image(seed: int, width: int = 60, height: int = 40) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def asks(*parts: Any) -> list[dict[str, Any]]:
    """One message of the user: strings are text, everything else an image."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


NUMBERS = " ".join(map(str, range(50)))  # behind them the random model repeats some of it
PROMPTS: dict[str, Any] = {
    "one": asks("what is ", image(1), "? ", NUMBERS),
    "two": asks(image(2, 80, 24), " and ", image(3, 30, 90), " ", NUMBERS),
    "text": [{"role": "user", "content": NUMBERS}],
}
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=TOKENS, ignore_eos=True),
    "seeded": SamplingParams(
        max_tokens=TOKENS, ignore_eos=True, temperature=0.8, top_p=0.95, seed=6
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    weights = tv.state(tv.hf_model(SPEC))
    return tv.write(tmp_path_factory.mktemp("vision"), SPEC, weights)


Files = tuple[Path, Path]


def load(files: Files, **settings: Any) -> LLM:
    options: dict[str, Any] = {"threads": 1, "ctx": 512, **LIMITS, **settings}
    return LLM(files[0], mmproj=files[1], **options)


@pytest.fixture(scope="module")
def llm(files: Files) -> Iterator[LLM]:
    with load(files, prefix_cache=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(llm: LLM) -> dict[tuple[str, str], Completion]:
    """Every prompt alone, without speculation: what all others must equal."""
    return {
        (prompt, sampling): llm.chat(PROMPTS[prompt], SAMPLINGS[sampling], OFF, audit=True)
        for prompt in PROMPTS
        for sampling in SAMPLINGS
    }


Plain = dict[tuple[str, str], Completion]


def assert_same(got: Completion, expected: Completion) -> None:
    assert got.token_ids == expected.token_ids
    assert got.text == expected.text
    assert got.audit is not None
    assert expected.audit is not None
    assert got.audit.logits_sha256 == expected.audit.logits_sha256
    assert got.audit.kv_sha256 == expected.audit.kv_sha256


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_speculation_changes_nothing(
    files: Files, plain: Plain, isa: str, prompt: str, sampling: str
) -> None:
    expected = plain[prompt, sampling]
    oracle = SpeculativeConfig("oracle", 6, recording=expected.token_ids, acceptance=0.8)
    configs = {
        "suffix": SpeculativeConfig("suffix", 4),
        "window": SpeculativeConfig("window", 3),
        "auto": SpeculativeConfig(),
        "oracle": oracle,
        "replay": replace(oracle, verify="replay"),
    }
    with load(files, isa=isa, threads=2, prefill_chunk=7, prefix_cache=False) as llm:
        for name, config in configs.items():
            got = llm.chat(PROMPTS[prompt], SAMPLINGS[sampling], config, audit=True)
            assert_same(got, expected)
            assert got.engine.isa == isa
            if name != "auto":  # its controller goes by the clock
                assert got.speculation["rejected"] > 0, name


def test_images_matter(plain: Plain, llm: LLM) -> None:
    """Another image, another place, another order: another answer. Otherwise all of the above would
    hold for a model that is blind."""
    sampling = SAMPLINGS["greedy"]
    expected = plain["two", "greedy"].audit
    assert expected is not None
    for other in (
        asks(image(2, 80, 24), " and ", image(4, 30, 90), " ", NUMBERS),
        asks(image(3, 30, 90), " and ", image(2, 80, 24), " ", NUMBERS),
        asks(" and ", image(2, 80, 24), image(3, 30, 90), " ", NUMBERS),
    ):
        got = llm.chat(other, sampling, OFF, audit=True)
        assert got.usage.prompt_tokens == plain["two", "greedy"].usage.prompt_tokens
        assert got.audit is not None
        assert got.audit.logits_sha256 != expected.logits_sha256


@pytest.mark.parametrize("chunk", [1, 5, 64, 256])
def test_chunks_that_cut_an_image(files: Files, plain: Plain, chunk: int) -> None:
    with load(files, prefill_chunk=chunk, threads=2) as llm:
        for prompt, messages in PROMPTS.items():
            got = llm.chat(messages, SAMPLINGS["greedy"], audit=True)
            assert_same(got, plain[prompt, "greedy"])


def test_batched_with_others(files: Files, plain: Plain) -> None:
    """Images and text in the same steps, all prompts twice, speculation on."""
    results: dict[tuple[int, str], Completion] = {}
    with load(files, threads=2, prefill_chunk=32, prefix_cache=False) as llm:
        barrier = threading.Barrier(2 * len(PROMPTS))

        def ask(n: int, prompt: str) -> None:
            barrier.wait()
            way = SpeculativeConfig("suffix", 4)
            results[n, prompt] = llm.chat(PROMPTS[prompt], SAMPLINGS["seeded"], way, audit=True)

        jobs = [threading.Thread(target=ask, args=(n, p)) for n in (0, 1) for p in PROMPTS]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert len(results) == 2 * len(PROMPTS)
    for (_, prompt), got in results.items():
        assert_same(got, plain[prompt, "seeded"])
        assert got.speculation["drafted"] > 0
        assert got.speculation["shared_forwards"] > 0


def test_a_cached_prefix_with_images(files: Files, plain: Plain) -> None:
    """The second time the KV is there already: the same bits. Another image of the same size finds
    nothing behind where it begins."""
    long = "the red and the blue and " * 12
    with load(files, ctx=1024) as llm, load(files, ctx=1024, prefix_cache=False) as without:
        sampling = SAMPLINGS["greedy"]
        one = asks(long, image(1), long)
        first = llm.chat(one, sampling, audit=True)
        again = llm.chat(one, sampling, audit=True)
        assert first.usage.cached_tokens == 0
        assert again.usage.cached_tokens > again.usage.prompt_tokens - 80
        assert_same(again, first)
        assert_same(first, without.chat(one, sampling, audit=True))

        ids = llm.encode_chat(one)
        begins = ids.index(SPEC.id("<|image_pad|>"))
        other = asks(long, image(9), long)
        assert llm.encode_chat(other) == ids
        got = llm.chat(other, sampling, audit=True)
        assert 0 < got.usage.cached_tokens <= begins
        assert_same(got, without.chat(other, sampling, audit=True))
        assert got.audit is not None
        assert first.audit is not None
        assert got.audit.logits_sha256 != first.audit.logits_sha256


def test_features_are_computed_once(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.models.vision_tower import VisionTower

    calls: list[tuple[int, int]] = []
    encode = VisionTower.encode

    def counted(self: VisionTower, vectors: Any, rows: int, columns: int, *more: Any) -> Any:
        calls.append((rows, columns))
        return encode(self, vectors, rows, columns, *more)

    monkeypatch.setattr(VisionTower, "encode", counted)
    with load(files) as llm:
        first = llm.chat(PROMPTS["one"], SAMPLINGS["greedy"], audit=True)
        again = llm.chat(PROMPTS["one"], SAMPLINGS["greedy"], audit=True)
        assert_same(again, first)
        assert len(calls) == 1
        llm.chat(asks(image(1), image(1), image(7)), SAMPLINGS["greedy"])
        assert len(calls) == 2  # only the last is new


def test_placeholders_are_never_drafted(files: Files) -> None:
    """A conversation full of images gives drafters its text only."""
    pad = SPEC.id("<|image_pad|>")
    messages = asks("a ", image(1), " b ", image(1), " a ", image(1), " b ")
    with load(files) as llm:
        start, propose = [], []
        from draftproof.drafting import Controller

        begin, ask = Controller.start, Controller.propose

        def started(self: Controller, prompt: Any) -> None:
            start.append(list(prompt))
            begin(self, prompt)

        def proposed(self: Controller, history: Any, *rest: Any) -> Any:
            draft = ask(self, history, *rest)
            propose.append((list(history), draft.tokens))
            return draft

        Controller.start, Controller.propose = started, proposed  # type: ignore[method-assign]
        try:
            got = llm.chat(messages, SAMPLINGS["greedy"], SpeculativeConfig(drafter="suffix", k=4))
        finally:
            Controller.start, Controller.propose = begin, ask  # type: ignore[method-assign]
        ids = llm.encode_chat(messages)
    assert ids.count(pad) == got.usage.image_tokens > 20
    assert start == [[id_ for id_ in ids if id_ != pad]]
    own = [id_ for id_ in got.token_ids if id_ == pad]
    for history, tokens in propose:
        assert history.count(pad) <= len(own)
        assert pad not in tokens or own
    assert propose[-1][0][: len(start[0])] == start[0]
    assert any(tokens for _, tokens in propose)


def test_usage_and_fingerprint(files: Files, plain: Plain) -> None:
    usage = plain["two", "greedy"].usage
    assert usage.image_tokens == sum(
        id_ == SPEC.id("<|image_pad|>") for id_ in _ids(files, PROMPTS["two"])
    )
    assert plain["text", "greedy"].usage.image_tokens == 0
    prints = set()
    for settings in ({}, {"image_max_tokens": 16}):
        with load(files, **settings) as llm:
            prints.add(llm.info.fingerprint)
    with LLM(files[0], threads=1) as llm:
        prints.add(llm.info.fingerprint)
    assert len(prints) == 3


def _ids(files: Files, messages: Any) -> list[int]:
    with load(files) as llm:
        return llm.encode_chat(messages)


def test_frames_of_a_video(llm: LLM) -> None:
    """Every pair of frames behind its time; speculation changes nothing."""
    frames = [image(n, 40, 24) for n in range(5)]
    part = {"type": "video", "video": frames, "fps": 2}
    content: list[Any] = [{"type": "text", "text": "see "}, part]
    messages = [{"role": "user", "content": content}]
    text = llm.render(messages)
    shown = "<|vision_start|><|video_pad|><|vision_end|>"
    assert f"see <0.2 seconds>{shown}<1.2 seconds>{shown}<2.0 seconds>{shown}" in text
    greedy = SAMPLINGS["greedy"]
    plain = llm.chat(messages, greedy, OFF, audit=True)
    oracle = SpeculativeConfig("oracle", 6, recording=plain.token_ids, acceptance=0.8)
    drafted = llm.chat(messages, greedy, oracle, audit=True)
    assert_same(drafted, plain)
    assert drafted.speculation["rejected"] > 0
    content[1] = {**part, "video": frames[:1] * 5}
    still = llm.chat(messages, greedy, OFF, audit=True)
    assert still.audit is not None
    assert plain.audit is not None
    assert still.audit.logits_sha256 != plain.audit.logits_sha256
