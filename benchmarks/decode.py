"""Plain decode speed here against llama.cpp's llama-bench, in turns in one run.

    python benchmarks/decode.py --model FILE [--llama-bench EXECUTABLE] [--tokens 64] [--rounds 5]

Each round decodes `tokens` tokens from a short prompt here, then lets llama-bench do the same (`-p 0
-n tokens`) in a process of its own. Prints tokens/s of every round and the medians' ratio; the last line
is JSON. Without --llama-bench only this side is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from draftproof import LLM, SamplingParams

PROMPT = "Once upon a time"


def ours(llm: LLM, tokens: int) -> float:
    completion = llm.generate(PROMPT, SamplingParams(max_tokens=tokens, ignore_eos=True))
    return completion.timings.predicted_per_second


def theirs(executable: str, model: str, threads: int, tokens: int) -> float:
    command = [executable, "-m", model, "-t", str(threads), "-p", "0", "-n", str(tokens)]
    run = subprocess.run(
        [*command, "-r", "1", "-o", "json"], check=True, capture_output=True, text=True
    )
    return float(json.loads(run.stdout)[0]["avg_ts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", default="")
    args = parser.parse_args()
    with LLM(args.model, threads=args.threads, ctx=1024, isa=args.isa) as llm:
        ours(llm, 8)  # warm-up
        here: list[float] = []
        there: list[float] = []
        for i in range(args.rounds):
            here.append(ours(llm, args.tokens))
            line = f"round {i + 1}: here {here[-1]:.2f} tok/s"
            if args.llama_bench:
                time.sleep(0.2)
                there.append(theirs(args.llama_bench, args.model, args.threads, args.tokens))
                line += f", llama.cpp {there[-1]:.2f} tok/s, ratio {here[-1] / there[-1]:.2f}"
            print(line, file=sys.stderr)
        completion = llm.generate(PROMPT, SamplingParams(max_tokens=1))
        result = {
            "model": args.model,
            "isa": completion.engine.isa,
            "threads": args.threads,
            "tokens": args.tokens,
            "tokens_per_second": statistics.median(here),
            "llama_cpp_tokens_per_second": statistics.median(there) if there else None,
            "ratio": statistics.median(here) / statistics.median(there) if there else None,
            "weights_bytes": completion.engine.weights_bytes,
            "weights_gb_per_second": statistics.median(here)
            * completion.engine.weights_bytes
            / 1e9,
            "peak_rss_bytes": completion.engine.peak_rss_bytes,
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
