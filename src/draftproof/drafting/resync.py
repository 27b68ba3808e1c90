"""`resync`: copies a source and stays with it through edits: what was replaced, put in or left out.

Owns the pointer into the source, how it finds its way after a disagreement, and the replacements
that the request has shown so far. Knows tokens only. A source is found by SuffixIndex.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof._native import SuffixIndex
from draftproof.drafting.drafter import NO_DRAFT, Draft

SHORTEST_MATCH = 3  # agreeing tokens that make a source worth staying with
TOKENS_PER_MATCHED = 4  # a draft has at most this * match length tokens
LOWEST_ACCEPTANCE = 0.25  # guesses whose first draft token is right less often aren't drafted

_REACH = 24  # source tokens looked at on either side of the place where output and source parted
_NEAR = 8  # as far as a single agreeing token is believed
_DETOUR = 3  # output tokens after which another source is followed, and this one kept in mind
_PATIENCE = 24  # output tokens after which a source is given up
_RUN = 8  # agreeing tokens counted to tell alignments apart
_LONGEST_RULE = 8  # tokens on either side of a replacement
_MAX_RULES = 256
_BEST_SCORE = 3
_MEMORY = 0.97  # what a count keeps per new observation
_PRIOR_WEIGHT = 4.0
# First guesses of how often the first draft token is right, by kind of guess and its length in
# powers of two (the skip: output tokens since the parting).
_PRIORS = {
    "step": (0.4, 0.5, 0.7, 0.8, 0.9),
    "resume": (0.3, 0.5, 0.7, 0.8),
    "skip": (0.4, 0.2, 0.2),
    "match": (0.2, 0.4, 0.6, 0.7, 0.8, 0.9),
}
_END = -1  # behind the reference: nothing is copied across


@dataclass(slots=True)
class _Rule:
    """Where the source has `old`, the output had `new`; their first tokens differ. It is applied
    while score > 0: hits raise it, places where it would have been wrong lower it."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    score: int = 1

    def hit(self) -> None:
        self.score = min(self.score + 1, _BEST_SCORE)

    def miss(self) -> None:
        self.score = max(self.score - 1, -_BEST_SCORE)


class _Guess:
    """One kind of guess about the source token that comes next, and how often it was right."""

    __slots__ = ("right", "tries")

    def __init__(self, prior: float) -> None:
        self.tries = _PRIOR_WEIGHT
        self.right = _PRIOR_WEIGHT * prior

    @property
    def acceptance(self) -> float:
        return self.right / self.tries

    def learn(self, right: bool) -> None:
        self.tries = self.tries * _MEMORY + 1
        self.right = self.right * _MEMORY + right


