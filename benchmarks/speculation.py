"""Speculation against plain decoding on one model: drafters in turns, and what verifying costs.

    python benchmarks/speculation.py --model FILE [--tokens 128] [--rounds 3] [--json OUT.json]

Two tables, everything interleaved (plain, then each setting, again and again), medians:
drafters  off, window k = 4, 8, 15, replay, auto on the built-in workloads: speedup, acceptance, and
          whether the token ids are those of plain decoding.
oracle    a recorded run drafted back at acceptance 1.0, k = 1, 3, 7, 15: the speedup that V(k + 1)
          allows, V(k + 1) as measured by real steps, and replay beside it.
Ends with 1 if any token differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftproof import LLM, SamplingParams
from draftproof.bench.builtin import BUILT_IN
from draftproof.bench.metrics import geometric_mean, median, ratio, token_digest
from draftproof.bench.tables import markdown
from draftproof.bench.workloads import Workload
from draftproof.config import SpeculativeConfig
from draftproof.outputs import Completion

OFF = SpeculativeConfig(drafter="off")
WINDOW_KS = (4, 8, 15)
ORACLE_KS = (1, 3, 7, 15)


def settings() -> dict[str, SpeculativeConfig]:
    """By name; nothing is remembered from one run to the next."""
    windows = {
        f"window k={k}": SpeculativeConfig(drafter="window", k=k, remember=False) for k in WINDOW_KS
    }
    return {
        "off": OFF,
        **windows,
        "replay k=4": SpeculativeConfig(drafter="window", k=4, verify="replay", remember=False),
        "auto": SpeculativeConfig(drafter="auto", remember=False),
    }


def in_turns(
    llm: LLM,
    workload: Workload,
    configs: dict[str, SpeculativeConfig],
    tokens: int,
    rounds: int,
    ignore_eos: bool = False,
) -> dict[str, list[Completion]]:
    """rounds x every config, one after the other; greedy."""
    prompt: Any = workload.prompt if isinstance(workload.prompt, str) else list(workload.prompt)
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=ignore_eos)
    runs: dict[str, list[Completion]] = {name: [] for name in configs}
    for _ in range(rounds):
        for name, config in configs.items():
            runs[name].append(llm.generate(prompt, sampling, config))
    return runs


def rate(completions: Sequence[Completion]) -> float:
    return median([c.timings.predicted_per_second for c in completions])


def row(workload: Workload, name: str, runs: dict[str, list[Completion]]) -> dict[str, Any]:
    plain, own = runs["off"], runs[name]
    stats = own[-1].speculation
    return {
        "id": workload.id,
        "kind": workload.kind,
        "setting": name,
        "tokens": len(own[-1].token_ids),
        "off_tps": rate(plain),
        "on_tps": rate(own),
        "speedup": ratio(rate(own), rate(plain)),
        "modelled_speedup": stats.get("modelled_speedup"),
        "acceptance_rate": stats["acceptance_rate"],
        "mean_acceptance_length": stats["mean_acceptance_length"],
        "identical": all(c.token_ids == plain[0].token_ids for c in (*plain, *own)),
        "sha256": token_digest(own[-1].token_ids),
    }


def compare_drafters(
    llm: LLM, workloads: Sequence[Workload], tokens: int, rounds: int
) -> list[dict[str, Any]]:
    rows = []
    for workload in workloads:
        runs = in_turns(llm, workload, settings(), min(tokens, workload.max_tokens), rounds)
        rows += [row(workload, name, runs) for name in runs]
        print(f"{workload.id}: {rows[-1]['speedup']:.2f} x with auto", file=sys.stderr)
    return rows


def compare_oracle(llm: LLM, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """One prompt, drafted back from its plain run; plain, exact and replay in turns for each k.
    V(k + 1) is the time of a step that verifies k tokens ÷ the time of a plain step, both from
    whole runs: attention, head and sampler included."""
    prose = next(w for w in BUILT_IN if w.kind == "prose")
    recorded = in_turns(llm, prose, {"off": OFF}, tokens, 1, ignore_eos=True)["off"][0].token_ids
    rows = []
    for k in ORACLE_KS:
        configs = {"off": OFF}
        for verify in ("exact", "replay"):
            configs[verify] = SpeculativeConfig(
                drafter="oracle", k=k, verify=verify, recording=recorded
            )
        runs = in_turns(llm, prose, configs, tokens, rounds, ignore_eos=True)
        exact, replay = (row(prose, verify, runs) for verify in ("exact", "replay"))
        rows.append(
            {
                "k": k,
                "tokens_per_step": exact["mean_acceptance_length"],
                "speedup": exact["speedup"],
                "verify_cost": ratio(exact["mean_acceptance_length"], exact["speedup"]),
                "replay_speedup": replay["speedup"],
                "identical": exact["identical"] and replay["identical"],
            }
        )
        print(f"oracle k = {k}: {rows[-1]['speedup']:.2f} x", file=sys.stderr)
    return rows


def drafter_table(rows: Sequence[dict[str, Any]]) -> str:
    names = list(settings())[1:]
    by_id: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in rows:
        by_id.setdefault(entry["id"], {})[entry["setting"]] = entry
    cells = [
        [
            name,
            str(entries["off"]["tokens"]),
            f"{entries['off']['off_tps']:.1f}",
            *(f"{entries[s]['speedup']:.2f} ({entries[s]['acceptance_rate']:.0%})" for s in names),
            "identical" if all(e["identical"] for e in entries.values()) else "DIFFERENT",
        ]
        for name, entries in by_id.items()
    ]
    means = [geometric_mean([e[s]["speedup"] for e in by_id.values()]) for s in names]
    cells.append(["geometric mean", "", "", *(f"{mean:.2f}" for mean in means), ""])
    return markdown(["prompt", "tokens", "off tok/s", *names, "verdict"], cells)


def oracle_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            str(entry["k"]),
            f"{entry['tokens_per_step']:.2f}",
            f"{entry['verify_cost']:.2f}",
            f"{entry['speedup']:.2f}",
            f"{entry['replay_speedup']:.2f}",
            "identical" if entry["identical"] else "DIFFERENT",
        ]
        for entry in rows
    ]
    header = ["k", "tokens/step", "V(k+1)", "exact, speedup", "replay, speedup", "verdict"]
    return markdown(header, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=128, help="length of an answer at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="a built-in workload's id; may be repeated")
    parser.add_argument("--part", choices=("all", "drafters", "oracle"), default="all")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    workloads = [w for w in BUILT_IN if args.only is None or w.id in args.only]
    with LLM(args.model, threads=args.threads, prefix_cache=False) as llm:
        cost = llm.verify_cost  # measured before anything else
        warm = SamplingParams(max_tokens=8)
        engine = llm.chat("Hello", warm, SpeculativeConfig(drafter="window", k=4)).engine
        drafters = oracle = []
        if args.part != "oracle":
            drafters = compare_drafters(llm, workloads, args.tokens, args.rounds)
        if args.part != "drafters":
            oracle = compare_oracle(llm, args.tokens, args.rounds)
        result = {
            "model": args.model,
            "isa": engine.isa,
            "threads": engine.threads,
            "verify_cost": cost.to_dict()["verify_cost"],
            "drafters": drafters,
            "oracle": oracle,
        }
    print(f"{Path(args.model).name}: {engine.isa} kernels, {engine.threads} threads, greedy\n")
    if drafters:
        print("Speedup over plain decoding (acceptance):\n")
        print(drafter_table(drafters))
    if oracle:
        print("Oracle, acceptance 1.0:\n")
        print(oracle_table(oracle))
    if args.json is not None:
        args.json.write_text(json.dumps(result) + "\n", "utf-8")
    if not all(entry["identical"] for entry in (*drafters, *oracle)):
        sys.exit("draftproof: error: tokens differ from plain decoding")


if __name__ == "__main__":
    main()
