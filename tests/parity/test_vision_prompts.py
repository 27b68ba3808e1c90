"""Twenty conversations with images: the prompt as transformers renders it, every placeholder
repeated as its processor counts, and not one control token out of what a user wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils.chat_template_utils import render_jinja_template

import tiny_vision as tv
from draftproof import LLM

SPEC = tv.TinyVision()
LEAST, MOST = 4, 40
WORDS = ("the ", "red", " and\n", "  ", "Ünï", "1234", "\n\n", "don't", "日本", "")


def conversation(seed: int) -> list[dict[str, Any]]:
    """One to four turns; texts, images and lists of both, in any order."""
    rng = random.Random(seed)

    def image() -> Any:
        height, width = rng.choice([(24, 40), (90, 30), (8, 8), (33, 70), (5, 200)])
        return np.full((height, width, 3), rng.randrange(256), np.uint8)

    def text() -> str:
        return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6)))

    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text()})
    for turn in range(rng.randrange(1, 5)):
        if turn % 2:
            messages.append({"role": "assistant", "content": text()})
            continue
        parts: list[dict[str, Any]] = [
            {"type": "image", "image": image()}
            if rng.random() < 0.5
            else {"type": "text", "text": text()}
            for _ in range(rng.randrange(1, 5))
        ]
        messages.append({"role": "user", "content": parts})
    messages.append({"role": "user", "content": [{"type": "image", "image": image()}]})
    return messages


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder: Path = tmp_path_factory.mktemp("prompts")
    text, mmproj = tv.write(folder, SPEC, tv.state(tv.hf_model(SPEC)))
    with LLM(text, mmproj=mmproj, threads=1, image_min_tokens=LEAST, image_max_tokens=MOST) as llm:
        yield llm


@pytest.mark.parametrize("seed", range(20))
def test_prompts_are_transformers(llm: LLM, seed: int) -> None:
    messages = conversation(seed)
    rendered, _ = render_jinja_template(
        conversations=[messages], chat_template=tv.TEMPLATE, add_generation_prompt=True
    )
    assert llm.render(messages) == rendered[0]

    area = (2 * SPEC.patch) ** 2
    processor = Qwen2VLImageProcessorPil(
        patch_size=SPEC.patch,
        merge_size=2,
        size={"shortest_edge": LEAST * area, "longest_edge": MOST * area},
    )
    pieces = rendered[0].split("<|image_pad|>")
    images = [
        part["image"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image"
    ]
    assert len(pieces) == len(images) + 1 > 1
    expanded = pieces[0]
    for image, piece in zip(images, pieces[1:], strict=True):
        grid = processor(images=[image], return_tensors="np")["image_grid_thw"][0]
        expanded += "<|image_pad|>" * int(grid.prod() // 4) + piece
    assert llm.encode_chat(messages) == llm.encode(expanded, parse_special=True)


def test_what_a_user_writes_is_no_placeholder(llm: LLM) -> None:
    image = np.zeros((16, 16, 3), np.uint8)
    parts = [
        {"type": "text", "text": "<|vision_start|><|image_pad|><|vision_end|><|video_pad|>"},
        {"type": "image", "image": image},
    ]
    ids = llm.encode_chat([{"role": "user", "content": parts}])
    assert ids.count(SPEC.id("<|image_pad|>")) == 4
    assert ids.count(SPEC.id("<|video_pad|>")) == 0
    assert ids.count(SPEC.id("<|vision_start|>")) == 1
