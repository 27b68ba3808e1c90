"""The slow twin of SuffixIndex: its definitions written down naively, every question a scan.

A timeline is a list of tokens; None is a break.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Timeline = Sequence[int | None]


@dataclass(frozen=True)
class TwinDraft:
    length: int
    source: int
    count: int
    tokens: tuple[int, ...]
    support: int
    voters: int


def shared(history: Timeline, end: int, asked: Timeline) -> int:
    """How many tokens before `end` equal the last tokens of `asked`, one by one."""
    n = 0
    while n < min(end, len(asked)):
        token = history[end - 1 - n]
        if token is None or token != asked[len(asked) - 1 - n]:
            break
        n += 1
    return n


def reach(history: Timeline, asked: Timeline) -> dict[int, int]:
    """Every end, a place between two neighbouring tokens, with what it shares with `asked`."""
    return {
        end: shared(history, end, asked)
        for end in range(1, len(history))
        if history[end - 1] is not None and history[end] is not None
    }


def longest_match(history: Timeline, asked: Timeline) -> tuple[int, list[int]]:
    """(length, all ends that reach it, newest first)."""
    lengths = reach(history, asked)
    longest = max(lengths.values(), default=0)
    if longest == 0:
        return 0, []
    return longest, sorted((end for end, n in lengths.items() if n == longest), reverse=True)


def draft(
    history: Timeline,
    asked: Timeline,
    k: int,
    *,
    own: bool,
    max_candidates: int = 1,
) -> TwinDraft:
    """The vote of the newest `max_candidates` ends; with one candidate, the most recent copy."""
    length, ends = longest_match(history, asked)
    voters = ends[:max_candidates]
    tokens: list[int] = []
    support = 0
    for j in range(k):
        text = [*history, *tokens] if own else history
        ballots = [(end, text[end + j]) for end in voters if end + j < len(text)]
        ballots = [(end, token) for end, token in ballots if token is not None]
        if not ballots:
            break
        votes = Counter(token for _, token in ballots)
        newest = {token: max(end for end, t in ballots if t == token) for token in votes}
        winner = max(votes, key=lambda token: (votes[token], newest[token]))
        assert winner is not None
        voters = [end for end, token in ballots if token == winner]
        if j == 0:
            support = len(voters)
        tokens.append(winner)
    source = ends[0] if ends else 0
    return TwinDraft(length, source, len(ends), tuple(tokens), support, len(ends[:max_candidates]))
