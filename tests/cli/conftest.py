"""The command line in this process, around a fake LLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_llm import FakeLLM, Invoke
from typer.testing import CliRunner, Result

from draftproof.cli.app import app


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLLM:
    llm = FakeLLM()
    monkeypatch.setattr("draftproof.llm.LLM", llm.open)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return llm


@pytest.fixture
def invoke(fake: FakeLLM) -> Invoke:
    def call(*arguments: str, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=input, catch_exceptions=False)

    return call
