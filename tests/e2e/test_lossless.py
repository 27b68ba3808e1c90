"""The claim: speculation, batch, threads, prefill chunks and instruction set change no bit.

Token ids, text, the logits behind every token and the keys and values at the end are compared with
plain decoding on one thread with the whole prompt in one step. A run counts only if it drafted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import OFF, Bench, Run, assert_same

from dispatch_rows import isa_rows
from draftproof import LLM
from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.request import SamplingParams
from pairwise import Axes, Cell, pairwise, uncovered, whole
from tiny_models import TinyModels

ISAS = tuple(isa_rows())
FASTEST = ISAS[-1]
WHOLE = 256

PROMPTS = {
    "one word": " a" * 48,
    "list": "- fig\n- pear\n- plum\n" * 3 + "Once more:\n- fig\n- pear\n",
    "refrain": "春が来た、どこに来た。" * 3 + "春が来た、",
    "emoji": "🧑‍🚀🏳️‍🌈 and 👩‍👩‍👧‍👦, then 🧑‍🚀🏳️‍🌈 and 👩‍👩‍👧‍👦, then 🧑‍🚀",
    "prose": "The harbour lay quiet under a thin fog, and nobody on the pier spoke above a",
}
GREEDY = SamplingParams(max_tokens=28, ignore_eos=True)
SAMPLINGS = {
    "greedy": GREEDY,
    "top_k": replace(GREEDY, temperature=0.8, top_k=20, seed=11),
    "top_p": replace(GREEDY, temperature=0.8, top_p=0.9, min_p=0.02, seed=2**63 + 5),
    "whole": replace(GREEDY, temperature=0.8, seed=3),
}
SPECULATIONS: dict[str, dict[str, Any]] = {
    "off": {"drafter": "off"},
    **{f"window {k}": {"drafter": "window", "k": k} for k in (1, 2, 3, 4, 8, 16)},
    "auto": {"drafter": "auto", "k": 8},
    "auto replay": {"drafter": "auto", "k": 8, "verify": "replay"},
    "suffix": {"drafter": "suffix", "k": 16},
    "window replay": {"drafter": "window", "k": 4, "verify": "replay"},
    **{
        f"oracle {a}": {"drafter": "oracle", "k": k, "acceptance": a}
        for a, k in ((0.0, 3), (0.3, 2), (0.7, 5), (0.9, 8), (1.0, 16))
    },
    "oracle replay": {"drafter": "oracle", "k": 6, "acceptance": 0.7, "verify": "replay"},
}
FOUND = "found"  # Model._found
AXES = {
    "speculation": tuple(SPECULATIONS),
    "prompt": (*PROMPTS, FOUND),
    "sampling": tuple(SAMPLINGS),
    "isa": ISAS,
    "threads": (1, 2),
    "chunk": (1, 7, 64, WHOLE),
}
TINY = [
    (name + wide, type_)
    for name in ("llama", "qwen2", "qwen3", "qwen3moe")
    for wide, type_ in (("", "F32"), ("", "Q8_0"), ("-wide", "Q4_K_M"))
]
MODELS = pytest.mark.parametrize(("name", "type_name"), TINY, ids=[f"{n}-{t}" for n, t in TINY])
Load = Callable[..., Any]


class Model:
    """One model file in every setting, and its plain runs."""

    def __init__(self, path: Path, load: Load, **fields: Any) -> None:
        self._path, self._load, self._fields = path, load, fields
        self._plain: dict[tuple[str, SamplingParams], Run] = {}
        self._prompts: dict[SamplingParams, list[int]] = {}

    def bench(self, isa: str = FASTEST, threads: int = 1, chunk: int = WHOLE) -> Bench:
        fields = {"isa": isa, "threads": threads, "ctx": 1024, **self._fields}
        bench = Bench(self._load(self._path, **fields), EngineConfig(**fields), chunk=chunk)
        assert bench.loaded.player.isa == isa
        assert bench.loaded.player.threads == threads
        return bench

    def prompt(self, name: str, sampling: SamplingParams = GREEDY) -> list[int]:
        if name == FOUND:
            return self._found(sampling)
        return self.bench().encode(PROMPTS[name])

    def _found(self, sampling: SamplingParams) -> list[int]:
        """A prompt after which the window must draft: it has "a b t" for many t, ends with "a b",
        and the model's first token is one of those t. (A random model seldom repeats by itself.)"""
        if sampling not in self._prompts:
            draws, bench = random.Random(5), self.bench()
            first = -1
            shown: list[int] = []
            while first not in shown[:-1]:  # the last one is too near the end
                a, b, *shown = draws.sample(range(10, 250), 30)
                prompt = [token for t in shown for token in (a, b, t)] + [a, b]
                (first,) = bench.run(prompt, replace(sampling, max_tokens=1)).outcome.token_ids
            self._prompts[sampling] = prompt
        return self._prompts[sampling]

    def plain(self, prompt: str, sampling: SamplingParams = GREEDY) -> Run:
        """The reference: plain decoding, alone, one thread, whole prompt."""
        if (prompt, sampling) not in self._plain:
            ids = self.prompt(prompt, sampling)
            self._plain[prompt, sampling] = self.bench().run(ids, sampling)
        return self._plain[prompt, sampling]

    def speculation(self, name: str, plain: Run) -> SpeculativeConfig:
        settings = dict(SPECULATIONS[name])
        if settings.get("drafter") == "oracle":
            settings["recording"] = plain.outcome.token_ids
        return SpeculativeConfig(**settings)

    def compare(self, cell: Cell) -> Run:
        sampling = SAMPLINGS[cell["sampling"]]
        plain = self.plain(cell["prompt"], sampling)
        bench = self.bench(cell["isa"], cell["threads"], cell["chunk"])
        config = self.speculation(cell["speculation"], plain)
        run = bench.run(self.prompt(cell["prompt"], sampling), sampling, config)
        assert_same(run, plain, cell)
        return run


