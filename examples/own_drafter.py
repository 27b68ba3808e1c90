"""A drafter of your own: python examples/own_drafter.py [MODEL]

It can be as bad as this one (the answer goes on as it went on five tokens ago); the answer stays.
"""

import sys

from draftproof import LLM, SamplingParams, SpeculativeConfig
from draftproof.drafting import NO_DRAFT, Draft, register_drafter


class EveryFiveTokens:
    def start(self, prompt):
        pass

    def propose(self, history, k):
        return Draft(tuple(history[-5:][:k]), "five") if k and len(history) >= 5 else NO_DRAFT

    def observe(self, draft, accepted):
        pass


register_drafter("five", EveryFiveTokens)
with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m") as llm:
    sampling = SamplingParams(max_tokens=48)
    plain = llm.generate("1 2 3 4 5 1 2 3 4 5 1 2", sampling, SpeculativeConfig("off"))
    mine = llm.generate("1 2 3 4 5 1 2 3 4 5 1 2", sampling, SpeculativeConfig("five", k=5))
assert mine.token_ids == plain.token_ids
print(mine.text, mine.spec_line, sep="\n")
