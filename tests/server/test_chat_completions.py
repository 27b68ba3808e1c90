"""/v1/chat/completions: shapes, streams, fields, in front of an LLM that recites."""

from __future__ import annotations

from typing import Any

import pytest
from server_support import THINKS, FakeLLM, Running, events, folded, serving

from draftproof.drafting.stats import SpeculationStats


def test_a_whole_answer(running: Running) -> None:
    body = running.chat().raise_for_status().json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "fake"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world."}
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5
    assert body["system_fingerprint"] == "dp-fake"
    assert body["seed"] == 42


def test_a_stream(running: Running) -> None:
    response = running.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, end = events(response)
    assert end == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    last = chunks[-1]["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert folded(chunks)["message"] == {"content": "Hello, world."}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_in_a_stream_that_asks(running: Running) -> None:
    *chunks, usage, _ = events(running.chat(stream=True, stream_options={"include_usage": True}))
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert all(chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("text", ["<think>\nHm.\n</think>\n\nYes.", "Plain.", ""])
def test_a_stream_folds_into_the_whole_answer(text: str, size: int) -> None:
    fake = FakeLLM(text=text, size=size, template=THINKS)
    with serving(fake) as running:
        whole = running.chat().json()["choices"][0]
        stream = folded(events(running.chat(stream=True))[:-1])
    assert stream["finish_reason"] == whole["finish_reason"]
    assert stream["message"] == {k: v for k, v in whole["message"].items() if k != "role"}


def test_thoughts_have_both_names() -> None:
    fake = FakeLLM(text="Hm.\n</think>\n\nYes.", template=THINKS, opens_thoughts=True)
    with serving(fake) as running:
        message = running.chat().json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Hm."
    assert message["content"] == "Yes."


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {}),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
            {"enable_thinking": True},
        ),
    ],
)
def test_template_variables(
    running: Running, fake: FakeLLM, fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    running.chat(**fields).raise_for_status()
    assert fake.asked[0]["template"] == variables


def test_sampling_fields(running: Running, fake: FakeLLM) -> None:
    running.chat(
        temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=7, stop="x", max_completion_tokens=3
    ).raise_for_status()
    sampling = fake.asked[1]["sampling"]
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 0)
    assert (sampling.min_p, sampling.seed, sampling.stop) == (0.1, 7, ("x",))
    assert sampling.max_tokens == 3


def test_defaults_come_from_the_model(running: Running, fake: FakeLLM) -> None:
    running.chat()
    assert fake.asked[1]["sampling"].temperature == 1.0
    careful = FakeLLM(defaults={"temperature": 0.6, "top_k": 20})
    with serving(careful) as other:
        other.chat(top_k=5)
    sampling = careful.asked[1]["sampling"]
    assert (sampling.temperature, sampling.top_k) == (0.6, 5)


def test_null_is_as_good_as_absent(running: Running) -> None:
    names = ("temperature", "stop", "n", "seed", "max_tokens", "stream_options", "speculation")
    running.chat(**dict.fromkeys(names), unknown_field={"x": 1}).raise_for_status()


@pytest.mark.parametrize(
    ("wanted", "drafter", "k"),
    [
        (None, "auto", None),
        ("auto", "auto", None),
        ("off", "off", None),
        ({"drafter": "window", "k": 3}, "window", 3),
    ],
)
def test_speculation_of_a_request(
    running: Running, fake: FakeLLM, wanted: Any, drafter: str, k: int | None
) -> None:
    running.chat(speculation=wanted).raise_for_status()
    config = fake.asked[1]["speculation"]
    assert (config.drafter, config.k) == (drafter, k)


def test_statistics_in_other_names(running: Running) -> None:
    body = running.chat().json()
    stats = body["metrics"]["speculative_decoding"]
    assert stats["num_spec_steps"] == 2
    assert stats["num_draft_tokens"] == 6
    assert stats["num_accepted_draft_tokens"] == 2
    assert stats["num_rolled_back"] == 4
    assert stats["draft_acceptance_rate"] == 2 / 6
    assert stats["mean_acceptance_length"] == 2.0
    assert stats["acceptance_histogram"] == [1, 0, 1]
    assert stats["by_source"] == {"suffix": {"tries": 2, "drafted": 6, "accepted": 2}}
    assert set(stats["plain_steps"]) == set(SpeculationStats().plain_steps)
    assert body["timings"]["predicted_n"] == 5
    assert body["timings"]["draft_n_accepted"] == 2


def test_progress_of_a_prefill() -> None:
    with serving(FakeLLM(prefill_rows=3)) as running:
        chunks = events(running.chat(stream=True, return_progress=True))[:-1]
    shown = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(state["processed"], state["total"]) for state in shown] == [(1, 3), (2, 3), (3, 3)]


def test_pings_while_nothing_comes() -> None:
    with serving(FakeLLM(prefill_rows=1, pause=0.3)) as running:
        text = running.chat(stream=True, max_tokens=1, sse_ping_interval=0.1).text
        quiet = running.chat(stream=True, max_tokens=1, sse_ping_interval=0).text
    assert text.startswith(": ping\n\n")
    assert text.endswith("data: [DONE]\n\n")
    assert "ping" not in quiet


def test_names_of_the_model(running: Running) -> None:
    running.chat(model="fake").raise_for_status()
    running.chat(model="fake:latest").raise_for_status()
    refused = running.chat(model="gpt-4o")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "doesn't swap models" in refused.json()["error"]["message"]
    [entry] = running.client.get("/v1/models").json()["data"]
    assert (entry["id"], entry["object"]) == ("fake", "model")
    assert running.client.get("/v1/models/fake").json() == entry
    assert running.client.get("/v1/models/other").status_code == 404


def test_a_wild_alias() -> None:
    with serving(FakeLLM(), names=("mine", "*")) as running:
        assert running.chat(model="claude-x").json()["model"] == "mine"