def compare_all(model: Model, axes: Axes, cells: list[Cell]) -> None:
    """Every cell, and that the comparisons were not empty."""
    assert not uncovered(axes, cells)
    counts: Counter[str] = Counter()  # runs that drafted
    accepted: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for cell in cells:
        run = model.compare(cell)
        counts[cell["speculation"]] += run.stats.drafted > 0
        accepted[cell["speculation"]] += run.stats.accepted
        rejected[cell["speculation"]] += run.stats.rejected
        if cell["speculation"].startswith("oracle") or cell["prompt"] == FOUND:
            assert run.stats.drafted > 0 or cell["speculation"] == "off", cell
    assert counts["off"] == 0
    assert all(counts[name] > 0 for name in SPECULATIONS if name != "off"), counts
    assert accepted["oracle 0.0"] == 0
    assert rejected["oracle 1.0"] == 0
    assert all(rejected[f"oracle {a}"] > 0 for a in (0.0, 0.3, 0.7, 0.9)), rejected
    assert all(accepted[f"oracle {a}"] > 0 for a in (0.3, 0.7, 0.9, 1.0)), accepted


@pytest.fixture(scope="module")
def models(tiny: TinyModels, load: Load) -> Callable[[str, str], Model]:
    made: dict[tuple[str, str], Model] = {}

    def get(name: str, type_name: str) -> Model:
        if (name, type_name) not in made:
            made[name, type_name] = Model(tiny.path(name, type_name), load)
        return made[name, type_name]

    return get


@MODELS
def test_tiny_models(
    models: Callable[[str, str], Model], name: str, type_name: str, exhaustive: bool
) -> None:
    cells = whole(AXES) if exhaustive else pairwise(AXES, 70, seed=TINY.index((name, type_name)))
    compare_all(models(name, type_name), AXES, cells)


@pytest.mark.model("smollm2-135m")
def test_smollm2(smollm2: Path, load: Load, exhaustive: bool) -> None:
    """A real model on real text; the scalar row is for the tiny ones."""
    axes = {**AXES, "prompt": tuple(PROMPTS)}
    axes |= {"isa": tuple(isa for isa in ISAS if isa != "scalar") or ISAS}
    cells = whole(axes) if exhaustive else pairwise(axes, 70, seed=99)
    compare_all(Model(smollm2, load), axes, cells)


