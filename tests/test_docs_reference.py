"""The pages made from the code are current, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_pages_are_current(generate: ModuleType) -> None:
    """If this fails: python docs/generate.py"""
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r})\nimport generate, json\n"
    script += "print(json.dumps({name: make() for name, make in generate.PAGES.items()}))"
    environment = {**os.environ, "PYTHONHASHSEED": "0", "NO_COLOR": "1"}
    # A process of its own: the width of help texts is read from the environment once.
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    made = json.loads(run.stdout)
    old = {name: (ROOT / "docs" / name).read_text("utf-8") for name in made}
    stale = [name for name in made if made[name] != old[name]]
    assert stale == [], "python docs/generate.py makes them anew"


def test_the_trace_shows_everything(generate: ModuleType) -> None:
    text = generate.traced_example()
    assert "| 5 | at nine and the | at ten | 1 | 3 |" in text
    assert "| 4 | 0 |" in text  # a draft that was accepted as a whole


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` isn't installed")
    pytest.importorskip("material", reason="the extra `docs` isn't installed")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    index = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "fonts.googleapis" not in index
