"""A tiny random Qwen3-VL against transformers: the tower's features, positions, logits and greedy
answers, from GGUF and mmproj files of the same weights.

Float weights and a float32 KV cache leave only rounding between the two: see test_tiny_parity.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tiny_vision as tv
from draftproof import LLM, SamplingParams
from draftproof.config import EngineConfig
from draftproof.models import load_model
from draftproof.vision.prompt import Placed, VisionPrompt, expand, lay_out

BOUND = 1e-3
SPEC = tv.TinyVision()
EXPERTS = tv.TinyVision(name="qwen3vlmoe", experts=6, experts_used=2, expert_ffn=32)
UNTIED = tv.TinyVision(name="untied", tied=False, deepstack=(1,), sections=(4, 4, 0), side=5)


class Pair:
    """One model twice."""

    def __init__(self, folder: Path, spec: tv.TinyVision) -> None:
        self.spec = spec
        self.reference = tv.hf_model(spec)
        text, mmproj = tv.write(folder, spec, tv.state(self.reference))
        config = EngineConfig(threads=1, kv_type="f32", ctx=1024)
        self.loaded = load_model(text, config, mmproj=mmproj)
        self.config = config

    def features(self, grids: Sequence[tuple[int, int]]) -> list[NDArray[np.float32]]:
        tower = self.loaded.vision
        assert tower is not None
        out = []
        for i, (rows, columns) in enumerate(grids):
            vectors = tower.vectors(rows * columns)
            patches = tv.random_patches(self.spec, rows * columns, i)
            vectors[:, : patches.shape[1]] = patches
            out.append(tower.encode(vectors, rows, columns))
        return out

    def true_features(self, grids: Sequence[tuple[int, int]]) -> Any:
        patches = [tv.random_patches(self.spec, r * c, i) for i, (r, c) in enumerate(grids)]
        with torch.no_grad():
            out = self.reference.model.visual(
                torch.from_numpy(np.concatenate(patches)).double(),
                torch.tensor([[1, r, c] for r, c in grids]),
            )
        return torch.cat([out.pooler_output, *out.deepstack_features], 1).numpy()


@pytest.fixture(scope="module", params=[SPEC, EXPERTS, UNTIED], ids=lambda spec: spec.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("vision"), request.param)


IMAGE = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
VIDEO = ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
GRIDS = [(4, 6), (2, 2), (10, 2), (6, 14), (2, 30)]


def test_features(pair: Pair) -> None:
    """Main and DeepStack features of every grid, odd shapes among them."""
    got = np.concatenate(pair.features(GRIDS))
    expected = pair.true_features(GRIDS)
    assert expected.std() > 0.3
    assert np.abs(got - expected).max() < BOUND * expected.std()


# Prompts as token ids, None = a picture.
PROMPTS: dict[str, tuple[list[int | None], list[tuple[int, int]]]] = {
    "tall": ([5, 6, None, 7, 8, 9], [(10, 2)]),
    "wide": ([5, 6, None, 7, 8, 9], [(2, 30)]),
    "two": ([1, None, 2, 3, None, 4, 5], [(4, 6), (6, 14)]),
    "between": ([*range(20, 32), None, *range(60, 70)], [(6, 14)]),
    "edges": ([None, 3, 4, None, 17], [(2, 2), (4, 6)]),
}


def parts_of(pair: Pair, name: str) -> tuple[list[int], VisionPrompt, dict[str, Any]]:
    """The prompt as we have it, and the arguments of the reference."""
    raw, grids = PROMPTS[name]
    start, end, pad = (pair.spec.id(t) for t in IMAGE)
    ids: list[int] = []
    for token in raw:
        ids += [start, pad, end] if token is None else [token]
    sizes = [(r // 2, c // 2) for r, c in grids]
    expanded, begins = expand(ids, {pad}, sizes)
    placed = [
        Placed(begin, r, c, b"%d" % i)
        for i, (begin, (r, c)) in enumerate(zip(begins, sizes, strict=True))
    ]
    prompt = lay_out(len(expanded), placed, np.concatenate(pair.features(grids)))
    patches = [tv.random_patches(pair.spec, r * c, i) for i, (r, c) in enumerate(grids)]
    types = torch.tensor([[int(i == pad) for i in expanded]])
    return (
        expanded,
        prompt,
        {
            "input_ids": torch.tensor([expanded]),
            "pixel_values": torch.from_numpy(np.concatenate(patches)).double(),
            "image_grid_thw": torch.tensor([[1, r, c] for r, c in grids]),
            "mm_token_type_ids": types,
        },
    )


def logits_of(pair: Pair, ids: Sequence[int], prompt: VisionPrompt, chunk: int) -> Any:
    """float32 [n, vocab], straight from the player."""
    loaded, n = pair.loaded, len(ids)
    table = np.arange(-(-n // 64), dtype=np.int32)
    parts = []
    for start in range(0, n, chunk):
        at = slice(start, min(start + chunk, n))
        rows = at.stop - at.start
        tokens = np.array(ids[at], np.int32)
        feature_of = prompt.feature_of[at]
        tokens[feature_of >= 0] = -1 - feature_of[feature_of >= 0]
        bad = loaded.player.forward(
            tokens,
            np.ascontiguousarray(prompt.positions[at]),
            np.array([[rows, start, 0]], np.int32),
            table,
            np.arange(rows, dtype=np.int32),
            prompt.features,
        )
        assert not bad.any()
        parts.append(loaded.player.logits().copy())
    return np.concatenate(parts)


@pytest.mark.parametrize("name", PROMPTS)
def test_positions_and_logits(pair: Pair, name: str) -> None:
    ids, prompt, arguments = parts_of(pair, name)
    expected, deltas = pair.reference.model.get_rope_index(
        arguments["input_ids"],
        arguments["mm_token_type_ids"],
        image_grid_thw=arguments["image_grid_thw"],
    )
    assert np.array_equal(prompt.positions, expected[:, 0].numpy().T)
    assert prompt.delta == int(deltas[0, 0])
    with torch.no_grad():
        reference = pair.reference(**arguments).logits[0].numpy()
    assert reference.std() > 1
    whole = logits_of(pair, ids, prompt, len(ids))
    assert np.abs(whole - reference).max() < BOUND * reference.std()
    # Chunks that cut through a picture: the same bits.
    for chunk in (1, 7):
        pieces = logits_of(pair, ids, prompt, chunk)
        assert np.array_equal(pieces.view(np.uint32), whole.view(np.uint32))


def test_deepstack_and_positions_matter(pair: Pair) -> None:
    """What the bound would catch: features left out, or positions as of text."""
    ids, prompt, _ = parts_of(pair, "two")
    right = logits_of(pair, ids, prompt, len(ids))
    features = prompt.features.copy()
    features[:, pair.spec.hidden :] = 0
    flat = np.repeat(np.arange(len(ids), dtype=np.int32)[:, None], 3, axis=1)
    for wrong in (
        VisionPrompt(prompt.positions, prompt.delta, prompt.feature_of, features, ()),
        VisionPrompt(flat, 0, prompt.feature_of, prompt.features, ()),
    ):
        off = np.abs(logits_of(pair, ids, wrong, len(ids)) - right).max()
        assert off > 20 * BOUND * right.std()


@pytest.mark.parametrize("name", ["two", "edges"])
def test_greedy_answers(pair: Pair, name: str) -> None:
    """64 tokens, through the engine; where the reference hesitates between two, both are right."""
    ids, prompt, arguments = parts_of(pair, name)
    with LLM.of(pair.loaded, pair.config) as llm:
        from draftproof.request import Request

        request = Request(ids, SamplingParams(max_tokens=64, ignore_eos=True))
        llm._engine.check(request)
        request.show(prompt)
        answer = [d for d in llm._deltas([request]) if d.completion][-1].completion
        assert answer is not None
    tokens = list(answer.token_ids)
    assert len(tokens) == 64
    pad = torch.zeros((1, 64), dtype=torch.long)
    with torch.no_grad():
        out = pair.reference(
            **{
                **arguments,
                "input_ids": torch.cat([arguments["input_ids"], torch.tensor([tokens])], 1),
                "mm_token_type_ids": torch.cat([arguments["mm_token_type_ids"], pad], 1),
            }
        )
    rows = out.logits[0, len(ids) - 1 : -1].numpy()
    chosen = rows[np.arange(64), tokens]
    assert (rows.max(1) - chosen < BOUND * rows.std()).all()
    assert len({*tokens}) > 4


def test_frames_of_a_video(pair: Pair) -> None:
    """Two groups of frames, each a segment of its own, time as text before it."""
    rows, columns = 4, 6
    frames = tv.random_patches(pair.spec, 2 * rows * columns, 5)
    start, end, pad = (pair.spec.id(t) for t in VIDEO)
    ids = [9, 30, start, pad, end, 31, start, pad, end, 12]
    expanded, begins = expand(ids, {pad}, [(2, 3), (2, 3)])
    tower = pair.loaded.vision
    assert tower is not None
    features = []
    for part in np.split(frames, 2):
        vectors = tower.vectors(rows * columns)
        vectors[:, : part.shape[1]] = part
        features.append(tower.encode(vectors, rows, columns))
    placed = [Placed(begin, 2, 3, b"") for begin in begins]
    prompt = lay_out(len(expanded), placed, np.concatenate(features))
    with torch.no_grad():
        reference = (
            pair.reference(
                input_ids=torch.tensor([expanded]),
                pixel_values_videos=torch.from_numpy(frames).double(),
                video_grid_thw=torch.tensor([[2, rows, columns]]),
                mm_token_type_ids=torch.tensor([[2 * int(i == pad) for i in expanded]]),
            )
            .logits[0]
            .numpy()
        )
    got = logits_of(pair, expanded, prompt, len(expanded))
    assert np.abs(got - reference).max() < BOUND * reference.std()
