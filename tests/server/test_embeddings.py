"""/v1/embeddings, where the model can make them."""

from __future__ import annotations

import array
import base64
import threading
from concurrent.futures import CancelledError

import pytest
from server_support import Running, wait_for


def test_given_up(tiny_server: Running) -> None:
    llm = tiny_server.service.served.llm
    given_up = threading.Event()
    given_up.set()
    before = llm.metrics().prompt_tokens
    with pytest.raises(CancelledError):
        llm.embed([[1] * 500] * 40, given_up=given_up)
    wait_for(lambda: llm.metrics().running == llm.metrics().waiting == 0)
    assert llm.metrics().prompt_tokens - before < 40 * 500
    assert llm.embed("abc", given_up=threading.Event()) is not None


def test_embeddings(tiny_server: Running) -> None:
    llm, post = tiny_server.service.served.llm, tiny_server.client.post
    expected = [list(map(float, one.values)) for one in llm.embed(["abc", "d e f"])]
    body = post("/v1/embeddings", json={"input": ["abc", "d e f"]}).json()
    assert [one["embedding"] for one in body["data"]] == expected
    assert [one["index"] for one in body["data"]] == [0, 1]
    packed = post("/v1/embeddings", json={"input": "abc", "encoding_format": "base64"}).json()
    values = array.array("f", base64.b64decode(packed["data"][0]["embedding"]))
    assert values == array.array("f", expected[0])
    assert packed["usage"]["prompt_tokens"] > 0
    for fields, param in (
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [{}]}, "input[0]"),
        ({"input": "a", "encoding_format": "x"}, "encoding_format"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
    ):
        error = post("/v1/embeddings", json=fields).json()["error"]
        assert error["param"] == param
