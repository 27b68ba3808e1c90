"""A question about a picture: python examples/chat_with_image.py MODEL MMPROJ PICTURE

MODEL is a vision model (Qwen3-VL), MMPROJ the file of its tower.
"""

import sys

from draftproof import LLM, SamplingParams

model, mmproj, picture = sys.argv[1:4]
content = [
    {"type": "image", "image": picture},
    {"type": "text", "text": "What is in this picture?"},
]
with LLM(model, mmproj=mmproj) as llm:
    answer = llm.chat([{"role": "user", "content": content}], SamplingParams(max_tokens=100))
    print(answer.text)
