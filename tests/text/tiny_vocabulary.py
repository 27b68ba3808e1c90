"""GGUF metadata of a made-up vocabulary, small enough to reason about."""

from __future__ import annotations

from typing import Any

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"]
USER_DEFINED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "i m", "Ġ Ġ", "Ã ©", "Ċ Ċ"]


def byte_alphabet() -> list[str]:
    """The printable character of every byte, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def tiny_metadata(pre: str = "qwen2") -> dict[str, Any]:
    """Metadata of a made-up vocabulary: all bytes, a few merges, added tokens, three pads."""
    words = byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]
    tokens = words + CONTROL + USER_DEFINED + ["[PAD0]", "[PAD1]", "[PAD2]"]
    types = [1] * len(words) + [3] * len(CONTROL) + [4] * len(USER_DEFINED) + [5] * 3
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
    }
