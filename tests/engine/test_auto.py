"""`auto` and the controller under the engine: same output, V(m) learned, requests remembered."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from engine_support import VOCAB, World, assert_same, outcome_of
from fake_native import NullPlayer
from test_llm import loaded_model

from draftproof.config import DRAFTERS, EngineConfig, SpeculativeConfig
from draftproof.drafting import DraftMemory, TokenText, VerifyCost
from draftproof.errors import InvalidRequestError
from draftproof.llm import LLM
from draftproof.request import Request, SamplingParams

PROMPT = [3, 7, 1, 9, 3, 7, 1, 9, 3, 7, 1, 4, 2]
GREEDY = SamplingParams(max_tokens=100)
SEEDED = SamplingParams(max_tokens=100, temperature=0.15, top_k=8, seed=11)
TEXT = TokenText(lambda token: bytes([97 + token]), lambda text: [ord(c) - 97 for c in text])


class Unmoved(VerifyCost):
    """The fake player's time grows with the rows: what it teaches is not to draft."""

    def observe(self, m: int, context: int, seconds: float) -> None:
        pass


def world_of(seed: int = 0, branching: int = 0) -> World:
    world = World(branching=branching, model_seed=seed, context=256, num_pages=128)
    world.engine.memory = DraftMemory(TEXT, verify_cost=Unmoved())
    return world


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("verify", ["exact", "replay"])
@pytest.mark.parametrize("drafter", ["auto", "suffix", "template", "resync", "window"])
@pytest.mark.parametrize("k", [None, 1, 8, 63])
def test_output_is_that_of_plain_decoding(
    drafter: str, verify: str, k: int | None, sampling: SamplingParams
) -> None:
    drafted = 0
    for seed in range(3):
        world = world_of(seed, branching=29 if seed else 0)
        plain = outcome_of(world.run(PROMPT, sampling))
        for _ in range(2):  # the second time there is a request to draft from
            request = world.run(PROMPT, sampling, SpeculativeConfig(drafter, k, verify))
            drafted += request.stats.drafted
            assert outcome_of(request) == plain
    assert drafted > 0


def test_a_mix_that_shares_its_steps() -> None:
    """Drafts share the rows that are left: nobody takes all of them."""
    world = world_of()
    alone = [outcome_of(world.run([*PROMPT, i], GREEDY)) for i in range(6)]
    specs = [SpeculativeConfig(), SpeculativeConfig("suffix", 8), SpeculativeConfig("off")] * 2
    requests = [world.request([*PROMPT, i], GREEDY, spec) for i, spec in enumerate(specs)]
    world.run_all(requests)
    assert [outcome_of(request) for request in requests] == alone
    assert all(r.stats.drafted > 0 for r in requests if r.stats.drafter != "off")


def test_nothing_to_draft_is_counted_by_reason() -> None:
    stats = world_of().run(PROMPT, GREEDY, SpeculativeConfig("auto", 0)).stats
    assert stats.plain_steps["disabled"] == 99
    assert stats.drafted == 0


def test_every_step_teaches_what_it_cost() -> None:
    world = World(branching=0)
    cost = world.engine.memory.verify_cost
    assert cost.plain_seconds() == 0.0
    world.run(PROMPT, GREEDY)
    assert cost.plain_seconds() > 0.0
    before = cost.table()
    world.run(PROMPT, GREEDY, SpeculativeConfig("suffix", 8))
    assert cost.table() != before


def test_finished_requests_are_drafted_from_per_scope() -> None:
    def accepted(world: World, config: SpeculativeConfig) -> int:
        request = world.run(PROMPT, GREEDY, config)
        return request.stats.by_source.get("store", {"accepted": 0})["accepted"]

    world = world_of(seed=1, branching=3)
    assert accepted(world, SpeculativeConfig("auto", 16, scope="a")) == 0
    assert accepted(world, SpeculativeConfig("auto", 16, scope="b")) == 0
    assert accepted(world, SpeculativeConfig("auto", 16, scope="a")) > 20
    assert accepted(world, SpeculativeConfig("auto", 16, scope="a", remember=False)) == 0


def test_a_reference_is_drafted_from() -> None:
    world = world_of(seed=1, branching=3)
    plain = world.run(PROMPT, GREEDY)
    config = SpeculativeConfig("suffix", 16, reference=tuple(plain.tokens), remember=False)
    request = world.run(PROMPT, GREEDY, config)
    assert_same(outcome_of(plain), outcome_of(request), drafted=request.stats.drafted)
    assert request.stats.by_source["reference"]["accepted"] > 20


