"""Seeded sampling with a text to draft from that isn't part of the prompt.

python examples/draft_from_reference.py [MODEL]

The reference is where the answer is likely to be copied from: the old version of a file, say. It
changes the speed and nothing else: the model never sees it.
"""

from __future__ import annotations

import sys

from draftproof import LLM, SamplingParams, SpeculativeConfig

REFERENCE = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. " * 2
PROMPT = "The days of the week are: Monday, Tuesday,"


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    sampling = SamplingParams(max_tokens=40, temperature=0.7, seed=42)
    with LLM(model) as llm:
        plain = llm.generate(PROMPT, sampling, SpeculativeConfig(drafter="off"))
        helped = llm.generate(PROMPT, sampling, SpeculativeConfig(reference=REFERENCE))
    if helped.token_ids != plain.token_ids:
        raise SystemExit("the reference changed the answer")
    print(PROMPT + plain.text)
    print(f"\nplain: {plain.usage.completion_tokens} tokens, as many steps")
    print(f"drafted from the reference: {helped.spec_line}")


if __name__ == "__main__":
    main()
