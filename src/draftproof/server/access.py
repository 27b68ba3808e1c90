"""Who may ask: API keys, the Host header, pages of other origins.

Owns the decisions only. Knows nothing of routes or models. A browser is never trusted by itself:
the Host check stops a rebound DNS name, and a page of another origin gets nothing unless
`cors_origins` names it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
from collections.abc import Mapping

from draftproof.server.config import ServerConfig, tenant_of
from draftproof.server.errors import ApiError

PUBLIC_PATHS = frozenset({"/health", "/v1/health"})
# A browser understands one challenge a header line, so it gets the one that makes it ask for a key.
_CHALLENGE = {"www-authenticate": "Bearer"}
_CHALLENGE_OF_PAGES = {"www-authenticate": 'Basic realm="draftproof", charset="UTF-8"'}


class Access:
    """The checks of one server. Headers are given by lower-case name."""

    def __init__(self, config: ServerConfig) -> None:
        self._keys = tuple(key.encode() for key in config.api_keys)
        self._hosts = {"localhost", config.host.lower(), *map(str.lower, config.allowed_hosts)}
        self._any_host = "*" in config.allowed_hosts
        self._origins = {origin.rstrip("/").lower() for origin in config.cors_origins}

    def check_host(self, headers: Mapping[str, str]) -> None:
        """403 unless the Host is ours. An IP address always is: rebinding needs a name."""
        if self._any_host:
            return
        name = _host_name(headers.get("host", ""))
        if name in self._hosts or _is_address(name):
            return
        raise ApiError(
            403,
            f"this server doesn't answer to the host name {name[:100]!r}: "
            "start it with --allowed-host NAME if that is right",
            code="host_not_allowed",
        )

    def tenant(self, path: str, headers: Mapping[str, str]) -> str:
        """Whose request this is, "" without keys. Raises 401.

        The key comes as a Bearer token, as x-api-key, or as the password of Basic (so that a
        browser can ask for it). All keys are compared, in constant time."""
        if not self._keys or path in PUBLIC_PATHS:
            return ""
        given = _given_key(headers).encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if not any(matches):
            what = "wrong API key" if given else "no API key"
            raise ApiError(
                401,
                f"{what}: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'",
                code="invalid_api_key",
                headers=_CHALLENGE_OF_PAGES
                if "text/html" in headers.get("accept", "")
                else _CHALLENGE,
            )
        return tenant_of(given.decode())

    def cors(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Response headers for a page of another origin; none unless it is allowed."""
        origin = headers.get("origin", "")
        if not origin or not ("*" in self._origins or origin.lower() in self._origins):
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": "x-request-id",
            "vary": "Origin",
        }

    def preflight(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Further headers of the answer to OPTIONS: what an allowed page may send."""
        if not self.cors(headers):
            return {}
        wanted = headers.get("access-control-request-headers", "content-type")
        return {
            "access-control-allow-methods": "GET, POST, OPTIONS",
            "access-control-allow-headers": wanted,
            "access-control-max-age": "600",
        }


def _host_name(host: str) -> str:
    """The host without its port, lower case, IPv6 without brackets; as it is if it is no host."""
    host = host.strip().lower()
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^:@\[\]]*))(?::[0-9]*)?", host)
    if found is None:
        return host
    return found[1] or found[2].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _given_key(headers: Mapping[str, str]) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    value = value.strip()
    if kind.lower() == "bearer" and value:
        return value
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return headers.get("x-api-key", "")
