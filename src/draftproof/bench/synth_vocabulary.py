"""A byte-level BPE vocabulary of any size, made of fillers: the bytes, then pairs, triples and so
on of small letters, with and without a space before them; Qwen's control tokens behind.

It is a sound vocabulary (merges reach every token), so texts take about as many tokens as with a
real one, to within a factor of two.
"""

from __future__ import annotations

import itertools
import string

import numpy as np

from draftproof.formats.gguf_writer import Value

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_CONTROL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_TOOL_TOKENS = ("<tool_call>", "</tool_call>")
_FILE_TOKENS = (
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>",
)  # fmt: skip
_LAST_TOKENS = ("<tool_response>", "</tool_response>", "<think>", "</think>")
SPECIAL = [
    *((t, _CONTROL) for t in _CONTROL_TOKENS),
    *((t, _USER_DEFINED) for t in _TOOL_TOKENS),
    *((t, _CONTROL) for t in _FILE_TOKENS),
    *((t, _USER_DEFINED) for t in _LAST_TOKENS),
]
_PADDING = 267  # unused rows behind, as in Qwen3's 151936
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable character that stands for each of the 256 bytes."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def fillers(n: int) -> tuple[list[str], list[str]]:
    """n tokens beyond the bytes, and the merge that makes each of them."""
    space = byte_alphabet()[ord(" ")]
    tokens: list[str] = []
    merges: list[str] = []
    shorter = [*string.ascii_lowercase, space]
    while len(tokens) < n:
        pairs = list(itertools.islice(itertools.product(shorter, string.ascii_lowercase), n))
        pairs = pairs[: n - len(tokens)]
        shorter = [a + b for a, b in pairs]
        tokens += shorter
        merges += [f"{a} {b}" for a, b in pairs]
    return tokens, merges


def vocabulary_metadata(size: int) -> dict[str, Value]:
    """The keys `tokenizer.*` of a vocabulary with `size` rows. Raises ValueError: too small."""
    padding = _PADDING if size > 2**16 else 0
    room = size - padding - len(SPECIAL) - 256
    if room < 0:
        raise ValueError(f"a vocabulary needs at least {size - room} rows, not {size}")
    filled, merges = fillers(room)
    entries = [(t, _NORMAL) for t in (*byte_alphabet(), *filled)] + SPECIAL
    entries += [(f"[PAD{i}]", _UNUSED) for i in range(len(entries), size)]
    tokens = [token for token, _ in entries]
    ids = {token: i for i, token in enumerate(tokens)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([kind for _, kind in entries], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.bos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _TEMPLATE,
    }
