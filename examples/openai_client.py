"""OpenAI's client against `draftproof serve`: python examples/openai_client.py

OPENAI_BASE_URL says where the server is, if not at port 8000 of this machine.
"""

import os

from openai import OpenAI

url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
with OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count from 1 to 9."}],
        max_tokens=40,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
    print()
