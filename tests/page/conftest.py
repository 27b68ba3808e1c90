"""A real browser for the page, and a server that recites. Skipped where there is no browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from page_llm import PageLLM
from server_support import Running, serving

from draftproof.drafting.verify_cost import VerifyCost

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def llm() -> PageLLM:
    return PageLLM(text="The harbour wakes before the town does. " * 3, verify_cost=VerifyCost())


@pytest.fixture
def server(llm: PageLLM) -> Iterator[Running]:
    with serving(llm, names=("recital",)) as running:
        yield running


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """The page, open. Errors in its console fail the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    complaints: list[str] = []
    opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.complaints = complaints
    opened.goto(server.url)
    opened.wait_for_selector("#model:not(:empty)")
    yield opened
    context.close()
    assert complaints == []
