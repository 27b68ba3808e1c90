"""What HTTP costs, and whether the server holds under a crowd that misbehaves.

    python benchmarks/serve_load.py speed [MODEL]     tokens/s and first token, HTTP against Python
    python benchmarks/serve_load.py soak [MODEL] --seconds 300 --clients 50

speed: one LLM, asked in turns through the Python API and through a server in the same process,
whose client is a process of its own that sleeps from the first token to the last. Speculation
is off: every token is an event, the worst case. soak: a server process; most clients behave, some
leave, read slowly or send nonsense. Every answer to a client that behaves is compared with what the
same request gets alone. Ends with 1 if one differs or fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

PROMPTS = [
    "Count from one to twenty.",
    "Write three sentences about the sea.",
    "List five colours, one per line, and repeat the list.",
    "What is a bicycle made of?",
    'Repeat after me: "The harbour wakes before the town does."',
    "Write a short poem about rain.",
]


def body_of(prompt: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "temperature": 0, "stream": True, **fields}


def request_of(data: bytes) -> bytes:
    """The bytes of a chat request over a connection of its own."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data) + data
    )


@dataclass
class Answer:
    """status 0: the connection ended early. first: seconds to the first piece of text."""

    status: int = 0
    text: str = ""
    tokens: int = 0
    first: float = 0.0
    complete: bool = False


async def ask(port: int, body: Any, *, leave_after: float = 0.0, pause: float = 0.0) -> Answer:
    """One request over a connection of its own. leave_after: seconds until we hang up.
    pause: seconds that we dawdle after every read."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer, begun = Answer(), time.perf_counter()
    try:
        writer.write(request_of(data))
        await writer.drain()
        await asyncio.wait_for(
            _read(reader, answer, begun, pause), leave_after if leave_after else None
        )
    except (asyncio.TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer, begun: float, pause: float) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    answer.status = int(head.split(b" ", 2)[1])
    if answer.status != 200:
        await reader.read()
        return
    async for line in reader:
        if pause:
            await asyncio.sleep(pause)
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            answer.complete = True
            return
        event = json.loads(line[6:])
        for choice in event.get("choices", ()):
            text = choice["delta"].get("content")
            if text and not answer.first:
                answer.first = time.perf_counter() - begun
            answer.text += text or ""
        if event.get("usage"):
            answer.tokens = event["usage"]["completion_tokens"]


# --- speed ---------------------------------------------------------------------------------------

USAGE = {"stream_options": {"include_usage": True}}
PLAIN = {"speculation": "off", "ignore_eos": True}


def many_over_http(port: int, streams: int, tokens: int) -> dict[str, float]:
    """A client that costs this machine next to nothing, as one elsewhere would: it sleeps from the
    first token to the end."""
    reads: list[list[tuple[float, bytes]]] = [[] for _ in range(streams)]

    def one(i: int) -> None:
        prompt = PROMPTS[i % len(PROMPTS)]
        data = json.dumps(body_of(prompt, max_tokens=tokens, **USAGE, **PLAIN)).encode()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            connection.sendall(request_of(data))
            while received := connection.recv(1 << 20):
                reads[i].append((time.perf_counter(), received))
                if b'"delta"' in received:  # the rest in one go: nobody wakes us until the end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 19)

    threads = [threading.Thread(target=one, args=[i]) for i in range(streams)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    firsts = [next(at for at, data in one if b'"delta"' in data) - begun for one in reads]
    texts = [b"".join(data for _, data in one) for one in reads]
    counts = [re.findall(rb'"completion_tokens":(\d+)', text) for text in texts]
    total = sum(int(found[-1]) for found in counts)
    return {"tokens": total, "seconds": seconds, "first": statistics.median(firsts)}


async def many_in_python(llm: Any, streams: int, tokens: int) -> dict[str, float]:
    from draftproof import SamplingParams, SpeculativeConfig

    begun = time.perf_counter()
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)

    async def one(prompt: str) -> tuple[int, float]:
        first, count = 0.0, 0
        messages = [{"role": "user", "content": prompt}]
        async for delta in llm.astream(messages, sampling, SpeculativeConfig(drafter="off")):
            if delta.text and not first:
                first = time.perf_counter() - begun
            count += len(delta.token_ids)
        return count, first

    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(streams)]
    results = await asyncio.gather(*map(one, prompts))
    seconds = time.perf_counter() - begun
    first = statistics.median(first for _, first in results)
    return {"tokens": sum(count for count, _ in results), "seconds": seconds, "first": first}


def measure_speed(model: str, rounds: int, tokens: int) -> None:
    from draftproof import LLM
    from draftproof.server.config import ServerConfig
    from draftproof.server.log import Log
    from draftproof.server.run import Server, open_socket
    from draftproof.server.service import Service

    config = ServerConfig(port=0)
    with LLM(model, prefix_cache=False) as llm:
        service = Service(config, Log(False, open(os.devnull, "w")))  # noqa: SIM115
        server, opened = Server(service, lambda: llm), open_socket(config)
        port = opened.getsockname()[1]
        thread = threading.Thread(target=lambda: server.run(sockets=[opened]))
        thread.start()
        while not service.is_ready:
            time.sleep(0.05)
        try:
            for streams in (1, 8):
                _compare(llm, port, streams, rounds, tokens)
        finally:
            server.should_exit = True
            thread.join()


def _compare(llm: Any, port: int, streams: int, rounds: int, tokens: int) -> None:
    """Python and HTTP in turns; the first turn of each isn't counted."""
    speeds: dict[str, list[float]] = {"python": [], "http": []}
    firsts: dict[str, list[float]] = {"python": [], "http": []}
    for turn in range(rounds + 1):
        client = [sys.executable, __file__, "client", str(port), str(streams), str(tokens)]
        results = {
            "python": asyncio.run(many_in_python(llm, streams, tokens)),
            "http": json.loads(subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout),
        }
        for name, result in results.items():
            if turn:
                speeds[name].append(result["tokens"] / result["seconds"])
                firsts[name].append(1000 * result["first"])
    python, http = (statistics.median(speeds[name]) for name in ("python", "http"))
    turns = [h / p for h, p in zip(speeds["http"], speeds["python"], strict=True)]
    later = statistics.median(h - p for h, p in zip(firsts["http"], firsts["python"], strict=True))
    print(
        f"{streams} stream(s): Python {python:.1f} tokens/s, HTTP {http:.1f} tokens/s, "
        f"{100 * (statistics.median(turns) - 1):+.1f} % (median of {rounds} turns); "
        f"first token {statistics.median(firsts['python']):.1f} ms, over HTTP {later:+.1f} ms"
    )


