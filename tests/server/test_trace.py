"""What the page is made of: its files and their policy, the trace of a stream, V(m)."""

from __future__ import annotations

import pytest
from server_support import Running, events

from draftproof.drafting.verify_cost import GRID
from draftproof.outputs import Origin, TokenEvent
from draftproof.server.speculation import trace

PROMPT = " ".join(map(str, range(60)))  # the tiny model drafts right and wrong behind it


def test_the_page_comes_with_a_policy(running: Running) -> None:
    page = running.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("app.js", "style.css", "icon.svg", "answer.js", "chart.js", "sse.js"):
        file = running.client.get(f"/static/{name}")
        assert file.status_code == 200, name
        assert "default-src 'none'" in file.headers["content-security-policy"]
        assert "unsafe" not in file.headers["content-security-policy"]
        assert "http" not in file.text.replace("http://www.w3.org/2000/svg", "")
    assert "<script type" in page.text
    assert "style=" not in page.text
    assert running.client.get("/static/../app.py").status_code == 404
    assert running.client.get("/static/index.html").status_code == 404


def test_no_place_for_html_in_the_scripts() -> None:
    from draftproof.server.page import _FOLDER

    for path in _FOLDER.glob("*.js"):
        text = path.read_text("utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, path.name


def test_the_profile_is_v(tiny_server: Running) -> None:
    value = tiny_server.client.get("/v1/draftproof/profile").json()
    assert list(value["verify_cost"]) == [str(m) for m in GRID]
    assert value["verify_cost"]["1"] == 1.0
    assert value["plain_step_ms"] > 0


def test_rejected_tokens_are_told_as_texts() -> None:
    step = [
        TokenEvent(65, "A", None, origin=Origin("suffix", 3)),
        TokenEvent(66, "B", None, origin=Origin("bonus", 3, (67, 68))),
        TokenEvent(-1, "", "numeric_error"),
    ]
    assert trace(step, chr) == {
        "step": 3,
        "tokens": [65, 66],
        "texts": ["A", "B"],
        "sources": ["suffix", "bonus"],
        "rejected": [[], ["C", "D"]],
    }


@pytest.mark.parametrize("drafter", ["suffix", "off"])
def test_a_trace_tells_every_token(tiny_server: Running, drafter: str) -> None:
    fields = {
        **{"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 60},
        **{"stream": True, "ignore_eos": True},
        "speculation": {"drafter": drafter, "k": 4},
    }
    plain = events(tiny_server.client.post("/v1/chat/completions", json=fields))[:-1]
    assert not any("draftproof" in chunk for chunk in plain)
    fields |= {"speculation_trace": True, "cache_salt": drafter}  # or `plain` would be drafted from
    traced = events(tiny_server.client.post("/v1/chat/completions", json=fields))[:-1]
    steps = [chunk["draftproof"] for chunk in traced if "draftproof" in chunk]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in traced)
    assert "".join("".join(step["texts"]) for step in steps) == text
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert sum(len(step["tokens"]) for step in steps) == 60
    counts = traced[-1]["metrics"]["speculative_decoding"]
    sources = [source for step in steps for source in step["sources"]]
    rejected = [text for step in steps for texts in step["rejected"] for text in texts]
    if drafter == "off":
        assert set(sources) == {"plain"}
        assert rejected == []
    else:
        assert counts["num_accepted_draft_tokens"] > 0
        drafted = [source for source in sources if source not in ("plain", "bonus")]
        assert len(drafted) in (
            counts["num_accepted_draft_tokens"],
            counts["num_accepted_draft_tokens"] + 1,
        )
        assert 0 < len(rejected) <= counts["num_rolled_back"]
