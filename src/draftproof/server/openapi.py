"""/openapi.json: the published description of every endpoint, made of the wire types themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

_ERRORS = {
    400: "A field is wrong; `param` names it.",
    401: "No API key, or a wrong one.",
    403: "The server doesn't answer to this host name.",
    404: "Another model's name, or nothing at this path.",
    405: "Another method is needed.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The body isn't sent as JSON.",
    429: "The queue is full; Retry-After says when to try again.",
    500: "Our mistake.",
    503: "The model is loading, or the server is about to end.",
    504: "The answer took too long.",
}
_ERROR = {
    "type": "object",
    "description": "error: an object with message, type, param and code; below /api a string.",
    "properties": {"error": {}},
    "required": ["error"],
}


@dataclass(frozen=True)
class Endpoint:
    """type: of the body, None = GET. streams: the content type of a streamed answer."""

    path: str
    type: type[msgspec.Struct] | None = None
    streams: str = ""
    parameters: Sequence[str] = ()
    answer: str = "application/json"


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    types = [endpoint.type for endpoint in endpoints if endpoint.type is not None]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        method = "get" if endpoint.type is None else "post"
        schema = None if endpoint.type is None else by_type[endpoint.type]
        paths.setdefault(endpoint.path, {})[method] = _operation(endpoint, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Draftproof",
            "version": version,
            "description": "One model over HTTP, in the protocols of OpenAI, Anthropic and Ollama. "
            "Unknown fields are ignored; null is as good as absent.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(endpoint: Endpoint, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {endpoint.answer: {}}
    if endpoint.streams:
        content[endpoint.streams] = {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status, description in _ERRORS.items():
        responses[str(status)] = {"description": description, "content": error}
    operation: dict[str, Any] = {"responses": responses}
    if schema is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    if endpoint.parameters:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in endpoint.parameters
        ]
    return operation
