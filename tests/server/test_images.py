"""Images through the server: in every protocol, the bits of Python's chat; and what a client can't
have us read."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from server_support import Running, serving

import tiny_vision as tv
from draftproof import LLM, SamplingParams
from draftproof.vision.media import MediaPolicy

SPEC = tv.TinyVision()


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def data_url(seed: int) -> str:
    return "data:image/png;base64," + base64.b64encode(png(seed)).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "media").mkdir()
    (folder / "media" / "a.png").write_bytes(png(1))
    (folder / "secret.png").write_bytes(png(1))
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    text, mmproj = tv.write(folder, SPEC, tv.state(tv.hf_model(SPEC)))
    with LLM(
        text,
        mmproj=mmproj,
        threads=1,
        ctx=512,
        image_min_tokens=4,
        image_max_tokens=32,
        media=MediaPolicy(paths=False, folder=folder / "media"),
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    with serving(llm) as running:
        yield running


def ask(server: Running, *parts: Any, **more: Any) -> Any:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return server.client.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 12,
            "temperature": 0,
            **more,
        },
    )


def by_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_every_protocol_gives_the_answer_of_chat(server: Running, llm: LLM) -> None:
    message = [{"type": "text", "text": "what?"}, by_url(data_url(1))]
    expected = llm.chat([{"role": "user", "content": message}], SamplingParams(max_tokens=12))
    assert expected.usage.image_tokens == 24

    openai = ask(server, "what?", by_url(data_url(1))).raise_for_status().json()
    assert openai["choices"][0]["message"]["content"] == expected.text
    assert openai["usage"]["prompt_tokens"] == expected.usage.prompt_tokens

    by_file = ask(server, "what?", by_url(f"file://{_media(llm)}/a.png")).raise_for_status().json()
    assert by_file["choices"][0]["message"]["content"] == expected.text

    block = {
        "type": "image",
        "source": {
            "type": "base64",
            "media_type": "image/png",
            "data": base64.b64encode(png(1)).decode(),
        },
    }
    anthropic = server.client.post(
        "/v1/messages",
        json={
            "model": "fake",
            "max_tokens": 12,
            "temperature": 0,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, block]}],
        },
    )
    assert anthropic.status_code == 200, anthropic.text
    assert anthropic.json()["content"][0]["text"] == expected.text
    assert anthropic.json()["usage"]["input_tokens"] <= expected.usage.prompt_tokens

    other = ask(server, "what?", by_url(data_url(2))).raise_for_status().json()
    assert other["choices"][0]["message"]["content"] != expected.text


def _media(llm: LLM) -> Path:
    return Path(llm.info.path).parent / "media"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "SECRET"},
        {"type": "image", "image": 7},
        {"type": "image", "image": {"url": "SECRET"}},
        {"type": "image", "image": None},
        {"type": "image"},
        {"type": "image_url"},
        {"type": "image_url", "image_url": "SECRET"},
        {"type": "image_url", "image_url": {"url": "file://SECRET"}},
        {"type": "image_url", "image_url": {"url": "file://MEDIA/../secret.png"}},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": ["a"]}},
        {"type": "video", "video": ["SECRET", "SECRET"]},
        {"type": "video", "video": "SECRET"},
        {"type": "video", "video": ["data:,a"] * 1000},
        {"type": "video", "video": [], "fps": 0},
        {"type": "video", "video": ["data:,a", "data:,b"], "frame_indices": "x"},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"type": "strange"},
    ],
)
def test_what_is_refused(server: Running, folder: Path, part: dict[str, Any]) -> None:
    text = repr(part).replace("SECRET", str(folder / "secret.png"))
    text = text.replace("MEDIA", str(folder / "media"))
    response = ask(server, "what?", eval(text))
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert "\n" not in message
    assert message.startswith("messages[0].content[1]")


def test_two_hundred_images(server: Running) -> None:
    response = ask(server, *([by_url(data_url(1))] * 200))
    assert response.status_code == 400
    assert "more than 128 images" in response.json()["error"]["message"]


def test_several_choices_and_streams(server: Running, llm: LLM) -> None:
    whole = ask(server, by_url(data_url(1)), n=2, seed=4, temperature=0.9)
    assert whole.status_code == 200, whole.text
    texts = [choice["message"]["content"] for choice in whole.json()["choices"]]
    message = [{"role": "user", "content": [by_url(data_url(1))]}]
    expected = llm.chat(message, SamplingParams(max_tokens=12, n=2, seed=4, temperature=0.9))
    assert texts == [choice.text for choice in expected.choices]
    assert texts[0] != texts[1]