# --- soak ----------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What came of the requests, by the kind of client."""

    good: int = 0
    differed: int = 0
    failed: int = 0
    busy: int = 0
    left: int = 0
    slow: int = 0
    refused: int = 0
    not_refused: int = 0
    memory: list[int] = field(default_factory=list)


def rss(pid: int) -> int:
    """Resident memory of a process, bytes."""
    with open(f"/proc/{pid}/status") as status:
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read())
    return int(found[1]) * 1024 if found else 0


NONSENSE: list[Any] = [
    b"{",
    b"\xff" * 100,
    b"[" * 50_000,
    {"messages": "no"},
    {"messages": [{"role": "user", "content": "x"}], "temperature": -3},
    {"messages": [{"role": "user", "content": "word " * 20_000}]},
    {"messages": [{"role": "user", "content": "x"}], "n": 10**9},
]


async def client(port: int, end: float, seed: int, alone: dict[str, str], tally: Tally) -> None:
    """One of the crowd: mostly good, now and then not."""
    dice = random.Random(seed)
    while time.monotonic() < end:
        prompt = dice.choice(PROMPTS)
        body = body_of(prompt, max_tokens=32)
        kind = dice.random()
        if kind < 0.15:
            await ask(port, {**body, "max_tokens": 400}, leave_after=dice.uniform(0.01, 1.5))
            tally.left += 1
        elif kind < 0.25:
            answer = await ask(port, dice.choice(NONSENSE))
            tally.refused += 400 <= answer.status < 500
            tally.not_refused += not 400 <= answer.status < 500
        else:
            is_slow = kind < 0.35
            answer = await ask(port, body, pause=0.05 if is_slow else 0.0)
            tally.slow += is_slow
            if answer.status == 429:
                tally.busy += 1
                await asyncio.sleep(1)
            elif not answer.complete:
                tally.failed += 1
            elif answer.text != alone[prompt]:
                tally.differed += 1
            else:
                tally.good += 1


async def crowd(port: int, pid: int, clients: int, seconds: float) -> Tally:
    alone = {}
    for prompt in PROMPTS:
        answer = await ask(port, body_of(prompt, max_tokens=32, speculation="off"))
        assert answer.complete, f"alone, {prompt!r} got {answer}"
        alone[prompt] = answer.text
    tally, end = Tally(), time.monotonic() + seconds

    async def watch() -> None:
        while time.monotonic() < end:
            tally.memory.append(rss(pid))
            await asyncio.sleep(seconds / 20)

    crowd = (client(port, end, seed, alone, tally) for seed in range(clients))
    await asyncio.gather(watch(), *crowd)
    for prompt in PROMPTS:
        answer = await ask(port, body_of(prompt, max_tokens=32))
        tally.differed += answer.text != alone[prompt]
    return tally


def soak(model: str, clients: int, seconds: float) -> int:
    command = [sys.executable, "-m", "draftproof", "serve", model, "--port", "0", "--ctx", "2048"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        port, ready = 0, False
        for line in server.stderr:
            found = re.search(r"listening at http://[^:]*:(\d+)", line)
            port = int(found[1]) if found else port
            if ready := "event=ready" in line:
                break
        assert ready, "the server didn't start"
        rest = server.stderr
        threading.Thread(target=lambda: [None for _ in rest], daemon=True).start()
        tally = asyncio.run(crowd(port, server.pid, clients, seconds))
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    early, late = tally.memory[len(tally.memory) // 4], tally.memory[-1]
    print(
        f"{clients} clients, {seconds:g} s: {tally.good} answers equal to those alone, "
        f"{tally.differed} different, {tally.failed} failed, {tally.busy} told to come back; "
        f"{tally.left} left, {tally.slow} read slowly, {tally.refused} malformed and refused, "
        f"{tally.not_refused} malformed and not refused; memory {early / 1e6:.0f} MB after a "
        f"quarter, {late / 1e6:.0f} MB at the end; exit code {code}"
    )
    return int(tally.differed + tally.failed + tally.not_refused + code > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("model", nargs="?", default="smollm2-135m")
    speed.add_argument("--rounds", type=int, default=7)
    speed.add_argument("--tokens", type=int, default=128)
    crowded = commands.add_parser("soak")
    crowded.add_argument("model", nargs="?", default="smollm2-135m")
    crowded.add_argument("--clients", type=int, default=50)
    crowded.add_argument("--seconds", type=float, default=300)
    one = commands.add_parser("client")
    for name in ("port", "streams", "tokens"):
        one.add_argument(name, type=int)
    options = parser.parse_args()
    if options.command == "speed":
        measure_speed(options.model, options.rounds, options.tokens)
        return 0
    if options.command == "soak":
        return soak(options.model, options.clients, options.seconds)
    result = many_over_http(options.port, options.streams, options.tokens)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
