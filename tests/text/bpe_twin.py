"""A slow byte-level BPE tokenizer in plain Python, written from the definition: the reference.

Shares nothing with the product: another regex engine, merge loop and search for added tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import regex

GPT2 = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", regex.V1
)
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = regex.compile(WORDS.replace("DIGITS", ""), regex.V1)
LLAMA3 = regex.compile(WORDS.replace("DIGITS", "{1,3}"), regex.V1)
DIGIT = regex.compile(r"\p{N}|\P{N}+")


class Twin:
    """Tokenizer of one GGUF vocabulary."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        types = list(metadata["tokenizer.ggml.token_type"])
        self.pre = metadata["tokenizer.ggml.pre"]
        self.id = {token: i for i, token in enumerate(tokens) if types[i] == 1}
        self.rank: dict[tuple[str, ...], int] = {}
        for i, merge in enumerate(metadata["tokenizer.ggml.merges"]):
            self.rank[tuple(merge.split(" "))] = i
        self.control = {t: i for i, t in enumerate(tokens) if types[i] == 3}
        self.user_defined = {t: i for i, t in enumerate(tokens) if types[i] == 4}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in printable]
        self.char = {byte: chr(byte) for byte in printable}
        self.char |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}

    def encode(self, text: str, parse_special: bool) -> list[int]:
        added = self.user_defined | (self.control if parse_special else {})
        ids: list[int] = []
        run = ""
        at = 0
        while at < len(text):
            here = max((t for t in added if text.startswith(t, at)), key=len, default=None)
            if here is None:
                run += text[at]
                at += 1
            else:
                ids += [*self._run(run), added[here]]
                run = ""
                at += len(here)
        return ids + self._run(run)

    def _run(self, text: str) -> list[int]:
        if self.pre == "qwen2":
            pieces = QWEN2.findall(unicodedata.normalize("NFC", text))
        elif self.pre == "llama-bpe":
            pieces = LLAMA3.findall(text)
        elif self.pre == "smollm":
            pieces = [p for part in DIGIT.findall(text) for p in GPT2.findall(part)]
        else:
            pieces = GPT2.findall(text)
        return [i for piece in pieces for i in self._piece(piece)]

    def _piece(self, piece: str) -> list[int]:
        chars = [self.char[byte] for byte in piece.encode()]
        if self.pre == "llama-bpe" and "".join(chars) in self.id:
            return [self.id["".join(chars)]]
        parts = [char for char in chars if char in self.id]
        while len(parts) > 1:
            pairs = [(self.rank.get(pair, 1 << 30), pair) for pair in pairwise(parts)]
            rank, best = min(pairs, key=lambda item: item[0])
            if rank == 1 << 30:
                break
            merged = []
            at = 0
            while at < len(parts):
                if tuple(parts[at : at + 2]) == best:
                    merged.append("".join(best))
                    at += 2
                else:
                    merged.append(parts[at])
                    at += 1
            parts = merged
        return [self.id[part] for part in parts]