@MODELS
@pytest.mark.parametrize("verify", ["exact", "replay"])
def test_a_rejection_at_every_position(
    models: Callable[[str, str], Model], name: str, type_name: str, verify: str
) -> None:
    """One wrong token at each place of the draft: the cache is as if nothing had been drafted."""
    model = models(name, type_name)
    plain = model.plain("list")
    k = 16
    for place in range(k):
        config = SpeculativeConfig(
            "oracle", k, verify, recording=plain.outcome.token_ids, wrong_in_draft=(place,)
        )
        run = model.bench(threads=2).run(model.prompt("list"), GREEDY, config)
        assert_same(run, plain, place)
        assert run.stats.rejected_per_position[place] > 0
        assert sum(run.stats.rejected_per_position) == run.stats.rejected_per_position[place]
    everything = SpeculativeConfig("oracle", k, verify, recording=plain.outcome.token_ids)
    run = model.bench(threads=2).run(model.prompt("list"), GREEDY, everything)
    assert_same(run, plain)
    assert run.stats.accepted_per_position[k - 1] > 0  # a draft accepted whole


def test_every_row_counts_the_kernels_it_ran(tiny: TinyModels, load: Load, isa: str) -> None:
    """A verify step of four rows runs the tile of four, on the row that was asked for."""
    model = Model(tiny.path("qwen2-wide", "Q4_K_M"), load)
    plain = model.plain("list")
    bench = model.bench(isa)
    before = bench.loaded.player.counters()
    config = SpeculativeConfig("oracle", 3, recording=plain.outcome.token_ids)
    assert_same(bench.run(model.prompt("list"), GREEDY, config), plain)
    after = bench.loaded.player.counters()
    for kernel in ("linear.q4_k.m4", "linear.q6_k.m4", "linear.q4_k.m8", "attention", "rope"):
        assert after[kernel] > before.get(kernel, 0), kernel


@MODELS
@pytest.mark.parametrize("later", [0, 3])
def test_sequences_in_one_batch(
    models: Callable[[str, str], Model], name: str, type_name: str, later: int
) -> None:
    """Requests that start together or in the middle of one another, each as it is alone."""
    model = models(name, type_name)
    mix = [
        (FOUND, "greedy", "window 4"),
        ("one word", "top_k", "off"),
        ("list", "top_p", "oracle 0.7"),
        ("refrain", "greedy", "oracle replay"),
        ("prose", "greedy", "oracle 1.0"),
    ]
    plain = [model.plain(prompt, SAMPLINGS[sampling]) for prompt, sampling, _ in mix]
    wanted = [
        (
            model.prompt(prompt, SAMPLINGS[sampling]),
            SAMPLINGS[sampling],
            model.speculation(spec, run),
        )
        for (prompt, sampling, spec), run in zip(mix, plain, strict=True)
    ]
    for threads, chunk in ((1, 7), (2, WHOLE)):
        runs = model.bench(threads=threads, chunk=chunk).run_together(wanted, later=later)
        for run, alone, what in zip(runs, plain, mix, strict=True):
            assert_same(run, alone, what)
        assert [run.stats.drafted > 0 for run in runs] == [True, False, True, True, True]
        assert all(run.stats.shared_forwards > 0 for run in runs)
        assert sum(run.stats.rejected for run in runs) > 0


@MODELS
def test_an_end_token_inside_a_draft(
    models: Callable[[str, str], Model], name: str, type_name: str
) -> None:
    """A token that plain decoding produces is declared to be the end: all stop at that place."""
    model = models(name, type_name)
    sampling = replace(SAMPLINGS["whole"], ignore_eos=False)  # few repeated tokens
    free = model.plain("prose", SAMPLINGS["whole"]).outcome.token_ids
    bench, prompt = model.bench(), model.prompt("prose")
    discarded = 0
    for at in (1, 2, 5, 8, 13, 26):
        end = free[at]
        plain = bench.run(prompt, sampling, eos_ids=[end])
        assert plain.outcome.token_ids == free[: free.index(end) + 1]
        assert plain.outcome.finish_reason == "stop"
        for k in (1, 4, 16):
            for verify in ("exact", "replay"):
                config = SpeculativeConfig("oracle", k, verify, recording=free)
                run = bench.run(prompt, sampling, config, eos_ids=[end])
                assert_same(run, plain, (at, k, verify))
                discarded += run.stats.discarded
        stop = replace(SAMPLINGS["whole"], stop_token_ids=(end,))
        config = SpeculativeConfig("oracle", 4, recording=free)
        # A token of the request's own is named; one of the model's isn't.
        assert bench.run(prompt, stop, config).outcome == replace(plain.outcome, stop_reason=end)
    assert discarded > 0


