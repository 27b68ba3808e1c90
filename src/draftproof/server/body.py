"""Request bodies: bytes within limits, JSON within limits, wire types; every mistake names a field.

Knows nothing of what the types mean.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from draftproof.server.errors import ApiError

MAX_DEPTH = 64
MAX_VALUES = 1_000_000  # members and elements of one body, all levels together
_IN_THREAD = 256 << 10  # bytes from which parsing would hold up the event loop

T = TypeVar("T")


async def read_json(request: Request, type: type[T], max_body: int, timeout: float) -> T:
    """The body as `type`. Raises ApiError: 408, 413, 415, or 400 that names the field."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        # Also what keeps other sites' forms out: a browser doesn't send JSON without asking.
        raise ApiError(415, "send the body as content-type: application/json")
    try:
        data = await asyncio.wait_for(_read(request, max_body), timeout)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body didn't arrive within {timeout:g} s") from None
    if len(data) > _IN_THREAD:
        return await asyncio.to_thread(parse, data, type)
    return parse(data, type)


async def _read(request: Request, max_body: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {max_body} bytes", code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_body:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_body:
                raise too_large
            chunks.append(chunk)
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete") from None
    return b"".join(chunks)


def parse(data: bytes, type: type[T]) -> T:
    """JSON bytes as `type`. Raises ApiError 400."""
    if not data.strip():
        raise ApiError(400, "the body is empty")
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise ApiError(400, f"the body is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:  # msgspec's and UnicodeDecodeError
        raise ApiError(400, f"the body is not valid JSON: {str(error)[:200]}") from None
    _check_size(value)
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        raise _of_validation(str(error)) from None
    except (OverflowError, RecursionError, UnicodeError) as error:
        raise ApiError(400, f"the body holds a value out of range: {str(error)[:200]}") from None


def _check_size(value: Any) -> None:
    """Depth, number of values, finite numbers, strings that are text."""
    level, depth, count = [value], 0, 0
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise ApiError(400, "the body holds a number that is not finite")
        count += len(below)
        depth += 1
        if depth > MAX_DEPTH and below:
            raise ApiError(400, f"the body is nested more than {MAX_DEPTH} deep")
        if count > MAX_VALUES:
            raise ApiError(400, f"the body holds more than {MAX_VALUES} values")
        level = below


def _of_validation(message: str) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.max_tokens`"."""
    what, _, place = message.partition(" - at ")
    path = re.sub(r"^\$\.?", "", place.strip("`"))
    missing = re.fullmatch(r"Object missing required field `(\w+)`", what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return ApiError(400, f"{path} is required", param=path)
    if not path:
        return ApiError(400, f"the body must be an object: {what}" if "object" in what else what)
    return ApiError(400, f"{path}: {what[0].lower()}{what[1:]}", param=path)
