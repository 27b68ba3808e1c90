"""The examples that need more than a model: a server, a picture, a process of their own."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from server_support import serving

from draftproof.llm import LLM
from tiny_models import TinyModels

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_openai_client(
    tiny: TinyModels, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.path("qwen2", "Q8_0")
    with LLM(path, threads=1, ctx=512) as llm, serving(llm, names=("tiny",)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        runpy.run_path(str(EXAMPLES / "openai_client.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()
    (answer,) = (e for e in server.log() if e.get("path") == "/v1/chat/completions")
    assert answer["status"] == 200


def test_prove_in_ci(tiny: TinyModels, tmp_path: Path) -> None:
    path = tiny.path("qwen2", "Q8_0")
    command = [sys.executable, str(EXAMPLES / "prove_in_ci.py"), str(path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "certificate.json").read_text())["holds"] is True


def test_chat_with_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np
    from PIL import Image

    import tiny_vision

    spec = tiny_vision.TinyVision()
    weights = tiny_vision.state(tiny_vision.hf_model(spec))
    model, mmproj = tiny_vision.write(tmp_path, spec, weights)
    picture = tmp_path / "picture.png"
    pixels = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(picture)
    words = ["chat_with_image.py", str(model), str(mmproj), str(picture)]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLES / words[0]), run_name="__main__")
    assert capsys.readouterr().out.strip()
