"""Servers for tests: the real one, on a real socket, in a thread of this process.

In front of a real LLM, or of one that recites: `FakeLLM` has the names that the server uses."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import httpx2

from draftproof.config import SpeculativeConfig
from draftproof.drafting.stats import SpeculationStats
from draftproof.errors import InvalidRequestError
from draftproof.outputs import (
    Completion,
    Delta,
    Embedding,
    EngineInfo,
    EngineMetrics,
    ModelInfo,
    Progress,
    Timings,
    Usage,
)
from draftproof.sampling import SamplingParams
from draftproof.server.config import ServerConfig
from draftproof.server.log import Log
from draftproof.server.run import Server, open_socket
from draftproof.server.service import Service

HERMES = "{% if tools %}<tool_call>{% endif %}"
XML = "{% if tools %}<tool_call><function=x><parameter=y>{% endif %}"
THINKS = "<think></think>"


@dataclass
class FakeLLM:
    """Recites `text` in pieces of `size` characters, a token each (its id: the first character's
    code point), `pause` seconds apart; records what it was asked. fails: raised instead."""

    text: str = "Hello, world."
    size: int = 3
    pause: float = 0.0
    template: str = "{{ messages }}"
    opens_thoughts: bool = False
    fails: BaseException | None = None
    prefill_rows: int = 0
    defaults: dict[str, Any] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    ended: int = 0

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name="fake",
            path="fake.gguf",
            family="fake",
            context=1000,
            vocab_size=1 << 16,
            parameters=1,
            quantization="Q8_0",
            kv_type="f16",
            fingerprint="dp-fake",
            chat_template=self.template,
            generation_config=self.defaults,
        )

    verify_cost = None

    def close(self) -> None:
        pass

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def token_bytes(self, id: int) -> bytes:
        if not 0 <= id < 0xD800:
            raise InvalidRequestError(f"token id {id} is not in the vocabulary")
        return chr(id).encode()

    def embed(self, inputs: Sequence[Any], given_up: threading.Event) -> list[Embedding]:
        if given_up.wait(self.pause):
            self.cancelled += 1
            raise CancelledError
        self.ended += 1
        return [Embedding((0.6, 0.8), len(text)) for text in inputs]

    def render(self, messages: Any, tools: Any = None, **template: Any) -> str:
        return json.dumps([messages, tools, template], default=list)

    def encode_chat(self, messages: Any, tools: Any = None, **template: Any) -> list[int]:
        self.asked.append({"messages": messages, "tools": tools, "template": template})
        return self.encode("prompt<think>\n" if self.opens_thoughts else "prompt")

    def metrics(self) -> EngineMetrics:
        counts = dict.fromkeys(("tries", "drafted", "accepted", "rejected", "discarded"), 0)
        values: dict[str, Any] = {field.name: 0 for field in fields(EngineMetrics)}
        values |= {"speculation": counts, "accepted_per_position": [], "kv_pages_total": 8}
        return EngineMetrics(**values)

    async def astream(
        self,
        prompt: Any,
        sampling: SamplingParams,
        speculation: SpeculativeConfig,
        **more: Any,
    ) -> AsyncGenerator[Delta, None]:
        self.asked.append(
            {"prompt": prompt, "sampling": sampling, "speculation": speculation, **more}
        )
        try:
            if self.fails is not None:
                raise self.fails
            for row in range(self.prefill_rows):
                await asyncio.sleep(self.pause)
                if more.get("progress"):
                    yield Delta("", (), progress=Progress(row + 1, 0, self.prefill_rows))
            pieces = [self.text[i : i + self.size] for i in range(0, len(self.text), self.size)]
            kept = pieces[: sampling.max_tokens]
            for piece in kept:
                await asyncio.sleep(self.pause)
                yield Delta(piece, (ord(piece[0]),))
            reason = "length" if len(kept) < len(pieces) else "stop"
            yield Delta("", (), completion=self._completion(prompt, kept, reason, speculation))
            self.ended += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    def _completion(
        self, prompt: Any, pieces: list[str], reason: Any, speculation: SpeculativeConfig
    ) -> Completion:
        stats = SpeculationStats.of(speculation)
        if speculation.drafter != "off":
            stats.count_try(3, 2, 3, "suffix")
            stats.count_try(3, 0, 1, "suffix")
        return Completion(
            text="".join(pieces),
            token_ids=tuple(ord(piece[0]) for piece in pieces),
            finish_reason=reason,
            usage=Usage(len(prompt), len(pieces)),
            timings=Timings(1.0, 2.0, 3.0, 4.0, 5.0),
            speculation=stats.to_dict(),
            spec_line=stats.line(),
            engine=EngineInfo("scalar", 1, 1, 1, "dp-fake", 42),
        )


@dataclass
class Running:
    """A server that runs: a client that is pointed at it, its service, what it logged."""

    client: httpx2.Client
    url: str
    service: Service
    server: Server
    output: io.StringIO

    def chat(self, **fields: Any) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.getvalue().splitlines()]


@contextmanager
def serving(llm: Any, **settings: Any) -> Iterator[Running]:
    """A server in front of `llm` (or of what `llm` gives, if it is a function). settings: those of
    ServerConfig."""
    defaults = {"names": ("fake",), "port": 0, "shutdown_grace": 0.2, "log_json": True}
    config = ServerConfig(**{**defaults, **settings})
    output = io.StringIO()
    service = Service(config, Log(config.log_json, output))
    server = Server(service, llm if callable(llm) else lambda: llm)
    opened = open_socket(config)
    url = f"http://127.0.0.1:{opened.getsockname()[1]}"
    thread = threading.Thread(target=lambda: server.run(sockets=[opened]))
    thread.start()
    try:
        with httpx2.Client(base_url=url, timeout=20, trust_env=False) as client:
            if not callable(llm):
                wait_for(lambda: client.get("/health").status_code == 200)
            yield Running(client, url, service, server, output)
    finally:
        server.should_exit = True
        thread.join(20)
        opened.close()
    assert not thread.is_alive()


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    """Until it holds; fails if it doesn't."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it didn't come about"
        time.sleep(0.005)


def events(response: httpx2.Response) -> list[Any]:
    """The data of a stream's events, the end mark as a string."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def folded(chunks: Sequence[Mapping[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that a client makes of the chunks of a chat stream, and its finish_reason."""
    message: dict[str, Any] = {}
    finish = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            finish = choice["finish_reason"] or finish
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    for call in value:
                        call = {k: v for k, v in call.items() if k not in ("index", "id")}
                        message.setdefault(key, []).append(call)
                elif key != "role":
                    message[key] = message.get(key, "") + value
    return {"message": message, "finish_reason": finish}
