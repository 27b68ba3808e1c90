"""The ASGI application: what happens around every request, whatever its path.

Knows no field of a protocol and nothing of sockets.
"""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.access import Access
from draftproof.server.errors import ApiError, error_body, of_exception
from draftproof.server.log import RequestRecord
from draftproof.server.protocol.common import encode
from draftproof.server.routes import RECORD, Handler, Routes
from draftproof.server.service import Service


class App:
    """The whole application: access, routing, errors in the shape of the protocol, one line in the
    log."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._access = Access(service.config)
        self._routes = Routes(service).table()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return  # websockets: the server closes what isn't accepted
        record = RequestRecord(f"req-{secrets.token_hex(8)}", scope["method"], scope["path"])
        scope[RECORD] = record
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        extra = {"x-request-id": record.id, **self._access.cors(headers)}
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.status = message["status"]
                pairs = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in extra.items()]
                message = {**message, "headers": [*message.get("headers", ()), *pairs]}
            await send(message)

        try:
            response = await self._respond(scope, receive, headers, record)
            await response(scope, receive, send_with_headers)
        except Exception as error:
            refusal = of_exception(error)
            if record.outcome != "error":
                record.fail(refusal, error.__cause__ if isinstance(error, ApiError) else error)
            if not started:
                await self._refuse(refusal, scope, receive, send_with_headers, record)
        finally:
            self.service.metrics.count_response(record)
            self.service.log.request(record)

    async def _respond(
        self, scope: Scope, receive: Receive, headers: dict[str, str], record: RequestRecord
    ) -> ASGIApp:
        self._access.check_host(headers)
        if scope["method"] == "OPTIONS":
            return Response(status_code=204, headers=self._access.preflight(headers))
        record.tenant = self._access.tenant(scope["path"], headers)
        handler = self._find(scope)
        return await handler(Request(scope, receive))

    def _find(self, scope: Scope) -> Handler:
        allowed: set[str] = set()
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                return route.endpoint
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if allowed:
            raise ApiError(
                405,
                f"{scope['method']} isn't possible here, only {', '.join(sorted(allowed))}",
                headers={"allow": ", ".join(sorted(allowed))},
            )
        raise ApiError(404, f"there is nothing at {scope['path'][:100]}", code="unknown_url")

    async def _refuse(
        self, error: ApiError, scope: Scope, receive: Receive, send: Send, record: RequestRecord
    ) -> None:
        body = encode(error_body(error, scope["path"], record.id))
        headers = {**error.headers, "cache-control": "no-store"}
        if error.status in (408, 413):
            headers["connection"] = "close"  # the rest of the body isn't wanted
        response = Response(body, error.status, headers, media_type="application/json")
        await response(scope, receive, send)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
