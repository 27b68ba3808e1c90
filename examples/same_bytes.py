"""One prompt without speculation, with it, and with every draft length: the same bits each time.

python examples/same_bytes.py [MODEL]

`audit=True` hashes the logits behind every token and the keys and values at the end. It is slow, so
this is a proof, not a benchmark.
"""

from __future__ import annotations

import sys

from draftproof import LLM, Completion, SamplingParams, SpeculativeConfig

PROMPT = (
    "Repeat this text exactly, word for word, and nothing else: The ferry to the islands leaves at "
    "seven, at nine and at noon. By seven the ice is gone and the crates are empty."
)


def bits(completion: Completion) -> tuple[object, ...]:
    return completion.token_ids, completion.audit


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    greedy = SamplingParams(max_tokens=64)
    seeded = SamplingParams(max_tokens=64, temperature=0.4, top_p=0.95, seed=7)
    with LLM(model) as llm:
        for name, sampling in (("greedy", greedy), ("temperature 0.4, seed 7", seeded)):
            plain = llm.chat(PROMPT, sampling, SpeculativeConfig(drafter="off"), audit=True)
            for k in (1, 2, 4, 8, 16):
                config = SpeculativeConfig(drafter="window", k=k)
                drafted = llm.chat(PROMPT, sampling, config, audit=True)
                if bits(drafted) != bits(plain):
                    raise SystemExit(f"{name}, k = {k}: not the bits of plain decoding")
                print(f"{name}, k = {k:2}: identical; {drafted.spec_line}")


if __name__ == "__main__":
    main()
