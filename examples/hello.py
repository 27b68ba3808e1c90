"""The shortest program: python examples/hello.py [MODEL]"""

import sys

from draftproof import LLM, SamplingParams

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m") as llm:
    print(llm.chat("Why is the sky blue?", SamplingParams(max_tokens=60)).text)
