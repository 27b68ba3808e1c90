"""Asks a running server (`draftproof serve`) with OpenAI's client: a streamed answer, and what
speculation did for it."""

from __future__ import annotations

import os

from openai import OpenAI

url = os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1")
client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "any"))
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Count from one to ten, one number per line."}],
    max_tokens=64,
    temperature=0,
    stream=True,
    extra_body={"speculation": {"drafter": "auto"}},
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
    last = chunk
print("\n", (last.model_extra or {})["metrics"]["speculative_decoding"])