def test_template_needs_to_know_what_tokens_say() -> None:
    world = World()
    with pytest.raises(InvalidRequestError, match="tokenizer"):
        world.engine.add(world.request(PROMPT, GREEDY, SpeculativeConfig("template")))
    assert world.run(PROMPT, GREEDY, SpeculativeConfig()).finish_reason == "length"


def test_cancelled_requests_are_not_remembered() -> None:
    world = world_of()
    request = world.request(PROMPT, GREEDY, SpeculativeConfig())
    world.engine.add(request)
    world.engine.step()
    world.engine.abort(request)
    world.engine.reap()
    assert world.engine.memory.store.requests == 0


# --- the front door ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    return tmp_path


def test_the_cost_is_measured_once_and_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long this fake's steps take now: the earlier measurement holds.
    monkeypatch.setattr("draftproof.drafting.verify_cost.STALE_BEYOND", 1e9)
    with LLM.of(loaded_model(), EngineConfig(threads=1)) as llm:
        plain = llm.generate("abcabcabcabc", GREEDY, SpeculativeConfig("off"))
        assert not list(folder.rglob("*.json"))  # nobody has asked for it
        auto = llm.generate("abcabcabcabc", GREEDY)
        assert auto.token_ids == plain.token_ids
        assert auto.speculation["drafter"] == "auto"
        (file,) = folder.rglob("*.json")
        first = file.read_text()
        measurement = llm.verify_cost.measurement
    with LLM.of(loaded_model(), EngineConfig(threads=1)) as llm:
        assert llm.verify_cost.measurement == measurement
    file.write_text("not ours")
    with LLM.of(loaded_model(), EngineConfig(threads=1)) as llm:
        assert llm.verify_cost.measurement is not None
    assert file.read_text() not in (first, "not ours")


def test_an_unwritable_folder_is_said_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "verify_cost").write_text("a file where a folder should be")
    with LLM.of(loaded_model(), EngineConfig(threads=1)) as llm:
        for _ in range(3):
            assert llm.generate("abcabcabcabc", GREEDY).text
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reference_may_be_text(folder: Path) -> None:
    with LLM.of(loaded_model(branching=2), EngineConfig(threads=1)) as llm:
        plain = llm.generate("abc", GREEDY, SpeculativeConfig("off"))
        reference = tuple(llm._model.tokenizer.encode("abc", False)) + plain.token_ids
        text = SpeculativeConfig("suffix", 8, reference="abcabc")
        ids = SpeculativeConfig("suffix", 8, reference=reference)
        assert llm.generate("abc", GREEDY, text).token_ids == plain.token_ids
        run = llm.generate("abc", GREEDY, ids)
        assert run.token_ids == plain.token_ids
        assert run.speculation["by_source"]["reference"]["accepted"] > 0


def test_every_name_has_a_drafter(folder: Path) -> None:
    with LLM.of(loaded_model(), EngineConfig(threads=1)) as llm:
        for name in DRAFTERS:
            recording = (1, 2) if name == "oracle" else None
            config = SpeculativeConfig(name, recording=recording)
            assert llm.generate("abcabc", GREEDY, config).speculation["drafter"] == name


def test_the_price_of_auto_on_a_plain_step() -> None:
    """Less than 0.2 ms, on text in which something matches all the time and is always wrong."""
    world = world_of()
    null = NullPlayer()
    world.engine._runner._player = null  # type: ignore[assignment]
    null._targets[:] = range(1, 257)
    prompt = [(7 * i * i + i) % VOCAB for i in range(150)]

    def per_step(config: SpeculativeConfig) -> float:
        best = 1.0
        for _ in range(3):
            request = Request(prompt, SamplingParams(max_tokens=100), config)
            world.engine.add(request)
            start = time.thread_time()
            steps = 0
            while world.engine.has_work:
                world.engine.step()
                steps += 1
            best = min(best, (time.thread_time() - start) / steps)
        return best

    off = per_step(SpeculativeConfig("off"))
    world.engine.memory.verify_cost._buckets[0].plain = 0.05
    assert per_step(SpeculativeConfig(remember=False)) - off < 200e-6