@MODELS
def test_limits_inside_a_draft(
    models: Callable[[str, str], Model], name: str, type_name: str
) -> None:
    model = models(name, type_name)
    free = model.plain("prose").outcome.token_ids
    bench, prompt = model.bench(), model.prompt("prose")
    discarded = 0
    for limit in (1, 2, 3, 6, 9, 27):
        sampling = replace(GREEDY, max_tokens=limit)
        plain = bench.run(prompt, sampling)
        assert plain.outcome.token_ids == free[:limit]
        for k in (1, 4, 16):
            config = SpeculativeConfig("oracle", k, recording=free)
            run = bench.run(prompt, sampling, config)
            assert_same(run, plain, (limit, k))
            discarded += run.stats.discarded
    assert discarded > 0


@pytest.mark.parametrize(("name", "type_name"), [("llama", "Q8_0"), ("qwen3-wide", "Q4_K_M")])
@pytest.mark.parametrize("verify", ["exact", "replay"])
@pytest.mark.parametrize("room", [1, 2, 5, 17, 64])
def test_the_context_end(
    tiny: TinyModels, load: Load, name: str, type_name: str, verify: str, room: int
) -> None:
    """The draft is clipped, nothing is written past the end, the answer is the same."""
    model = Model(tiny.path(name, type_name), load)
    prompt = model.prompt("list")
    free = model.bench().run(prompt, replace(GREEDY, max_tokens=100)).outcome.token_ids
    small = Model(tiny.path(name, type_name), load, ctx=len(prompt) + room)
    endless = replace(GREEDY, max_tokens=None)
    plain = small.bench().run(prompt, endless)
    assert plain.outcome.finish_reason == "length"
    assert plain.outcome.token_ids == free[:room]
    for k in (1, 4, 16, 63):
        config = SpeculativeConfig("oracle", k, verify, recording=free)
        run = small.bench(threads=2).run(prompt, endless, config)
        assert_same(run, plain, k)
        assert run.stats.drafted > 0 or room <= 2


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "q8_0"])
def test_other_kv_types(tiny: TinyModels, load: Load, kv_type: str, isa: str) -> None:
    """Each has bits of its own, and keeps them."""
    model = Model(tiny.path("qwen2", "Q8_0"), load, kv_type=kv_type)
    plain = model.plain("list")
    assert plain.outcome.kv != Model(tiny.path("qwen2", "Q8_0"), load).plain("list").outcome.kv
    config = SpeculativeConfig(
        "oracle", 5, recording=plain.outcome.token_ids, acceptance=0.7, oracle_seed=2
    )
    for chunk in (7, WHOLE):
        run = model.bench(isa, 2, chunk).run(model.prompt("list"), GREEDY, config)
        assert_same(run, plain)
        assert run.stats.drafted > 0
        assert run.stats.rejected > 0


def test_beyond_one_span(tiny: TinyModels, load: Load) -> None:
    """A prompt of more than 512 positions: spans are combined, and shared out over threads."""
    model = Model(tiny.path("qwen2-wide", "Q4_K_M"), load)
    prompt = (model.prompt("list") * 10)[:530]
    sampling = replace(GREEDY, max_tokens=20)
    plain = model.bench().run(prompt, sampling)
    for isa in ISAS:
        if isa == "scalar":
            continue
        for threads, chunk in ((1, 64), (2, 7), (4, WHOLE)):
            for k in (1, 8):
                config = SpeculativeConfig(
                    "oracle", k, recording=plain.outcome.token_ids, acceptance=0.7
                )
                run = model.bench(isa, threads, chunk).run(prompt, sampling, config)
                assert_same(run, plain, (isa, threads, chunk, k))
                assert run.stats.drafted > 0


def test_the_front_door(tiny: TinyModels) -> None:
    """The same through LLM.generate(audit=True), which people use to check the claim."""
    path = tiny.path("qwen3", "Q8_0")
    with LLM(path, threads=1, ctx=512, isa=FASTEST) as llm:
        plain = llm.generate(PROMPTS["list"], GREEDY, OFF, audit=True)
        config = SpeculativeConfig("oracle", 4, recording=plain.token_ids, acceptance=0.7)
        run = llm.generate(PROMPTS["list"], GREEDY, config, audit=True)
    assert run.speculation["drafted"] > 0
    assert plain.audit is not None
    assert run.audit == plain.audit
    assert (run.text, run.token_ids) == (plain.text, plain.token_ids)
    assert OFF.drafter == "off"
