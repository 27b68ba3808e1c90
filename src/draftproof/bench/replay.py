"""Recorded texts through a drafter and the controller, without a model: seconds instead of hours.

The recorded output plays the sampler: a draft token is right if the recording goes on with it. Time
is modelled, V(m) per step plus the time really spent on drafting: the result is what the engine's
ledger would show. The first output token comes from the prompt's own step, as in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.bench.metrics import ratio
from draftproof.bench.workloads import json_object, numbered_lines, text_of
from draftproof.config import SpeculativeConfig
from draftproof.drafting import Controller, DraftMemory, SpeculationStats, TokenText, make_drafter
from draftproof.drafting.verify_cost import Measurement, VerifyCost

ALL = "all"


@dataclass(frozen=True)
class Recording:
    """Token ids of one recorded request; output has at least one."""

    id: str
    kind: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class ReplayTotals:
    """Sums over the recordings of a kind. modelled_plain, modelled: in plain steps."""

    recordings: int = 0
    tokens: int = 0
    steps: int = 0
    tries: int = 0
    drafted: int = 0
    accepted: int = 0
    modelled_plain: float = 0.0
    modelled: float = 0.0
    drafting_seconds: float = 0.0

    def plus(self, tokens: int, stats: SpeculationStats) -> ReplayTotals:
        return ReplayTotals(
            self.recordings + 1,
            self.tokens + tokens,
            self.steps + stats.steps,
            self.tries + stats.tries,
            self.drafted + stats.drafted,
            self.accepted + stats.accepted,
            self.modelled_plain + stats.modelled_plain,
            self.modelled + stats.modelled,
            self.drafting_seconds + stats.drafting_seconds,
        )

    @property
    def modelled_speedup(self) -> float:
        return ratio(self.modelled_plain, self.modelled)

    def to_dict(self) -> dict[str, Any]:
        return {
            "recordings": self.recordings,
            "tokens": self.tokens,
            "steps": self.steps,
            "tries": self.tries,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": ratio(self.accepted, self.drafted),
            "mean_acceptance_length": 1 + self.accepted / self.tries if self.tries else 0.0,
            "tokens_per_step": ratio(self.tokens, self.steps),
            "modelled_speedup": self.modelled_speedup,
            "drafting_us_per_token": 1e6 * ratio(self.drafting_seconds, self.tokens),
        }


def load_recordings(
    path: Path, encode: Callable[[str], list[int]]
) -> tuple[list[Recording], list[str]]:
    """(good records, one complaint per bad line). A record has `prompt` and `output`, and may have
    `id` and `kind`. InvalidRequestError: the file can't be read."""
    recordings: list[Recording] = []
    complaints: list[str] = []
    for number, line in numbered_lines(path):
        try:
            recording = _parse(line, path, number, encode)
        except ValueError as error:
            complaints.append(f"{path}:{number}: {error}")
            continue
        recordings.append(recording)
    return recordings, complaints


def _parse(line: str, path: Path, number: int, encode: Callable[[str], list[int]]) -> Recording:
    record = json_object(line)
    texts = []
    for key in ("prompt", "output"):
        if key not in record:
            raise ValueError(f"{key} is missing")
        texts.append(tuple(encode(text_of(record, key, ""))))
    name = text_of(record, "id", f"{path.name}:{number}")
    return Recording(name, text_of(record, "kind", path.stem), *texts)


def replay(
    recording: Recording, config: SpeculativeConfig, memory: DraftMemory, vocab_size: int
) -> SpeculationStats:
    """One recorded request; the counts and the ledger are those that the engine would show."""
    stats = SpeculationStats.of(config)
    controller = Controller(make_drafter(config, memory), config, stats, memory, vocab_size)
    output = recording.output
    history = list(recording.prompt)
    controller.start(history)
    history.append(output[0])
    stats.count_plain_step(1)
    done = 1
    while done < len(output):
        # The last token is a step's own: a draft for it could only be discarded.
        room = min(config.largest_draft, len(output) - done - 1)
        if room <= 0:
            history.append(output[done])
            done += 1
            controller.settle_plain(1, "context_end" if config.largest_draft else "disabled")
            continue
        draft = controller.propose(history, room)
        agreed = 0
        while agreed < len(draft.tokens) and draft.tokens[agreed] == output[done + agreed]:
            agreed += 1
        history += output[done : done + agreed + 1]
        done += agreed + 1
        if draft.tokens:
            controller.settle(draft, agreed, agreed + 1)
        else:
            controller.settle_plain(1, controller.reason)
    controller.finish(history)
    return stats


def replay_all(
    recordings: Iterable[Recording],
    config: SpeculativeConfig,
    measurement: Measurement | None,
    token_text: TokenText,
    vocab_size: int,
) -> dict[str, ReplayTotals]:
    """Totals by kind, and of ALL. Requests share what a loaded model's requests share. measurement:
    V(m) and the plain step, None = typical ones, with drafting taken as free."""
    memory = DraftMemory(token_text, verify_cost=VerifyCost(measurement))
    totals: dict[str, ReplayTotals] = {}
    for recording in recordings:
        stats = replay(recording, config, memory, vocab_size)
        for kind in (recording.kind, ALL):
            totals[kind] = totals.get(kind, ReplayTotals()).plus(len(recording.output), stats)
    if ALL in totals:
        totals[ALL] = totals.pop(ALL)  # last
    return totals
