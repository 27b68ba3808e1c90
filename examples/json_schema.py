"""An answer that fits a JSON schema: python examples/json_schema.py [MODEL]"""

import json
import sys

from draftproof import LLM, Grammar, SamplingParams

PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Grace"]}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m") as llm:
    sampling = SamplingParams(max_tokens=200, grammar=Grammar("json_schema", PERSON))
    answer = llm.chat("Ada is 36 years old. Answer in JSON.", sampling)
    print(json.loads(answer.text))
    print(answer.spec_line)  # what the grammar leaves no choice about is drafted, too
