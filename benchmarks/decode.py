"""Plain decode speed here against llama.cpp's llama-bench, in turns, every run in a process of its
own.

    python benchmarks/decode.py --model FILE [--llama-bench EXECUTABLE] [--tokens 64] [--rounds 7]

Each round loads the model and decodes `tokens` tokens here, then llama-bench does the same (`-p 0
-n tokens`). A fresh process each time, because where its memory lands decides how fast the machine
reads it. Prints tokens/s of every round and the medians' ratio; the last line is JSON. Without
--llama-bench only this side is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from draftproof import LLM, SamplingParams, SpeculativeConfig

PROMPT = "Once upon a time"


def ours(args: argparse.Namespace) -> dict[str, Any]:
    """One run in this process: a warm-up, then the tokens that count."""
    plain = SpeculativeConfig(drafter="off")
    with LLM(args.model, threads=args.threads, ctx=1024, isa=args.isa, prefix_cache=False) as llm:
        llm.generate(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True), plain)
        sampling = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
        completion = llm.generate(PROMPT, sampling, plain)
    engine = completion.engine
    return {
        "tokens_per_second": completion.timings.predicted_per_second,
        "isa": engine.isa,
        "weights_bytes": engine.weights_bytes,
        "peak_rss_bytes": engine.peak_rss_bytes,
    }


def run(command: list[str]) -> Any:
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--isa", default="")
    parser.add_argument("--one", action="store_true", help="one run here, its JSON on stdout")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(ours(args)))
        return
    here: list[float] = []
    there: list[float] = []
    one: dict[str, Any] = {}
    for i in range(args.rounds):
        one = run([sys.executable, __file__, "--one", *sys.argv[1:]])
        here.append(one["tokens_per_second"])
        line = f"round {i + 1}: here {here[-1]:.2f} tok/s"
        if args.llama_bench:
            command = [args.llama_bench, "-m", args.model, "-t", str(args.threads)]
            bench = run([*command, "-p", "0", "-n", str(args.tokens), "-r", "1", "-o", "json"])
            there.append(float(bench[0]["avg_ts"]))
            line += f", llama.cpp {there[-1]:.2f} tok/s, ratio {here[-1] / there[-1]:.2f}"
        print(line, file=sys.stderr)
    result = {
        "model": args.model,
        "isa": one["isa"],
        "threads": args.threads,
        "tokens": args.tokens,
        "tokens_per_second": statistics.median(here),
        "llama_cpp_tokens_per_second": statistics.median(there) if there else None,
        "ratio": statistics.median(here) / statistics.median(there) if there else None,
        "weights_bytes": one["weights_bytes"],
        "peak_rss_bytes": one["peak_rss_bytes"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
