"""Asks a running server (`draftproof serve`) with Anthropic's client."""

from __future__ import annotations

import os

from anthropic import Anthropic

url = os.environ.get("ANTHROPIC_BASE_URL", "http://localhost:8000")
client = Anthropic(base_url=url, api_key=os.environ.get("ANTHROPIC_API_KEY", "any"))
with client.messages.stream(
    model=client.models.list().data[0].id,
    max_tokens=64,
    system="You answer in one sentence.",
    messages=[{"role": "user", "content": "Why is the sky blue?"}],
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    print("\n", stream.get_final_message().usage)
