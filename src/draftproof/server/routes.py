"""Which path does what: reads a request, has a protocol make jobs of it, replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from draftproof.server.body import read_json
from draftproof.server.jobs import Job
from draftproof.server.metrics import CONTENT_TYPE as METRICS_TYPE
from draftproof.server.openapi import Endpoint, document
from draftproof.server.page import page_routes
from draftproof.server.protocol import (
    anthropic,
    embeddings,
    native,
    ollama,
    openai_chat,
    openai_completions,
    responses,
)
from draftproof.server.protocol.common import encode, of_client, ping_interval
from draftproof.server.served import Served
from draftproof.server.service import Service
from draftproof.server.streams import Encoder, Reply

RECORD = "draftproof.record"
Handler = Callable[[Request], Awaitable[ASGIApp]]
StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass(frozen=True)
class Protocol:
    """An endpoint that gives answers. type: of the body. jobs: of (body, served, tenant).
    encoder: of (body, served, jobs). renamed: our parameter names -> those of this body.
    streams: unless the body says otherwise."""

    path: str
    type: type[Any]
    jobs: Callable[[Any, Served, str], Awaitable[Sequence[Job]]]
    encoder: Callable[[Any, Served, Sequence[Job]], Encoder]
    renamed: Callable[[Any], Mapping[str, str]] = lambda body: {}
    streams: bool = False
    stream_type: str = "text/event-stream"


PROTOCOLS = (
    Protocol(
        "/v1/chat/completions",
        openai_chat.ChatRequest,
        openai_chat.chat_jobs,
        openai_chat.ChatAnswer,
        openai_chat.renamed,
    ),
    Protocol(
        "/v1/completions",
        openai_completions.CompletionRequest,
        openai_completions.completion_jobs,
        openai_completions.CompletionAnswer,
    ),
    Protocol(
        "/v1/responses",
        responses.ResponsesRequest,
        responses.response_jobs,
        responses.ResponseAnswer,
        responses.renamed,
    ),
    Protocol(
        "/v1/messages",
        anthropic.MessagesRequest,
        anthropic.message_jobs,
        anthropic.MessageAnswer,
        anthropic.renamed,
    ),
    Protocol(
        "/api/chat",
        ollama.OllamaChat,
        ollama.chat_jobs,
        ollama.OllamaAnswer,
        ollama.renamed,
        streams=True,
        stream_type="application/x-ndjson",
    ),
    Protocol(
        "/api/generate",
        ollama.OllamaGenerate,
        ollama.generate_jobs,
        ollama.OllamaAnswer,
        ollama.renamed,
        streams=True,
        stream_type="application/x-ndjson",
    ),
)


LOOKS: tuple[tuple[str, type[Any], Callable[[Any, Served], Awaitable[Any]]], ...] = (
    ("/tokenize", native.TokenizeRequest, native.tokenize),
    ("/detokenize", native.DetokenizeRequest, native.detokenize),
    ("/apply-template", native.TemplateRequest, native.apply_template),
    ("/v1/messages/count_tokens", anthropic.MessagesRequest, anthropic.count_tokens),
    ("/v1/embeddings", embeddings.EmbeddingRequest, embeddings.embed),
    ("/api/show", ollama.ShowRequest, ollama.show),
)
GETS = ("/health", "/v1/models", "/props", "/api/tags", "/api/version", "/openapi.json")


def description() -> dict[str, Any]:
    """The OpenAPI document of what is here."""
    endpoints = [Endpoint(path) for path in GETS]
    endpoints.append(Endpoint("/metrics", answer=METRICS_TYPE))
    endpoints.append(Endpoint("/v1/models/{name}", parameters=("name",)))
    endpoints += [Endpoint(path, type) for path, type, _ in LOOKS]
    for protocol in PROTOCOLS:
        endpoints.append(Endpoint(protocol.path, protocol.type, protocol.stream_type))
    return document(endpoints, native.version())


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
            get("/props", self.props),
            get("/v1/draftproof/profile", self.profile),
            get("/v1/models", self.models),
            get("/v1/models/{name:path}", self.model),
            *(post(path, self._looks(type, look)) for path, type, look in LOOKS),
            get("/openapi.json", self.openapi),
            get("/api/tags", self.tags),
            get("/api/version", self.version),
            *(post(protocol.path, self._answers(protocol)) for protocol in PROTOCOLS),
            *page_routes(),
        ]

    async def openapi(self, request: Request) -> Response:
        return json_response(description())

    async def health(self, request: Request) -> Response:
        self._service.check_open()
        return json_response({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.text(), media_type=METRICS_TYPE)

    async def props(self, request: Request) -> Response:
        return json_response(native.props(self._service.served))

    async def profile(self, request: Request) -> Response:
        return json_response(await self._service.served.profile())

    async def tags(self, request: Request) -> Response:
        return json_response(ollama.tags(self._service.served))

    async def version(self, request: Request) -> Response:
        return json_response({"version": native.version()})

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._service.served.entry()]})

    async def model(self, request: Request) -> Response:
        self._service.served.check_model(request.path_params["name"])
        return json_response(self._service.served.entry())

    def _looks(
        self, type: type[StructT], look: Callable[[StructT, Served], Awaitable[Any]]
    ) -> Handler:
        """A handler that generates nothing."""

        async def handler(request: Request) -> ASGIApp:
            wire = await self._read(request, type)
            try:
                looked = look(wire, self._service.served)
                return json_response(await _while_connected(request, looked))
            except ClientDisconnect:
                request.scope[RECORD].outcome = "cancelled"
                return _no_response
            except Exception as error:
                raise of_client(wire)(error) from error

        return handler

    def _answers(self, protocol: Protocol) -> Handler:
        async def handler(request: Request) -> ASGIApp:
            wire = await self._read(request, protocol.type)
            served, record = self._service.served, request.scope[RECORD]
            to_error = of_client(wire, protocol.renamed(wire))
            try:
                jobs = await protocol.jobs(wire, served, record.tenant)
                encoder = protocol.encoder(wire, served, jobs)
                ping = ping_interval(wire)
            except Exception as error:
                raise to_error(error) from error
            stream = protocol.streams if wire.stream is None else wire.stream
            return Reply(
                self._service,
                jobs,
                encoder,
                record,
                stream=stream,
                ping_interval=ping,
                to_error=to_error,
            )

        return handler

    async def _read(self, request: Request, type: type[StructT]) -> StructT:
        """The checked body, which names our model or none."""
        self._service.check_open()
        config = self._service.config
        wire = await read_json(request, type, config.max_body, config.body_timeout)
        self._service.served.check_model(getattr(wire, "model", None))
        return wire


async def _while_connected(request: Request, work: Awaitable[Any]) -> Any:
    """What the work gives. Cancels it and raises ClientDisconnect once the client has gone away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = (asyncio.ensure_future(work), asyncio.ensure_future(gone()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _no_response(scope: Scope, receive: Receive, send: Send) -> None:
    """Nobody is there to read one."""
