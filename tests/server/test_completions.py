"""/v1/completions and the endpoints that only look at the model."""

from __future__ import annotations

import pytest
from server_support import FakeLLM, Running, events

from draftproof.sampling import SamplingParams


def test_a_raw_prompt(running: Running, fake: FakeLLM) -> None:
    body = running.client.post("/v1/completions", json={"prompt": "abc"}).json()
    assert body["object"] == "text_completion"
    [choice] = body["choices"]
    assert choice["text"] == "Hello, world."
    assert choice["finish_reason"] == "stop"
    assert fake.asked[0]["prompt"] == [97, 98, 99]
    assert fake.asked[0]["sampling"].max_tokens == 16


def test_a_stream_folds_into_the_whole_answer(running: Running) -> None:
    fields = {"prompt": "abc", "echo": True, "max_tokens": 3}
    whole = running.client.post("/v1/completions", json=fields).json()["choices"][0]
    response = running.client.post("/v1/completions", json={**fields, "stream": True})
    *chunks, end = events(response)
    assert end == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    assert whole["text"] == "abcHello, wo"
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts(running: Running, stream: bool) -> None:
    fields = {"prompt": ["ab", "abcd", [1, 2, 3]], "stream": stream, "max_tokens": 2}
    fields["stream_options"] = {"include_usage": True}
    response = running.client.post("/v1/completions", json=fields)
    if stream:
        chunks = events(response)[:-1]
        texts = {0: "", 1: "", 2: ""}
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
        usage = chunks[-1]["usage"]
    else:
        texts = {choice["index"]: choice["text"] for choice in response.json()["choices"]}
        usage = response.json()["usage"]
    assert texts == {0: "Hello,", 1: "Hello,", 2: "Hello,"}
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 6)


def test_an_error_of_one_prompt_ends_all(running: Running, fake: FakeLLM) -> None:
    fake.fails = MemoryError("inside")
    response = running.client.post("/v1/completions", json={"prompt": ["a", "b"]})
    assert response.status_code == 500


def test_looking_at_the_model(tiny_server: Running) -> None:
    post = tiny_server.client.post
    tokens = post("/tokenize", json={"content": "héllo <|im_end|>"}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 512
    text = post("/detokenize", json={"tokens": tokens["tokens"]}).json()["content"]
    assert text == "héllo <|im_end|>"
    literal = post("/tokenize", json={"content": "<|im_end|>", "parse_special": False}).json()
    assert literal["count"] > 1
    pieces = post("/tokenize", json={"content": "é", "with_pieces": True}).json()["tokens"]
    assert all(isinstance(piece["piece"], (str, list)) for piece in pieces)
    messages = [{"role": "user", "content": "abc"}]
    prompt = post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt == "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"
    whole = post("/tokenize", json={"messages": messages}).json()
    assert whole["tokens"] == post("/tokenize", json={"content": prompt}).json()["tokens"]
    assert post("/detokenize", json={"tokens": [10**6]}).json()["error"]["param"] == "tokens"
    props = tiny_server.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert "im_start" in props["chat_template"]
    assert "/" not in props["model_path"]


def test_raw_text_of_a_real_model(tiny_server: Running) -> None:
    llm = tiny_server.service.served.llm
    fields = {"prompt": "abc <|im_end|>", "temperature": 0, "max_tokens": 8}
    text = tiny_server.client.post("/v1/completions", json=fields).json()["choices"][0]["text"]
    assert text == llm.generate("abc <|im_end|>", SamplingParams(max_tokens=8)).text
