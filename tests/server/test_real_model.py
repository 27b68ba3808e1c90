"""A real engine behind the server: the same bits as from Python, also for many at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from server_support import Running, events, folded, wait_for

from draftproof.sampling import SamplingParams
from draftproof.server.speculation import PER_POSITION

GREEDY = {"temperature": 0, "max_tokens": 24}


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **GREEDY, **fields}


def test_the_bits_of_the_python_api(tiny_server: Running) -> None:
    llm = tiny_server.service.served.llm
    expected = llm.chat("abc abc abc", SamplingParams(max_tokens=24))
    answer = tiny_server.chat(**ask("abc abc abc")).raise_for_status().json()
    assert answer["choices"][0]["message"]["content"] == expected.text
    assert answer["choices"][0]["finish_reason"] == expected.finish_reason
    assert answer["usage"]["completion_tokens"] == expected.usage.completion_tokens
    assert answer["system_fingerprint"] == expected.engine.system_fingerprint


def test_speculation_changes_nothing_but_the_counts(tiny_server: Running) -> None:
    prompt = "one two three one two three one two"
    off = tiny_server.chat(**ask(prompt, speculation="off", max_tokens=60)).json()
    on = tiny_server.chat(
        **ask(prompt, speculation={"drafter": "suffix", "k": 4}, max_tokens=60)
    ).json()
    assert on["choices"] == off["choices"]
    assert off["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert on["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_many_at_once_get_what_each_gets_alone(tiny_server: Running) -> None:
    llm = tiny_server.service.served.llm
    prompts = [f"{'word ' * i}{i}" for i in range(8)]
    fields = {"max_tokens": 100, "ignore_eos": True, "speculation": {"drafter": "suffix", "k": 4}}
    alone = [
        tiny_server.chat(**ask(prompt, **{**fields, "speculation": "off"})).json()["choices"]
        for prompt in prompts
    ]

    def streamed(prompt: str) -> list[dict[str, Any]]:
        answer = folded(events(tiny_server.chat(**ask(prompt, **fields, stream=True)))[:-1])
        return [{"index": 0, **answer}]

    wait_for(lambda: llm.metrics().running == 0)
    before = llm.metrics()
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(streamed, prompts))
    wait_for(lambda: llm.metrics().running == 0)
    after = llm.metrics()
    accepted = after.speculation["accepted"] - before.speculation["accepted"]
    assert accepted > 0
    # Alone, each would have had a step for every token that wasn't drafted.
    assert after.steps - before.steps < len(prompts) * 100 - accepted
    for one, other in zip(alone, together, strict=True):
        assert other[0]["message"]["content"] == one[0]["message"]["content"]
        assert other[0]["finish_reason"] == one[0]["finish_reason"]


def test_a_drawn_seed_gives_the_answer_again(tiny_server: Running) -> None:
    first = tiny_server.chat(**ask("abc", temperature=1)).json()
    again = tiny_server.chat(**ask("abc", temperature=1, seed=first["seed"])).json()
    assert again["choices"] == first["choices"]
    other = tiny_server.chat(**ask("abc", temperature=1, seed=first["seed"] + 1)).json()
    assert other["choices"] != first["choices"]


def test_response_log_and_metrics_agree(tiny_server: Running) -> None:
    names = {
        "num_spec_steps": "spec_decode_num_drafts_total",
        "num_draft_tokens": "spec_decode_num_draft_tokens_total",
        "num_accepted_draft_tokens": "spec_decode_num_accepted_tokens_total",
    }

    def counters() -> dict[str, float]:
        lines = tiny_server.client.get("/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        values = {name: float(value) for name, _, value in pairs}
        return values | {name.partition("{")[0]: value for name, value in values.items()}

    request = ask("one two one two", speculation={"drafter": "suffix", "k": 4}, max_tokens=60)
    tiny_server.chat(**request)  # remembered: the next one drafts from it
    wait_for(lambda: counters()["vllm:num_requests_running"] == 0)
    before = counters()
    answer = tiny_server.chat(**request)
    stats = answer.json()["metrics"]["speculative_decoding"]
    assert stats["num_accepted_draft_tokens"] > 0
    wait_for(lambda: counters()["vllm:num_requests_running"] == 0)
    after = counters()
    for name, counter in names.items():
        for prefix in ("vllm:", "llamacpp:"):
            assert after[prefix + counter] - before[prefix + counter] == stats[name]
    histogram = stats["acceptance_histogram"]
    for name in PER_POSITION:
        for i in range(len(histogram) - 1):
            counter = f'{name}_total{{model_name="tiny",position="{i}"}}'
            assert after[counter] - before.get(counter, 0) == sum(histogram[i + 1 :])
    rolled_back = "draftproof:spec_decode_num_rolled_back_tokens_total"
    assert after[rolled_back] - before[rolled_back] == stats["num_rolled_back"]
    usage = answer.json()["usage"]
    generated = "vllm:generation_tokens_total"
    assert after[generated] - before[generated] == usage["completion_tokens"]
    id = answer.headers["x-request-id"]
    wait_for(lambda: any(line.get("request") == id for line in tiny_server.log()))
    [line] = [line for line in tiny_server.log() if line.get("request") == id]
    tries, hits, rolls = (
        stats["num_spec_steps"],
        *(stats[name] for name in ("num_accepted_draft_tokens", "num_rolled_back")),
    )
    assert line["spec"].startswith(f"[SPEC] tries={tries} hits={hits} kv_rolls={rolls} ")
    assert line["completion_tokens"] == usage["completion_tokens"]


def test_a_prompt_over_the_context(tiny_server: Running) -> None:
    response = tiny_server.chat(**ask("word " * 600))
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 512
    assert error["n_prompt_tokens"] > 600
    assert str(error["n_prompt_tokens"]) in error["message"]


@pytest.mark.model("smollm2-135m")
def test_a_real_answer(smollm2_server: Running) -> None:
    answer = smollm2_server.chat(**ask("Write the word banana three times.")).json()
    assert "Banana, Banana, Banana" in answer["choices"][0]["message"]["content"]


def test_an_answer_that_goes_on(tiny_server: Running) -> None:
    llm = tiny_server.service.served.llm
    user = {"role": "user", "content": "abc"}
    prompt = "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\nand then"
    expected = llm.generate(prompt, SamplingParams(max_tokens=24)).text
    messages = [user, {"role": "assistant", "content": "and then"}]
    rest = tiny_server.chat(messages=messages, continue_final_message=True, **GREEDY).json()
    assert rest["choices"][0]["message"]["content"] == expected
    wrong = tiny_server.chat(messages=[user], continue_final_message=True)
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "continue_final_message"


def test_a_prefix_is_shared_within_a_tenant_only(tiny_server: Running) -> None:
    """Nobody can tell by a hit (or its time) what another tenant asked, nor draft from it."""
    prompt = "A long story that begins like this: " + "once upon a time " * 12
    request = ask(prompt, speculation={"drafter": "suffix", "k": 4})

    def asked_by(salt: str | None) -> tuple[int, int, list[Any]]:
        answer = tiny_server.chat(**request, cache_salt=salt).raise_for_status().json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        stats = answer["metrics"]["speculative_decoding"]
        return cached, stats["by_source"].get("store", {"drafted": 0})["drafted"], answer["choices"]

    first, second, other, again = map(asked_by, ("one", "one", "two", "one"))
    assert (first[0], first[1]) == (0, 0)
    assert second[0] >= 64
    assert second[1] > 0
    assert (other[0], other[1]) == (0, 0)
    assert again[0] >= 64
    assert first[2] == second[2] == other[2] == again[2]
