"""What a proof asks: built-in questions that make drafters hit and miss, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from draftproof.bench.certificate import Question
from draftproof.bench.workloads import Workload

Encode = Callable[[Any], list[int]]
"""Messages, or raw text, to token ids."""

_COPY = (
    "Repeat this text exactly:\n\nThe ferry sounds its horn twice. The ferry leaves at 07:15, at "
    "08:15 and at 09:15; on Sundays the ferry leaves at 09:15 only."
)
_EDIT = (
    "Rename the variable `tmp` to `total`. Answer with the code only.\n\n"
    "def mean(values):\n    tmp = 0.0\n    for value in values:\n        tmp = tmp + value\n"
    "    return tmp / len(values)"
)
_SEEDED_TEMPERATURE, _SEED = 0.8, 20


def _user(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


# Raw text is short: the scalar kernels, a hundred times slower, have to answer it too.
BUILT_IN = (
    Workload("counting", "list", "Row 1: ok\nRow 2: ok\nRow 3: ok\nRow", 40),
    Workload("copy", "copy", _user(_COPY), 48),
    Workload("edit", "edit", _user(_EDIT), 48),
    Workload("prose", "prose", _user("Tell me in a few sentences how bread is made."), 32),
)


def questions(workloads: Sequence[Workload], encode: Encode) -> list[Question]:
    """Greedy ones, and the first once more by a seed. encode raises what is wrong with a prompt."""
    asked = [
        Question(
            workload.id,
            tuple(
                encode(workload.prompt if isinstance(workload.prompt, str) else [*workload.prompt])
            ),
            workload.max_tokens,
        )
        for workload in workloads
    ]
    first = asked[0]
    seeded = Question(
        f"{first.id}, by seed", first.prompt_ids, first.max_tokens, _SEEDED_TEMPERATURE, _SEED
    )
    return [*asked, seeded]
