"""/v1/embeddings: the mean of the last hidden states, of a model that was made to generate."""

from __future__ import annotations

import array
import asyncio
import base64
import sys
import threading
from typing import Any

import msgspec

from draftproof.server.errors import bad_field
from draftproof.server.protocol.openai_completions import checked_prompts
from draftproof.server.served import Served


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


async def embed(request: EmbeddingRequest, served: Served) -> dict[str, Any]:
    """Raises InvalidRequestError and ApiError."""
    inputs = checked_prompts("input", request.input)
    if "" in inputs:
        raise bad_field("input", "must not be empty, nor hold an empty text")
    if request.encoding_format not in (None, "float", "base64"):
        raise bad_field("encoding_format", "must be float or base64")
    given_up = threading.Event()
    try:
        found = await asyncio.to_thread(served.llm.embed, inputs, given_up=given_up)
    finally:
        given_up.set()  # a thread can't be cancelled
    width = len(found[0].values)
    if request.dimensions not in (None, width):
        raise bad_field("dimensions", f"can only be {width} with this model")
    tokens = sum(one.tokens for one in found)
    is_base64 = request.encoding_format == "base64"
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": i,
                "embedding": _base64(one.values) if is_base64 else [float(v) for v in one.values],
            }
            for i, one in enumerate(found)
        ],
        "model": served.config.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _base64(values: Any) -> str:
    """float32, little-endian."""
    data = array.array("f", values)
    if sys.byteorder == "big":
        data.byteswap()
    return base64.b64encode(data.tobytes()).decode()
