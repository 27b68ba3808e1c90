"""The engine under load: many streams at once, cached prefixes, Python's share, and a soak.

    python benchmarks/load.py --model FILE streams [--tokens 48] [--kinds prose edits]
    python benchmarks/load.py --model FILE prefix
    python benchmarks/load.py --model FILE soak [--requests 2000]

streams: total tokens/s of 1, 4 and 8 requests at a time, speculation off and on in turns, prompts
already computed; every answer is compared with its answer alone, token by token. Python's share is
the time of the run in which no native call was running.
prefix: time to the first token of a prompt of 1,000 tokens, cold, and with 950 of them cached.
soak: short requests of mixed kinds, one in ten cancelled at random, sixteen at a time, most of them
drafting; every completed answer and its log probabilities are compared with the same request alone,
memory and pages are watched. It fails if an answer differs, and if it means nothing: no draft
accepted, none rejected, none cancelled, nothing found in the cache. The last line is JSON (with
--json nothing else is printed).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from contextlib import aclosing
from typing import Any

from draftproof import LLM, Completion, SamplingParams, SpeculativeConfig, catalogue
from draftproof.config import EngineConfig
from draftproof.models import load_model
from draftproof.sampling import Grammar

OFF = SpeculativeConfig("off")
ON = SpeculativeConfig(remember=False)  # or the answer of the last round would be drafted from
# Of the soak. With sixteen streams the controller may find that no draft pays: most do without it.
WAYS = [
    OFF,
    ON,
    SpeculativeConfig("suffix", 4, remember=False),
    SpeculativeConfig("auto", 8),  # from what was answered before, too
    SpeculativeConfig("suffix", 4, "replay", remember=False),
]
TOPICS = ("rivers", "bread", "clocks", "bees", "bridges", "paper", "salt", "kites")
CODE = """def {0}_total(items):
    total = 0
    for item in items:
        if item.price < 0:
            raise ValueError("negative price")
        total += item.price * item.count
    return total


def {0}_names(items):
    names = []
    for item in items:
        if item.count > 0:
            names.append(item.name)
    return sorted(names)
"""


def prompts(kind: str) -> list[str]:
    if kind == "prose":
        return [f"Tell a story about {topic}, in long sentences." for topic in TOPICS]
    return [
        f"Rename `item` to `entry` everywhere. Answer with the whole file.\n\n{CODE.format(topic)}"
        for topic in TOPICS
    ]


class Clocked:
    """A player whose native calls are timed."""

    def __init__(self, player: Any) -> None:
        self._player = player
        self.native = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._player, name)
        if not callable(found):
            return found

        def timed(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return found(*args, **named)
            finally:
                self.native += time.perf_counter() - start

        return timed


def open_llm(args: argparse.Namespace, **fields: Any) -> tuple[LLM, Clocked]:
    config = EngineConfig(threads=args.threads, **fields)
    loaded = load_model(catalogue.resolve(args.model), config)
    clocked = Clocked(loaded.player)
    object.__setattr__(loaded, "player", clocked)
    return LLM.of(loaded, config), clocked


async def together(
    llm: LLM, asked: list[list[int]], sampling: SamplingParams, spec: SpeculativeConfig
) -> list[Completion]:
    return await asyncio.gather(*(llm.agenerate(ids, sampling, spec) for ids in asked))


def streams(args: argparse.Namespace) -> dict[str, Any]:
    llm, clocked = open_llm(args, ctx=2048)
    sampling = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
    result: dict[str, Any] = {}
    with llm:
        _ = llm.verify_cost
        for kind in args.kinds:
            asked = [llm.encode_chat(prompt) for prompt in prompts(kind)]
            asyncio.run(together(llm, asked, SamplingParams(max_tokens=1), OFF))
            alone: list[tuple[int, ...]] = []
            rates: dict[tuple[int, str], list[float]] = {}
            shares: dict[tuple[int, str], float] = {}
            drafted = 0
            for _ in range(args.rounds):
                for count in args.streams:
                    for name, spec in (("off", OFF), ("on", ON)):
                        native, start = clocked.native, time.perf_counter()
                        done = asyncio.run(together(llm, asked[:count], sampling, spec))
                        wall = time.perf_counter() - start
                        tokens = sum(c.usage.completion_tokens for c in done)
                        rates.setdefault((count, name), []).append(tokens / wall)
                        shares[count, name] = 1.0 - (clocked.native - native) / wall
                        drafted += sum(c.speculation["drafted"] for c in done)
                        if not alone:
                            alone = [llm.generate(ids, sampling, OFF).token_ids for ids in asked]
                        same = [c.token_ids for c in done] == alone[:count]
                        assert same, f"{kind}, {count} streams, {name}: another answer"
            one = statistics.median(rates[args.streams[0], "off"])
            result[kind] = {"drafted": drafted}
            for (count, name), values in rates.items():
                rate = statistics.median(values)
                result[kind][f"{count} {name}"] = {
                    "tokens_per_second": rate,
                    "of_one_stream_off": rate / one,
                    "python_share": shares[count, name],
                }
                say(
                    args,
                    f"{kind}: {count} streams {name}: {rate:.1f} tokens/s, "
                    f"{rate / one:.2f} x one, Python {100 * shares[count, name]:.1f} %",
                )
            if not drafted:
                say(args, f"{kind}: NOTHING WAS DRAFTED, on is off here")
    return result


def prefix(args: argparse.Namespace) -> dict[str, Any]:
    llm, _ = open_llm(args, ctx=2048)
    one = SamplingParams(max_tokens=1)
    text = " ".join(f"Line {i}: {TOPICS[i % 8]} and {TOPICS[i * 5 % 8]}." for i in range(400))

    def first_token(ids: list[int], salt: str) -> tuple[float, int]:
        start = time.perf_counter()
        done = llm.generate(ids, one, OFF, cache_salt=salt)
        return time.perf_counter() - start, done.usage.cached_tokens

    with llm:
        ids = llm.encode(text)[:1000]
        llm.generate(ids[:200], one, OFF, cache_salt="warm")
        cold, warm = [], []
        for i in range(args.rounds):
            cold.append(first_token(ids, f"round {i}")[0])
            other = [*ids[:950], *reversed(ids[950:])]
            seconds, cached = first_token(other, f"round {i}")
            assert cached >= 950, cached
            warm.append(seconds)
    ratio = statistics.median(warm) / statistics.median(cold)
    say(
        args,
        f"first token: {statistics.median(cold):.2f} s cold, "
        f"{statistics.median(warm):.3f} s with 950 of 1,000 cached: {100 * ratio:.1f} %",
    )
    return {"cold_s": cold, "cached_s": warm, "ratio": ratio}


def listed(i: int) -> str:
    """Lines that a model goes on copying."""
    return "".join(f"{topic}: {n} of {n + i}\n" for n, topic in enumerate(TOPICS[i:] + TOPICS[:i]))


def mixed(llm: LLM) -> list[tuple[list[int], SamplingParams]]:
    """Requests of every kind; a few share their beginning."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "seed": 5},
        {"temperature": 1.2, "seed": 6, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"logprobs": 3},
        {"temperature": 0.7, "seed": 8, "logprobs": 2, "stop": ("the",)},
        {"grammar": Grammar("json_schema", schema)},
        {"logit_bias": {30: 5.0}, "min_tokens": 4},
    ]
    base = "You are a helpful assistant who knows a lot. "
    return [
        (
            llm.encode(f"{base if i % 3 else ''}{listed(i)}{listed(i)}{topic}"),
            SamplingParams(max_tokens=4 + (7 * i + j) % 29, **kind),
        )
        for i, topic in enumerate(TOPICS)
        for j, kind in enumerate(kinds)
    ]


