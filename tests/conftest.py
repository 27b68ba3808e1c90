"""Fixtures and options shared by all tests: tiny models, real models, rows of the dispatch table.

Real models are used where they lie in the cache and skipped visibly where they don't: no test
downloads anything (.ci/run fetches the default model beforehand).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatch_rows import isa_rows, missing_rows, native
from draftproof import catalogue
from tiny_models import TinyModels

# --- options, markers, header --------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="the whole product of every axis instead of a seeded sample (hours)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--exhaustive"):
        return
    skip = pytest.mark.skip(reason="only under --exhaustive")
    for item in items:
        if "exhaustive" in item.keywords:
            item.add_marker(skip)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("model"):
        model_path(marker.args[0])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", isa_rows(), scope="session")


def pytest_report_header(config: pytest.Config) -> list[str]:
    if native() is None:
        return ["draftproof: the native extension isn't built or can't be imported"]
    models = [f"{e.name} ({catalogue.state(e)})" for e in catalogue.CATALOGUE.values()]
    return [
        f"draftproof: rows tested: {', '.join(isa_rows())}",
        f"draftproof: rows not on this machine: {', '.join(missing_rows()) or 'none'}",
        f"draftproof: models: {', '.join(models)}",
    ]


@pytest.fixture(scope="session")
def exhaustive(pytestconfig: pytest.Config) -> bool:
    """Whether the whole product of the axes is wanted."""
    return bool(pytestconfig.getoption("--exhaustive"))


# --- models --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Tiny models by name and tensor type: `tiny.path("qwen3", "Q8_0")`; see tiny_models.SPECS."""
    return TinyModels(tmp_path_factory.mktemp("tiny_models"))


def model_path(name: str) -> Path:
    """The file of a catalogue name in the cache; skips the test where it isn't there."""
    entry = catalogue.CATALOGUE[name]
    if catalogue.state(entry) == "absent":
        pytest.skip(f"{name} isn't in the cache ({entry.file})")
    return catalogue.resolve(name)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return model_path("smollm2-135m")


@pytest.fixture(scope="session")
def qwen05() -> Path:
    return model_path("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def qwen15() -> Path:
    return model_path("qwen2.5-coder-1.5b")


Load = Callable[..., Any]


@pytest.fixture(scope="session")
def load() -> Iterator[Load]:
    """`load(path, **fields of EngineConfig)`: a LoadedModel, the same one for the same arguments.

    Its KV cache is shared between tests: a test may rely only on what it wrote there itself."""
    from draftproof.config import EngineConfig
    from draftproof.models import load_model

    loaded: dict[tuple[Any, ...], Any] = {}

    def get(path: Path, **fields: Any) -> Any:
        key = (path, *sorted(fields.items()))
        if key not in loaded:
            loaded[key] = load_model(path, EngineConfig(**fields))
        return loaded[key]

    yield get
    loaded.clear()
