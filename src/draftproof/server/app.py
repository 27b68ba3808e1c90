"""The ASGI application: which path does what, and what happens around every request.

Knows no field of a protocol and nothing of sockets.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.access import Access
from draftproof.server.body import read_json
from draftproof.server.errors import ApiError, error_body, of_exception
from draftproof.server.log import RequestRecord
from draftproof.server.metrics import CONTENT_TYPE as METRICS_TYPE
from draftproof.server.protocol.common import Fields, encode, of_client, ping_interval
from draftproof.server.protocol.openai_chat import ChatAnswer, ChatRequest, chat_job, renamed
from draftproof.server.service import Service
from draftproof.server.streams import Reply

RECORD = "draftproof.record"
FieldsT = TypeVar("FieldsT", bound=Fields)
Handler = Callable[[Request], Awaitable[ASGIApp]]


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


class Routes:
    """The handlers. Each takes a request and gives an ASGI response; errors are raised."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def table(self) -> list[Route]:
        def get(path: str, handler: Handler) -> Route:
            return Route(path, handler, methods=["GET"])

        def post(path: str, handler: Handler) -> Route:
            return Route(path, handler, methods=["POST"])

        return [
            get("/health", self.health),
            get("/v1/health", self.health),
            get("/metrics", self.metrics),
            get("/v1/models", self.models),
            get("/v1/models/{name:path}", self.model),
            post("/v1/chat/completions", self.chat),
        ]

    async def health(self, request: Request) -> Response:
        self._service.check_open()
        return json_response({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.text(), media_type=METRICS_TYPE)

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model_entry()]})

    async def model(self, request: Request) -> Response:
        self._service.served.check_model(request.path_params["name"])
        return json_response(self._model_entry())

    def _model_entry(self) -> dict[str, Any]:
        served = self._service.served
        info = served.info
        return {
            "id": served.config.name,
            "object": "model",
            "created": served.created,
            "owned_by": "draftproof",
            "max_model_len": info.context,
            "meta": {
                "n_ctx": info.context,
                "n_vocab": info.vocab_size,
                "n_params": info.parameters,
                "family": info.family,
                "quantization": info.quantization,
            },
        }

    async def chat(self, request: Request) -> ASGIApp:
        wire = await self._read(request, ChatRequest)
        served = self._service.served
        to_error = of_client(wire, renamed(wire))
        try:
            job = await chat_job(wire, served, _record(request).tenant)
            ping = ping_interval(wire)
        except Exception as error:
            raise to_error(error) from error
        return Reply(
            self._service,
            [job],
            ChatAnswer(wire, served, [job]),
            _record(request),
            stream=bool(wire.stream),
            ping_interval=ping,
            to_error=to_error,
        )

    async def _read(self, request: Request, type: type[FieldsT]) -> FieldsT:
        """The checked body of a request for an answer."""
        self._service.check_open()
        config = self._service.config
        wire = await read_json(request, type, config.max_body, config.body_timeout)
        self._service.served.check_model(wire.model)
        return wire


def _record(request: Request) -> RequestRecord:
    record: RequestRecord = request.scope[RECORD]
    return record


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
                record.fail(refusal, error)
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