def evidence(done: Completion) -> Any:
    return done.token_ids, done.text, done.finish_reason, done.logprobs


def rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def soak(args: argparse.Namespace) -> dict[str, Any]:
    llm, _ = open_llm(args, ctx=512, kv_memory=256 << 20)
    rng = random.Random(args.seed)
    with llm:
        asked = mixed(llm)
        alone = [
            evidence(llm.generate(*ask, OFF, cache_salt=f"alone {i}"))
            for i, ask in enumerate(asked)
        ]
        summed = ("drafted", "accepted", "rejected", "shared_forwards", "replay_mismatches")
        counts = dict.fromkeys(("completed", "cancelled", "different", "cached", *summed), 0)
        memory: list[int] = []
        gate = asyncio.Semaphore(16)

        async def one() -> None:
            i = rng.randrange(len(asked))
            pieces = rng.randrange(6) if rng.random() < 0.1 else None
            async with gate:
                stream = llm.astream(*asked[i], rng.choice(WAYS))
                async with aclosing(stream):
                    async for delta in stream:
                        if pieces == 0:
                            counts["cancelled"] += 1
                            return
                        pieces = None if pieces is None else pieces - 1
                        done = delta.completion
                if done is None:
                    raise RuntimeError("a stream without its completion")
                counts["completed"] += 1
                counts["different"] += evidence(done) != alone[i]
                for name in summed:
                    counts[name] += done.speculation[name]
                counts["cached"] += done.usage.cached_tokens
                if counts["completed"] % 50 == 0:
                    memory.append(rss_bytes())

        async def all_of_them() -> None:
            await asyncio.gather(*(one() for _ in range(args.requests)))

        start = time.perf_counter()
        asyncio.run(all_of_them())
        seconds = time.perf_counter() - start
        while llm.metrics().running:
            time.sleep(0.01)
        metrics = llm.metrics()
    middle = memory[len(memory) // 2] if memory else 0
    grown = memory[-1] - middle if memory else 0
    say(
        args,
        f"soak: {counts} in {seconds:.0f} s; pages left in use: {metrics.kv_pages_used}; "
        f"memory over the second half: {grown / 1e6:+.1f} MB; preemptions {metrics.preemptions}",
    )
    missing = [
        name
        for name in ("cancelled", "accepted", "rejected", "shared_forwards", "cached")
        if not counts[name]
    ]
    if missing:
        say(args, f"THIS SOAK PROVES NOTHING: none {', none '.join(missing)}")
    return {
        **counts,
        "missing": missing,
        "seconds": seconds,
        "pages_in_use": metrics.kv_pages_used,
        "rss_bytes": memory,
        "rss_growth_second_half": grown,
    }


def say(args: argparse.Namespace, line: str) -> None:
    if not args.json:
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["streams", "prefix", "soak"])
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--kinds", nargs="+", choices=["prose", "edits"], default=["prose", "edits"]
    )
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = {"streams": streams, "prefix": prefix, "soak": soak}[args.what](args)
    print(json.dumps({args.what: result}))
    if args.what == "soak":
        wrong = ("different", "replay_mismatches", "pages_in_use", "missing")
        raise SystemExit(1 if any(result[name] for name in wrong) else 0)


if __name__ == "__main__":
    main()
