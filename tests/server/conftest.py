"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_support import FakeLLM, Running, serving

from tiny_models import TinyModels


@pytest.fixture(scope="session")
def _recital() -> Iterator[tuple[FakeLLM, Running]]:
    llm = FakeLLM()
    with serving(llm) as server:
        yield llm, server


@pytest.fixture
def fake(_recital: tuple[FakeLLM, Running]) -> FakeLLM:
    """The LLM behind `running`, as new."""
    _recital[0].__init__()  # type: ignore[misc]
    return _recital[0]


@pytest.fixture
def running(fake: FakeLLM, _recital: tuple[FakeLLM, Running]) -> Running:
    """A server in front of an LLM that recites; one for all tests."""
    return _recital[1]


@pytest.fixture(scope="session")
def tiny_server(tiny: TinyModels) -> Iterator[Running]:
    """In front of a real engine with a tiny random model."""
    from draftproof.llm import LLM

    path = tiny.path("qwen3", "Q8_0")
    with LLM(path, threads=1, ctx=512) as llm, serving(llm, names=("tiny",)) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server(smollm2: Path) -> Iterator[Running]:
    from draftproof.llm import LLM

    with LLM(smollm2, threads=1, ctx=2048) as llm, serving(llm, names=("smollm2",)) as server:
        yield server
