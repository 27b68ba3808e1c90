"""Answers one question, piece by piece, and shows what speculation did.

python examples/answer.py [MODEL] [QUESTION]
"""

from __future__ import annotations

import sys

from draftproof import LLM, SamplingParams

QUESTION = (
    "Repeat this text exactly, word for word: The ferry to the islands leaves at seven, at nine "
    "and at noon. Bread is baked on the quay, fish is sold on the quay, and nobody is in a hurry."
)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    question = sys.argv[2] if len(sys.argv) > 2 else QUESTION
    with LLM(model) as llm:
        messages = [{"role": "user", "content": question}]
        for delta in llm.stream(messages, SamplingParams(max_tokens=200)):
            print(delta.text, end="", flush=True)
            if delta.completion is not None:  # the last piece carries the whole result
                completion = delta.completion
    speculation = completion.speculation
    print(f"\n\nended by {completion.finish_reason} after {len(completion.token_ids)} tokens")
    print(f"{completion.timings.predicted_per_second:.1f} tokens/s")
    print(f"accepted {speculation['accepted']} of {speculation['drafted']} draft tokens")


if __name__ == "__main__":
    main()
