"""What a server is told at its start, checked at the door."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from draftproof.config import check_int, check_real
from draftproof.errors import InvalidRequestError

DEFAULT_PORT = 8000


@dataclass(frozen=True)
class ServerConfig:
    """Who may ask, and how much.

    names: what clients may call the model; the first is what it calls itself, "*" allows any.
    api_keys: empty = everybody. allowed_hosts: names in the Host header besides localhost, the
    bound host and IP addresses; "*" = any. cors_origins: origins of foreign web pages that may
    ask; "*" = any. max_body: bytes. request_timeout, shutdown_grace, body_timeout, ping_interval:
    seconds; ping_interval 0 = no pings. chat_template: source of a template instead of the
    model's own. allow_templates: whether requests may bring one. log_json: one JSON object per
    line. Raises InvalidRequestError that names the field.
    """

    names: tuple[str, ...] = ("model",)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body: int = 32 << 20
    max_choices: int = 16
    request_timeout: float = 3600.0
    shutdown_grace: float = 10.0
    body_timeout: float = 60.0
    ping_interval: float = 15.0
    chat_template: str | None = None
    allow_templates: bool = False
    log_json: bool = False

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise InvalidRequestError("alias must be a name")
        check_int("port", self.port, 0, 65535)
        check_int("max_body", self.max_body, 1 << 10, 1 << 32)
        check_int("max_choices", self.max_choices, 1, 1024)
        check_real("request_timeout", self.request_timeout, 1.0, 1e6)
        check_real("shutdown_grace", self.shutdown_grace, 0.0, 1e6)
        check_real("body_timeout", self.body_timeout, 0.1, 1e6)
        check_real("ping_interval", self.ping_interval, 0.0, 1e6)
        for key in self.api_keys:
            if not key.isascii() or not key.isprintable() or " " in key or not key:
                raise InvalidRequestError("api_key must be printable ASCII without spaces")

    @property
    def name(self) -> str:
        return self.names[0]


def tenant_of(key: str) -> str:
    """An opaque name for the owner of a key; it doesn't give the key away."""
    return hashlib.sha256(b"draftproof tenant\0" + key.encode()).hexdigest()[:24]
