"""`draftproof run --image` on a tiny model; and what goes wrong, in one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import tiny_vision as tv
from draftproof.cli.app import app
from tiny_models import TinyModels

Invoke = Callable[..., Result]
SPEC = tv.TinyVision()
SMALL = ("--threads", "1", "--image-max-tokens", "32", "--image-min-tokens", "4", "-n", "6")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    text, mmproj = tv.write(tmp_path_factory.mktemp("m"), SPEC, tv.state(tv.hf_model(SPEC)))
    return str(text), str(mmproj)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("p") / "a picture.png"
    pixels = np.random.default_rng(1).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return str(path)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """The command line around the real LLM."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)

    return call


def test_one_and_two_images(invoke: Invoke, files: tuple[str, str], picture: str) -> None:
    model, mmproj = files
    shown: list[dict[str, Any]] = []
    for images in ([], ["--image", picture], ["--image", picture, "--image", picture]):
        result = invoke("run", model, "what?", "--mmproj", mmproj, *images, *SMALL, "--json")
        assert result.exit_code == 0, result.output
        shown.append(json.loads(result.stdout))
    counts = [value["usage"]["image_tokens"] for value in shown]
    assert counts == [0, 24, 48]
    assert shown[0]["token_ids"] != shown[1]["token_ids"]


def test_mistakes(
    invoke: Invoke,
    files: tuple[str, str],
    picture: str,
    tiny: TinyModels,
    tmp_path: Path,
) -> None:
    model, mmproj = files
    text_model = str(tiny.path("qwen3", "F32"))
    other = tv.TinyVision(name="other", hidden=96, heads=6)
    deeper = tv.TinyVision(name="deeper", deepstack=(0, 1, 2))
    wrong = [
        str(tv.write(tmp_path, spec, tv.state(tv.hf_model(spec)))[1]) for spec in (other, deeper)
    ]
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    for arguments, message in (
        ((text_model, "--image", picture), "this model reads text only"),
        ((text_model, "--mmproj", mmproj), "reads text only: leave out --mmproj"),
        ((model, "--image", picture), "give its mmproj file with --mmproj"),
        ((model, "--mmproj", model, "--image", picture), "not an mmproj file"),
        ((model, "--mmproj", wrong[0]), "belongs to another model: features of 96 values"),
        ((model, "--mmproj", wrong[1]), "belongs to another model: 3 DeepStack features"),
        ((model, "--mmproj", str(tmp_path / "none.gguf")), "no such file"),
        ((model, "--mmproj", mmproj, "--image", str(broken)), "no image that can be read"),
        ((model, "--mmproj", mmproj, "--image", picture, "--raw"), "no place in --raw"),
        ((model, "--mmproj", mmproj, *(["--image", picture] * 200)), "more than 128 images"),
        ((model, "--mmproj", mmproj, "--ctx", "64", *(["--image", picture] * 9)), "the context 64"),
        ((mmproj,), "is an mmproj file"),
    ):
        result = invoke("run", arguments[0], "what?", *arguments[1:], *SMALL)
        assert result.exit_code == 2, (arguments, result.output)
        assert message in result.stderr, (message, result.stderr)
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
