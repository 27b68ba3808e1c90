"""The page in a real browser: sending, stopping, images, sources, comparing, losing the server."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from page_llm import PageLLM
from server_support import serving, wait_for

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def send(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


def answer(page: Any) -> Any:
    """The last answer, finished."""
    page.wait_for_selector(".turn.assistant:last-child .again")
    return page.locator(".turn.assistant").last


def test_an_answer_streams_in_and_has_statistics(page: Any, llm: PageLLM) -> None:
    assert page.title() == "Draftproof"
    send(page, "hello")
    turn = answer(page)
    assert turn.locator(".text").last.inner_text() == llm.text
    stats = turn.locator(".stats").inner_text()
    assert "answer 40 tokens in 14 steps" in stats
    assert "5.0 tokens/s" in stats
    assert "2 of 6 drafted accepted" in stats
    send(page, "and now?")
    page.wait_for_function("document.querySelectorAll('.turn.assistant .again').length == 1")
    answer(page)
    wait_for(lambda: llm.ended == 2)
    roles = [m["role"] for m in llm.asked[-2]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_stop_keeps_what_there_is(page: Any, llm: PageLLM) -> None:
    llm.pause = 0.05
    send(page, "hello")
    page.wait_for_selector(".turn .token")
    page.press("#message", "Escape")
    turn = answer(page)
    assert "stopped" in turn.locator(".stats").inner_text()
    shown = turn.locator(".text").last.inner_text()
    assert 0 < len(shown) < len(llm.text)
    wait_for(lambda: llm.cancelled == 1)
    llm.pause = 0
    page.click("text=Regenerate")
    assert answer(page).locator(".text").last.inner_text() == llm.text
    assert page.locator(".turn.assistant").count() == 1
    assert [m["role"] for m in llm.asked[-2]["messages"]] == ["user"]


def test_an_image_goes_along(page: Any, llm: PageLLM) -> None:
    files = [{"name": "dot.png", "mimeType": "image/png", "buffer": DOT}]
    page.set_input_files("#file", files)
    page.wait_for_selector("#images img")
    send(page, "what is it?")
    answer(page)
    content = llm.asked[-2]["messages"][0]["content"]
    assert content[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert content[1] == {"type": "text", "text": "what is it?"}
    assert page.locator(".turn.user img").count() == 1
    assert page.locator("#images img").count() == 0


def test_sources_rejected_drafts_and_the_strip(page: Any) -> None:
    page.check("#sources")
    send(page, "hello")
    turn = answer(page)
    assert turn.locator(".token.from-suffix").count() == 14
    assert turn.locator(".token.from-template").count() == 13
    assert turn.locator(".bar").count() == 14
    mark = turn.locator(".rejected").first
    assert mark.get_attribute("aria-label") == "2 draft tokens rejected here: xy"
    tip = mark.locator(".tip")
    assert not tip.is_visible()
    mark.hover()
    assert tip.is_visible()
    assert page.locator("#legend .from-resync").is_visible()
    turn.locator("summary", has_text="When it pays here").click()
    assert "verify steps had 4.0 rows" in turn.locator("figcaption").inner_text()
    assert turn.locator("svg .here").count() == 1


def test_compare_ends_in_identical(page: Any, llm: PageLLM) -> None:
    page.check("#compare")
    send(page, "hello")
    turn = answer(page)
    assert turn.locator(".verdict").inner_text().startswith("identical: 40 of 40 tokens")
    assert turn.locator(".answer").count() == 2
    ways = [asked["speculation"] for asked in llm.asked if "speculation" in asked]
    assert [(way.drafter, way.remember) for way in ways] == [("off", False), ("auto", False)]
    seeds = [asked["sampling"].seed for asked in llm.asked if "sampling" in asked]
    assert seeds[0] == seeds[1]


def test_a_difference_would_be_said(page: Any, llm: PageLLM) -> None:
    page.check("#compare")
    llm.text_on = llm.text.replace("town", "tawn", 1)
    send(page, "hello")
    assert answer(page).locator(".verdict").inner_text() == "DIFFERENT from token 10 on"


HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[31m"
)


def test_hostile_text_is_text(page: Any, llm: PageLLM) -> None:
    llm.text = HOSTILE
    page.check("#sources")
    send(page, "hello")
    turn = answer(page)
    assert "".join(turn.locator(".token").all_text_contents()) == HOSTILE
    assert turn.locator("img, script").count() == 0
    assert page.title() == "Draftproof"


def test_an_error_is_shown_and_the_next_question_works(page: Any, llm: PageLLM) -> None:
    from draftproof.errors import InvalidRequestError

    llm.fails = InvalidRequestError("images aren't understood by this model")
    send(page, "hello")
    assert "images aren't understood" in answer(page).locator(".error").inner_text()
    llm.fails = None
    send(page, "again")
    page.wait_for_selector(".turn.assistant:last-child .stats")
    answer(page)
    assert [m["content"] for m in llm.asked[-2]["messages"]] == ["again"]
    assert all("400" in line for line in page.complaints)
    page.complaints.clear()  # the browser itself reports the status


def test_themes_and_contrast(page: Any) -> None:
    send(page, "hello")
    answer(page)
    page.check("#sources")
    backgrounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        backgrounds.add(style(page, "body", "backgroundColor"))
        for selector in ("body", ".quiet", ".stats", "#send", ".rejected", ".turn.user", "#theme"):
            assert contrast(page, selector) >= 4.5, (scheme, selector)
        for name in (
            "window",
            "suffix",
            "store",
            "reference",
            "template",
            "resync",
            "grammar",
            "other",
        ):
            assert contrast(page, f"#legend .from-{name}") >= 4.5, (scheme, name)
    assert len(backgrounds) == 2
    page.emulate_media(color_scheme="light")
    page.click("#theme")
    page.click("#theme")
    assert style(page, "body", "backgroundColor") == "rgb(20, 23, 27)"
    page.reload()
    page.wait_for_selector("#model:not(:empty)")
    assert style(page, "body", "backgroundColor") == "rgb(20, 23, 27)"


def style(page: Any, selector: str, name: str) -> str:
    found = page.evaluate(
        "([s, n]) => getComputedStyle(document.querySelector(s))[n]", [selector, name]
    )
    return str(found)


def contrast(page: Any, selector: str) -> float:
    """WCAG 2.2, of a text on the nearest background that is painted."""
    colours = page.evaluate(
        """(selector) => {
            const node = document.querySelector(selector);
            let below = node;
            const clear = (n) => getComputedStyle(n).backgroundColor === "rgba(0, 0, 0, 0)";
            while (clear(below)) below = below.parentElement;
            return [getComputedStyle(node).color, getComputedStyle(below).backgroundColor];
        }""",
        selector,
    )
    light, dark = sorted((luminance(colour) for colour in colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_control_has_a_name_and_a_phone_has_room(page: Any) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea")].filter((node) =>
            !node.getAttribute("aria-label") && !node.textContent.trim() && !node.labels?.length)
            .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    page.set_viewport_size({"width": 360, "height": 640})
    page.check("#sources")
    page.check("#compare")
    send(page, "hello " * 40 + "x" * 200)
    answer(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.tagName")
    assert focused != "BODY"


def test_a_key_is_asked_for_by_the_browser_itself(browser: Any, llm: PageLLM) -> None:
    with serving(llm, names=("recital",), api_keys=("secret",)) as server:
        context = browser.new_context(http_credentials={"username": "me", "password": "secret"})
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector("#model:not(:empty)")
        send(page, "hello")
        assert answer(page).locator(".text").last.inner_text() == llm.text
        context.close()
        assert server.client.get("/").status_code == 401


@pytest.mark.parametrize("during", ["an answer", "nothing"])
def test_the_server_goes_and_comes_back(browser: Any, llm: PageLLM, during: str) -> None:
    page = browser.new_page()
    page.set_default_timeout(10_000)
    llm.pause = 0.05
    with serving(llm, names=("recital",), shutdown_grace=0.0) as first:
        port = int(first.url.rpartition(":")[2])
        page.goto(first.url)
        page.wait_for_selector("#model:not(:empty)")
        if during == "an answer":
            send(page, "hello")
            page.wait_for_selector(".turn .token")
    if during == "an answer":
        page.wait_for_selector(".error")
    else:
        send(page, "hello")
    page.wait_for_selector("#banner:not([hidden])")
    assert "gone" in page.inner_text("#banner") or "ending" in page.inner_text("#banner")
    with serving(llm, names=("recital",), port=port) as second:
        page.wait_for_selector("#banner", state="hidden")
        llm.pause = 0
        page.click("text=Regenerate")
        answer(page)
        assert second.url == first.url
        assert page.locator(".turn.assistant .text").last.inner_text() == llm.text
    page.close()