class ResyncDrafter:
    """reference: text to draft from that isn't in the prompt, as token ids."""

    def __init__(self, reference: Sequence[int] = ()) -> None:
        self._index = SuffixIndex()
        self._timeline = array("i", reference)  # the reference, then all committed tokens
        if reference:
            self._index.append(reference)
            self._index.append_break()
            self._timeline.append(_END)
        self._begin = len(self._timeline)  # of the history
        self._source = -1  # the source token that comes next; -1: no source
        self._credit = 0  # tokens that agreed, halved wherever one didn't
        self._rule: _Rule | None = None  # whose new tokens are being written
        self._written = 0  # how many of them
        # After a disagreement `_source` stays and these say where the output went on.
        self._parted = -1  # the first output token that disagreed; -1: in step
        self._home = -1  # where the source went on that was left for another one; -1: nowhere
        self._resume = -1  # the source token that seems to come next
        self._run = 0  # tokens that agree before it
        self._rules: dict[int, list[_Rule]] = {}  # by first old token
        self._num_rules = 0
        self._skips = {1: 1, 2: 1}  # output tokens since the disagreement -> source tokens passed
        self._guesses = {name: [_Guess(prior) for prior in _PRIORS[name]] for name in _PRIORS}
        self._asked: list[tuple[_Guess, int]] = []  # (guess, first token) of the last lookup

    def start(self, prompt: Sequence[int]) -> None:
        self._timeline.extend(prompt)
        self._index.append(prompt)

    def propose(self, history: Sequence[int], k: int) -> Draft:
        came = history[len(self._timeline) - self._begin :]
        if came:
            for guess, token in self._asked:
                guess.learn(token == came[0])
        for token in came:
            self._timeline.append(token)
            if self._source >= 0:
                self._follow(token)
        self._index.append(came)
        self._asked = []
        best = (LOWEST_ACCEPTANCE, 0, -1)
        for guess, length, source in self._candidates():
            first = self._copy(source, 1)
            if first:
                self._asked.append((guess, first[0]))
                best = max(best, (guess.acceptance, length, source))
        _, length, source = best
        k = min(k, TOKENS_PER_MATCHED * length)
        return Draft(tuple(self._copy(source, k)), "resync", length) if k > 0 else NO_DRAFT

    def observe(self, draft: Draft, accepted: int) -> None:
        """Nothing: the next history shows the accepted tokens and the one that came instead."""

    # ---- following the output

    def _follow(self, token: int) -> None:
        """`token` is the last of the timeline."""
        last = len(self._timeline) - 1
        if self._parted < 0:
            if self._rule is not None:
                if token == self._rule.new[self._written]:
                    self._written += 1
                    self._end_rule()
                    return
                self._rule.miss()
                self._rule = None
                self._part(last - self._written)
            elif self._agree(token):
                return
            else:
                self._part(last)
            if self._source < 0:
                return
        if self._run and self._timeline[self._resume] == token:
            self._resume += 1
            self._run += 1
        else:
            self._align(last)
        parted = last + 1 - self._parted
        if self._run > _RUN // 2 or min(self._run, parted) >= 2:
            self._join(last)
        elif parted > _PATIENCE:
            self._source = -1

    def _part(self, place: int) -> None:
        if self._credit < SHORTEST_MATCH:  # a chance likeness, nothing to stay with
            self._source = -1
        self._parted = place
        self._credit //= 2
        self._resume, self._run = -1, 0

    def _agree(self, token: int) -> bool:
        """Steps over a token that the source, or a replacement in the source, has too."""
        expected = self._timeline[self._source]
        rules = self._matching(self._source, len(self._timeline) - 1)
        if token == expected:
            for rule in rules:
                rule.miss()
            self._source += 1
            self._credit += 1
            return True
        for rule in rules:
            if rule.new[0] == token:
                self._rule, self._written = rule, 1
                self._end_rule()
                return True
            rule.miss()
        return False

    def _end_rule(self) -> None:
        rule = self._rule
        if rule is not None and self._written == len(rule.new):
            rule.hit()
            self._rule = None
            self._source += len(rule.old)
            self._credit += 1

    def _align(self, last: int) -> None:
        """Finds the place near the parting where most tokens agree with the end of the output; of
        equals, the one that left out or put in least."""
        timeline = self._timeline
        token = timeline[last]
        passed = last - self._parted
        best = (0, 0, -1)
        for source in (self._source, self._home):
            for place in range(max(0, source - _REACH), min(last, source + _REACH)):
                if timeline[place] != token:
                    continue
                run = 1
                while run < _RUN and run <= place and timeline[place - run] == timeline[last - run]:
                    run += 1
                if run == 1 and not 0 <= place - source <= passed + _NEAR:
                    continue
                best = max(best, (run, -abs(place - source - passed), place))
            if self._home < 0:
                break
        self._run, self._resume = best[0], best[2] + 1

    def _join(self, last: int) -> None:
        """In step again. What stood between is learned as a replacement."""
        agreeing = min(self._run, last + 1 - self._parted)
        old = tuple(self._timeline[self._source : max(self._source, self._resume - agreeing)])
        new = tuple(self._timeline[self._parted : last + 1 - agreeing])
        skipped = self._resume - agreeing - self._source
        if 0 <= skipped <= _LONGEST_RULE and agreeing >= 2:
            if new and len(new) <= 4:
                self._skips[len(new)] = max(1, len(old))
            if not old or not new:  # nothing to replace: the text behind it tells the place
                behind = tuple(self._timeline[last + 1 - agreeing : last + 1])
                old, new = old + behind, new + behind
            self._learn(old, new)
        if self._home >= 0 and abs(self._resume - self._home) < abs(self._resume - self._source):
            self._home = self._source
        self._source = self._resume
        self._credit += self._run
        self._parted = -1

    def _learn(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        if max(len(old), len(new)) > _LONGEST_RULE or old[0] == new[0]:
            return
        rules = self._rules.setdefault(old[0], [])
        for rule in rules:
            if rule.old == old and rule.new == new:
                rule.hit()
                return
        rules.append(_Rule(old, new))
        self._num_rules += 1
        if self._num_rules > _MAX_RULES:
            oldest = next(iter(self._rules))
            self._num_rules -= len(self._rules.pop(oldest))

    def _matching(self, place: int, end: int) -> list[_Rule]:
        """The rules whose old tokens stand at `place`, before position `end`."""
        rules = self._rules.get(self._timeline[place])
        if not rules:
            return []
        return [
            rule
            for rule in rules
            if place + len(rule.old) <= end
            and tuple(self._timeline[place : place + len(rule.old)]) == rule.old
        ]

    # ---- drafting

    def _candidates(self) -> list[tuple[_Guess, int, int]]:
        """What may come next: (kind of guess, tokens that agreed before it, source token)."""
        match = self._index.longest_match()
        enough = self._credit + (_RUN if self._credit >= SHORTEST_MATCH else 0)
        if self._parted >= 0:
            since = len(self._timeline) - self._parted
            enough = max(SHORTEST_MATCH - 1, self._run) if since > _DETOUR else match.length
        if match.length and (self._source < 0 or match.length > enough):
            if self._source >= 0:
                self._home = self._source
            self._source, self._credit = match.source, match.length
            self._parted, self._rule = -1, None
        if self._source >= 0 and self._parted < 0:
            credit = max(self._credit, 1)
            return [(self._guess("step", credit), credit, self._source)]
        found: list[tuple[_Guess, int, int]] = []
        if match.length:
            found.append((self._guess("match", match.length), match.length, match.source))
        if self._source >= 0 and self._run:
            found.append((self._guess("resume", self._run), self._run, self._resume))
        elif self._source >= 0:
            since = len(self._timeline) - self._parted
            skip = self._skips.get(since)
            if skip is not None:
                found.append((self._guess("skip", since), 1, self._source + skip))
        return found

    def _guess(self, name: str, length: int) -> _Guess:
        guesses = self._guesses[name]
        return guesses[min(length.bit_length(), len(guesses)) - 1]

    def _copy(self, source: int, k: int) -> list[int]:
        """k tokens from `source` on, replacements applied; a copy that reaches the end of history
        goes on in the draft."""
        timeline = self._timeline
        end = len(timeline)
        tokens: list[int] = []
        if self._parted < 0 and self._rule is not None:
            tokens += self._rule.new[self._written :]
            source += len(self._rule.old)
        while len(tokens) < k and source < end + len(tokens):
            if source >= end:
                tokens.append(tokens[source - end])
                source += 1
                continue
            rules = [rule for rule in self._matching(source, end) if rule.score > 0]
            if rules:
                rule = max(rules, key=lambda rule: (len(rule.old), rule.score))
                tokens += rule.new
                source += len(rule.old)
                continue
            token = timeline[source]
            if token == _END:
                break
            tokens.append(token)
            source += 1
        return tokens[:k]
