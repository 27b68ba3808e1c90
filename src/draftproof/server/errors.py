"""Errors as clients see them. Owns status codes, types and the shapes of the three protocols.

Nothing here echoes what a client sent beyond a short excerpt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from draftproof.errors import (
    ContextLengthError,
    DraftproofError,
    GrammarError,
    InvalidRequestError,
    OutOfMemoryError,
    QueueFullError,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """One refusal. param: the field that is wrong. extra: further members of the error object.
    headers: further response headers, lower case."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.type = type or _TYPES.get(status, "invalid_request_error")
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    def to_openai(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
                **self.extra,
            }
        }

    def to_anthropic(self, request_id: str) -> dict[str, Any]:
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
        error = {"type": kind, "message": self.message, **self.extra}
        return {"type": "error", "error": error, "request_id": request_id}

    def to_ollama(self) -> dict[str, Any]:
        return {"error": self.message}


def error_body(error: ApiError, path: str, request_id: str) -> dict[str, Any]:
    """The error in the shape of the protocol that `path` belongs to."""
    if path.startswith("/v1/messages"):
        return error.to_anthropic(request_id)
    if path.startswith("/api/"):
        return error.to_ollama()
    return error.to_openai()


def bad_field(param: str, message: str) -> ApiError:
    """A 400 about one field; the message starts with its name."""
    return ApiError(400, f"{param} {message}", param=param)


def loading() -> ApiError:
    return ApiError(
        503, "the model is still loading", code="model_loading", headers={"retry-after": "2"}
    )


def shutting_down() -> ApiError:
    return ApiError(
        503, "the server is shutting down", code="shutting_down", headers={"retry-after": "5"}
    )


def took_too_long(seconds: float) -> ApiError:
    return ApiError(
        504,
        f"the answer took longer than {seconds:g} s",
        code="request_timeout",
        headers={"x-should-retry": "false"},  # clients would send it twice more
    )


def not_finite() -> ApiError:
    return ApiError(
        500,
        "a value that is not finite appeared while computing: the answer ends before it",
        code="numeric_error",
        headers={"x-should-retry": "false"},
    )


def of_exception(
    error: BaseException,
    fields: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> ApiError:
    """What a client is told about an exception.

    fields: names that the client may have sent. renamed: our name of a parameter -> the client's.
    Messages of InvalidRequestError about a parameter begin with its name."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return ApiError(
            400,
            str(error),
            code="context_length_exceeded",
            type="exceed_context_size_error",
            extra={"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context},
        )
    if isinstance(error, QueueFullError):
        seconds = max(1, math.ceil(error.retry_after))
        return ApiError(429, str(error), code="queue_full", headers={"retry-after": str(seconds)})
    if isinstance(error, GrammarError):
        return ApiError(400, str(error)[:1000], param=(renamed or {}).get("grammar", "grammar"))
    if isinstance(error, InvalidRequestError):
        return _of_invalid_request(str(error), fields, renamed or {})
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, str(error), code="out_of_memory", headers={"retry-after": "5"})
    if isinstance(error, DraftproofError):
        return ApiError(500, str(error))
    return ApiError(500, "unexpected error: the server's log has it", code="internal_error")


def _of_invalid_request(
    message: str, fields: Collection[str], renamed: Mapping[str, str]
) -> ApiError:
    first, space, rest = message.partition(" ")
    name = re.match(r"\w*", first)[0]  # type: ignore[index]  # matches always
    if name in renamed:
        first = renamed[name] + first[len(name) :]
        message = first + space + rest
    elif name not in fields:
        return ApiError(400, message)
    return ApiError(400, message, param=first.rstrip(":"))
