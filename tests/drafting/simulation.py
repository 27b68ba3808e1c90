"""A model-free run of one drafter on a known output, and a toy tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.drafting import Drafter


class ToyTokenizer:
    """Words with the blank before them, single other characters, digits in groups of `digits` from
    the left. Ids in order of appearance behind the 128 ASCII characters, which always exist."""

    def __init__(self, digits: int = 1) -> None:
        self._pattern = re.compile(rf"[0-9]{{1,{digits}}}| ?[A-Za-z_]+|[^A-Za-z_0-9]", re.DOTALL)
        self._texts = [chr(i) for i in range(128)]
        self._ids = {text: i for i, text in enumerate(self._texts)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self._pattern.findall(text):
            if piece not in self._ids:
                self._ids[piece] = len(self._texts)
                self._texts.append(piece)
            ids.append(self._ids[piece])
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self._texts[token].encode()

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._texts[token] for token in tokens)

    def __len__(self) -> int:
        return len(self._texts)


@dataclass
class Run:
    """What every step did. begins: output position at which it began; drafted, accepted: tokens."""

    begins: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def rejections(self, since: int = 0) -> int:
        """Steps from output position `since` on whose draft met a token that isn't the output's."""
        rows = zip(self.begins, self.drafted, self.accepted, strict=True)
        return sum(begin >= since and drafted > accepted for begin, drafted, accepted in rows)

    def steps(self, since: int = 0) -> int:
        return sum(begin >= since for begin in self.begins)

    def tokens_per_step(self) -> float:
        return 1 + sum(self.accepted) / len(self.accepted)


def simulate(drafter: Drafter, prompt: Sequence[int], output: Sequence[int], k: int = 16) -> Run:
    """Feeds `output` as if the model had chosen it; drafts never reach past its end."""
    drafter.start(prompt)
    run = Run()
    history = list(prompt)
    done = 0
    while done < len(output):
        draft = drafter.propose(history, min(k, len(output) - done - 1))
        agreed = 0
        while agreed < len(draft.tokens) and draft.tokens[agreed] == output[done + agreed]:
            agreed += 1
        run.begins.append(done)
        run.drafted.append(len(draft.tokens))
        run.accepted.append(agreed)
        history += output[done : done + agreed + 1]
        drafter.observe(draft, agreed)
        done += agreed + 1
    return run
