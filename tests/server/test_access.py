"""Who may ask: keys, Host, origins; and that two keys don't see each other."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from server_support import FakeLLM, Running, serving

from draftproof.errors import InvalidRequestError
from draftproof.server.config import ServerConfig

PATHS = (
    "/metrics",
    "/props",
    "/v1/models",
    "/v1/models/fake",
    "/v1/chat/completions",
    "/tokenize",
    "/nothing",
)


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(FakeLLM(), api_keys=("first-key", "second-key")) as running:
        yield running


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer first-key-and-more"},
        {"authorization": "Basic !!!"},
        {"x-api-key": "FIRST-KEY"},
        {"x-api-key": "kéy"},
    ],
)
def test_without_a_right_key(locked: Running, path: str, headers: dict[str, str]) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    response = locked.client.get(path, headers=encoded)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    page = locked.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.headers["www-authenticate"].startswith("Basic realm=")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer  second-key"},
        {"x-api-key": "second-key"},
        {"authorization": "Basic " + base64.b64encode(b"me:first-key").decode()},
    ],
)
def test_with_a_key(locked: Running, headers: dict[str, str]) -> None:
    assert locked.client.get("/v1/models", headers=headers).status_code == 200


def test_health_is_for_everybody(locked: Running) -> None:
    assert locked.client.get("/health").json() == {"status": "ok"}


def test_two_keys_are_two_tenants() -> None:
    fake = FakeLLM()
    with serving(fake, api_keys=("first-key", "second-key")) as running:
        for key, salt in (("first-key", None), ("second-key", None), ("first-key", "mine")):
            body = {"messages": [{"role": "user", "content": "Hi"}], "cache_salt": salt}
            headers = {"x-api-key": key}
            running.client.post("/v1/chat/completions", json=body, headers=headers)
    asked = [one for one in fake.asked if "speculation" in one]
    scopes = [one["speculation"].scope for one in asked]
    assert len({*scopes}) == 3
    assert all(scopes)
    assert [one["cache_salt"] for one in asked] == scopes
    assert not any("key" in scope for scope in scopes)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:80"])
def test_our_own_names(running: Running, host: str) -> None:
    assert running.client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1:80@evil.example",
        "127.0.0.1@evil.example",
        "[::1",
        "[::1]evil.example",
        "localhost:80:80",
    ],
)
def test_a_rebound_name(running: Running, host: str) -> None:
    response = running.client.get("/v1/models", headers={"host": host})
    assert response.status_code == 403
    assert "--allowed-host" in response.json()["error"]["message"]


def test_names_that_are_allowed() -> None:
    with serving(FakeLLM(), allowed_hosts=("Model.example",)) as running:
        for host, status in (("model.EXAMPLE:80", 200), ("other.example", 403)):
            answer = running.client.get("/health", headers={"host": host})
            assert answer.status_code == status
    with serving(FakeLLM(), allowed_hosts=("*",)) as running:
        assert running.client.get("/health", headers={"host": "any"}).status_code == 200


def test_pages_of_other_origins() -> None:
    origin = {"origin": "https://page.example", "access-control-request-method": "POST"}
    allow = "access-control-allow-origin"
    with serving(FakeLLM()) as running:
        for answer in (
            running.client.options("/v1/chat/completions", headers=origin),
            running.client.get("/v1/models", headers=origin),
        ):
            assert allow not in answer.headers
    with serving(FakeLLM(), cors_origins=("https://page.example",), api_keys=("k",)) as running:
        answer = running.client.options("/v1/chat/completions", headers=origin)
        assert answer.status_code == 204
        assert answer.headers[allow] == "https://page.example"
        assert running.client.get("/v1/models", headers=origin).headers[allow]  # also a 401
        other = {**origin, "origin": "https://evil.example"}
        assert allow not in running.client.options("/v1/models", headers=other).headers


def test_keys_stay_out_of_log_and_metrics(locked: Running) -> None:
    locked.client.get("/metrics", headers={"x-api-key": "first-key"})
    locked.client.get("/nothing?api_key=first-key", headers={"x-api-key": "first-key"})
    text = locked.client.get("/metrics", headers={"x-api-key": "first-key"}).text
    assert "first-key" not in text + locked.output.getvalue()


@pytest.mark.parametrize(
    "settings", [{"port": 70000}, {"names": ()}, {"api_keys": ("a b",)}, {"max_body": 0}]
)
def test_a_wrong_configuration(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        ServerConfig(**settings)  # type: ignore[arg-type]
