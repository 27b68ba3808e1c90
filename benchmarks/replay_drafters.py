"""Replays recorded texts through one drafter, without a model: what would have been accepted.

    python benchmarks/replay_drafters.py --model M.gguf --replay R.jsonl --drafter suffix --k 16

A record has id, kind, prompt, output. The model file lends its tokenizer only. The first output
token comes from the prompt's own step, as in the engine; from then on every step may draft.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from draftproof.drafting import Drafter, SpeculationStats, WindowDrafter
from draftproof.drafting.resync import ResyncDrafter
from draftproof.drafting.store import RequestStore
from draftproof.drafting.suffix import SuffixDrafter
from draftproof.drafting.template import TemplateDrafter
from draftproof.formats.gguf import GgufFile
from draftproof.text import Tokenizer


def replay(drafter: Drafter, prompt: list[int], output: list[int], k: int) -> SpeculationStats:
    """One recorded request; the returned counts are those the engine would show."""
    stats = SpeculationStats(accepted_per_position=[0] * k, rejected_per_position=[0] * k)
    drafter.start(prompt)
    history = [*prompt, output[0]]
    stats.count_plain_step(1)
    done = 1
    while done < len(output):
        draft = drafter.propose(history, min(k, len(output) - done - 1))
        agreed = 0
        while agreed < len(draft.tokens) and draft.tokens[agreed] == output[done + agreed]:
            agreed += 1
        history += output[done : done + agreed + 1]
        done += agreed + 1
        if draft.tokens:
            drafter.observe(draft, stats.count_try(len(draft.tokens), agreed, agreed + 1))
        else:
            stats.count_plain_step(1)
    return stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--replay", type=Path, required=True)
    names = ("window", "suffix", "suffix+store", "template", "resync")
    parser.add_argument("--drafter", choices=names, default="suffix")
    parser.add_argument("--k", type=int, default=8)
    arguments = parser.parse_args()
    with GgufFile.open(arguments.model) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, parse_special=False)

    store = RequestStore()
    make: dict[str, Callable[[], Drafter]] = {
        "window": WindowDrafter,
        "suffix": SuffixDrafter,
        "suffix+store": lambda: SuffixDrafter(store),
        "template": lambda: TemplateDrafter(tokenizer.token_bytes, plain),
        "resync": ResyncDrafter,
    }
    kinds: dict[str, list[int]] = {}
    seconds = 0.0
    for line in arguments.replay.read_text().splitlines():
        record = json.loads(line)
        prompt = plain(record["prompt"])
        output = plain(record["output"])
        drafter = make[arguments.drafter]()
        begin = time.perf_counter()
        stats = replay(drafter, prompt, output, arguments.k)
        if isinstance(drafter, SuffixDrafter):
            drafter.finish(prompt + output)
        seconds += time.perf_counter() - begin
        for kind in (record["kind"], "all"):
            sums = kinds.setdefault(kind, [0] * 5)
            row = (len(output), stats.steps, stats.tries, stats.drafted, stats.accepted)
            kinds[kind] = [a + b for a, b in zip(sums, row, strict=True)]
    print(f"drafter {arguments.drafter}, k {arguments.k}, drafting and simulation {seconds:.2f} s")
    print("kind       tokens  steps tokens/step  drafted accepted  rate  mean acceptance length")
    for kind, (tokens, steps, tries, drafted, accepted) in kinds.items():
        rate = accepted / drafted if drafted else 0.0
        length = 1 + accepted / tries if tries else 0.0
        print(
            f"{kind:10} {tokens:6} {steps:6} {tokens / steps:11.2f} {drafted:8} {accepted:8} "
            f"{rate:5.1%} {length:8.2f}"
        )


if __name__ == "__main__":
    main()
