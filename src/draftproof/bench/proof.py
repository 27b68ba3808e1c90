"""Runs a proof of exactness: the same requests plainly, and then in every other way there is.

Owns which settings are run and what shows that each was in force. An LLM is opened per set of
engine settings, used through its public API, and closed. The comparison is `certificate`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftproof.bench.certificate import Answer, Difference, Line, Question, compare
from draftproof.config import DRAFTERS, MAX_DRAFT_TOKENS, SpeculativeConfig
from draftproof.request import SamplingParams

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import Completion

OFF = SpeculativeConfig(drafter="off")
QUICK_SECONDS = 8.0  # an instruction set that would take longer answers the shortest question only
SHORT_TOKENS = 12
PREFILL_CHUNK = 256
BATCHED_QUESTIONS = 8
CACHED_PROMPT = 128  # tokens: a longer prompt fills whole pages, which is what the cache keeps


@dataclass(frozen=True)
class Setting:
    """What an LLM is opened with. isa "": the best row."""

    threads: int
    prefill_chunk: int = PREFILL_CHUNK
    isa: str = ""
    prefix_cache: bool = False


Open = Callable[[Setting], "LLM"]
Task = tuple[int, SpeculativeConfig]
"""(number of the question, how to speculate)"""


class DifferenceFoundError(Exception):
    """Ends a proof: the first difference says it all."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.kind)
        self.difference = difference


class Proof:
    """open_llm: makes an LLM. answers: what plain decoding said, recorded by `record_plain` or read
    from a certificate. report(axis, setting): called before each line.

    lines and missing grow while it runs."""

    def __init__(
        self,
        open_llm: Open,
        questions: Sequence[Question],
        *,
        threads: int,
        report: Callable[[str, str], None],
        full: bool = False,
    ) -> None:
        self._open = open_llm
        self._questions = tuple(questions)
        self._base = Setting(threads)
        self._report = report
        self._full = full
        self.answers: tuple[Answer, ...] = ()
        self.fingerprint = ""
        self.plain_isa = ""
        self.lines: list[Line] = []
        self.missing: list[str] = []
        self._rows_run: set[str] = set()

    # --- the proof ---------------------------------------------------------------------------

    def run(self, machine_rows: Sequence[str]) -> None:
        """Every axis. Raises DifferenceFoundError."""
        with self._llm(self._base) as llm:
            self._record_plain(llm)
            self._drafters(llm)
            self._verification(llm)
            self._batch(llm)
        self._threads()
        self._chunks()
        self._cache()
        self._instruction_sets(machine_rows)
        self._look_for_gaps()

    def check(self, answers: Sequence[Answer], machine_rows: Sequence[str]) -> None:
        """Answers of another machine, on every row of this one. Raises DifferenceFoundError."""
        self.answers = tuple(answers)
        with self._llm(self._base) as llm:
            self._note_plain(llm.generate([0], SamplingParams(max_tokens=1), OFF))
            self._line(llm, "recorded", "plain decoding here", self._each(OFF))
            self._line(llm, "recorded", "oracle, k = 4", self._oracle(0.7, 4))
            self._line(llm, "recorded", "auto, k = 8", self._each(_drafting("auto", 8)))
        self._instruction_sets(machine_rows)
        self._look_for_gaps()

    # --- axes --------------------------------------------------------------------------------

    def _record_plain(self, llm: LLM) -> None:
        self._report("plain", "no speculation, one request at a time")
        completions = [self._ask(llm, i, OFF) for i in range(len(self._questions))]
        self._note_plain(completions[0])
        self.answers = tuple(_answer(c) for c in completions)

    def _note_plain(self, completion: Completion) -> None:
        self.fingerprint = completion.engine.system_fingerprint
        self.plain_isa = completion.engine.isa

    def _drafters(self, llm: LLM) -> None:
        names = [name for name in DRAFTERS if name not in ("off", "oracle")]
        for name in names:
            self._line(llm, "drafter", f"{name}, k = 8", self._each(_drafting(name, 8)))
        self._line(llm, "drafter", "auto, k chosen", self._each(_drafting("auto", None)))
        lengths = (1, 2, 3, 4, 7, 15, 16, 31, MAX_DRAFT_TOKENS) if self._full else (1, 3, 16)
        for k in lengths:
            for name in names if self._full else ["auto"]:
                self._line(llm, "draft length", f"{name}, k = {k}", self._each(_drafting(name, k)))

    def _verification(self, llm: LLM) -> None:
        replay = replace(_drafting("auto", 4), verify="replay")
        self._line(llm, "replay", "auto, k = 4", self._each(replay))
        rates = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0) if self._full else (0.0, 0.5, 0.9, 1.0)
        for rate in rates:
            for k in (1, 4, 7, MAX_DRAFT_TOKENS) if self._full else (7,):
                setting = f"acceptance {rate:g}, k = {k}"
                self._line(llm, "oracle", setting, self._oracle(rate, k))

    def _batch(self, llm: LLM) -> None:
        """Many questions at once, each drafting in another way, and each of them twice."""
        ways = [_drafting("auto", 8), OFF, None, _drafting("suffix", 3)]
        tasks = [
            (i, way or self._recorded(i, 0.6, 5))
            for turn in range(2)
            for i in range(min(len(self._questions), BATCHED_QUESTIONS))
            for way in [ways[(i + turn) % len(ways)]]
        ]
        setting = f"{len(tasks)} requests together"
        self._report("batch", setting)
        streams = [
            llm.stream(list(q.prompt_ids), _sampling(q), way, audit=True)
            for q, way in ((self._questions[i], way) for i, way in tasks)
        ]
        completions: dict[int, Completion] = {}
        while len(completions) < len(streams):
            for number, stream in enumerate(streams):
                if number not in completions:
                    last = next(stream).completion
                    if last is not None:
                        completions[number] = last
        done = [completions[number] for number in range(len(streams))]
        shared = sum(c.speculation["shared_forwards"] for c in done)
        if not shared:
            self.missing.append("no step was shared with another request")
        self._settle("batch", setting, tasks, done, f"{shared} steps shared")

    def _threads(self) -> None:
        counts = {1, 2, 3, self._base.threads, *((4, 7) if self._full else ())}
        for threads in sorted(counts - {self._base.threads}):
            with self._llm(replace(self._base, threads=threads)) as llm:
                done = self._both(llm, "threads", str(threads))
            if any(c.engine.threads != threads for c in done):
                self.missing.append(f"{threads} threads were asked for and not used")

    def _chunks(self) -> None:
        for chunk in (1, 2, 7, 16, 33, 64, 512) if self._full else (1, 7):
            with self._llm(replace(self._base, prefill_chunk=chunk)) as llm:
                done = self._both(llm, "prompt chunks", f"of {chunk}")
            steps = sum(c.speculation["forwards"]["prefill"] for c in done)
            needed = sum(-(-c.usage.prompt_tokens // chunk) for c in done)
            if steps < needed:
                self.missing.append(f"prompts were not read in chunks of {chunk}")

    def _cache(self) -> None:
        """Prompts whose beginning is in the cache, from a first run."""
        with self._llm(replace(self._base, prefix_cache=True)) as llm:
            self._line(llm, "prefix cache", "filled", self._each(OFF))
            done = self._both(llm, "prefix cache", "hit")
        hit = sum(c.usage.cached_tokens for c in done)
        self.lines[-1] = replace(self.lines[-1], evidence=f"{hit} tokens from it")
        longest = max(len(question.prompt_ids) for question in self._questions)
        if not hit and longest > CACHED_PROMPT:
            self.missing.append("no prompt came out of the prefix cache")

    def _instruction_sets(self, machine_rows: Sequence[str]) -> None:
        shortest = min(
            range(len(self._questions)), key=lambda i: len(self._questions[i].prompt_ids)
        )
        for isa in machine_rows:
            if isa == self.plain_isa:
                continue
            with self._llm(replace(self._base, isa=isa)) as llm:
                start = time.perf_counter()
                short = [(shortest, OFF), (shortest, self._recorded(shortest, 0.7, 3))]
                self._line(llm, "instruction set", isa, short, limit=SHORT_TOKENS)
                seconds = time.perf_counter() - start
                if self._full or seconds * self._work() / self._work(shortest) < QUICK_SECONDS:
                    self._both(llm, "instruction set", isa)
        gone = sorted({*machine_rows} - self._rows_run)
        if gone:
            self.missing.append(f"rows of this machine that weren't run: {', '.join(gone)}")

    def _work(self, only: int | None = None) -> int:
        """Rows of one question (cut to SHORT_TOKENS), or of all."""
        if only is not None:
            return len(self._questions[only].prompt_ids) + SHORT_TOKENS
        return sum(
            len(q.prompt_ids) + len(a.token_ids)
            for q, a in zip(self._questions, self.answers, strict=True)
        )

    def _look_for_gaps(self) -> None:
        """An equality between runs that never drafted, or never took anything back, is empty."""
        for axis in dict.fromkeys(line.axis for line in self.lines):
            if not sum(line.drafted for line in self.lines if line.axis == axis):
                self.missing.append(f"{axis}: nothing was drafted")
        if not any(line.rejected for line in self.lines):
            self.missing.append("no draft token was rejected, so nothing was ever taken back")

    # --- one line ----------------------------------------------------------------------------

    def _both(self, llm: LLM, axis: str, setting: str) -> list[Completion]:
        """Plainly and with drafts of which some are wrong."""
        return self._line(llm, axis, setting, [*self._each(OFF), *self._oracle(0.7, 4)])

    def _line(
        self,
        llm: LLM,
        axis: str,
        setting: str,
        tasks: Sequence[Task],
        *,
        limit: int | None = None,
    ) -> list[Completion]:
        self._report(axis, setting)
        done = [self._ask(llm, i, way, limit) for i, way in tasks]
        evidence = f"first {limit} tokens" if limit is not None else ""
        self._settle(axis, setting, tasks, done, evidence, whole=limit is None)
        return done

    def _settle(
        self,
        axis: str,
        setting: str,
        tasks: Sequence[Task],
        done: Sequence[Completion],
        evidence: str,
        whole: bool = True,
    ) -> None:
        counts = [c.speculation for c in done]
        self.lines.append(
            Line(
                axis,
                setting,
                tokens=sum(len(c.token_ids) for c in done),
                drafted=sum(s["drafted"] for s in counts),
                accepted=sum(s["accepted"] for s in counts),
                rejected=sum(s["rejected"] for s in counts),
                evidence=evidence,
            )
        )
        self._rows_run.update(c.engine.isa for c in done)
        for (i, way), completion in zip(tasks, done, strict=True):
            name = f"{setting}, drafter {way.drafter}" if len(set(tasks)) > 1 else setting
            difference = compare(
                axis,
                name,
                self._questions[i].id,
                self.answers[i],
                _answer(completion),
                whole=whole,
            )
            if difference is not None:
                raise DifferenceFoundError(difference)

    def _ask(
        self, llm: LLM, i: int, way: SpeculativeConfig, limit: int | None = None
    ) -> Completion:
        question = self._questions[i]
        return llm.generate(list(question.prompt_ids), _sampling(question, limit), way, audit=True)

    def _each(self, way: SpeculativeConfig) -> list[Task]:
        return [(i, way) for i in range(len(self._questions))]

    def _oracle(self, acceptance: float, k: int) -> list[Task]:
        return [(i, self._recorded(i, acceptance, k)) for i in range(len(self._questions))]

    def _recorded(self, i: int, acceptance: float, k: int) -> SpeculativeConfig:
        return SpeculativeConfig(
            "oracle", k, recording=self.answers[i].token_ids, acceptance=acceptance, remember=False
        )

    @contextmanager
    def _llm(self, setting: Setting) -> Iterator[LLM]:
        llm = self._open(setting)
        try:
            yield llm
        finally:
            llm.close()


def _drafting(name: str, k: int | None) -> SpeculativeConfig:
    # Nothing is remembered: the second run must not be drafted from the first.
    return SpeculativeConfig(name, k, remember=False)


def _sampling(question: Question, limit: int | None = None) -> SamplingParams:
    return SamplingParams(
        temperature=question.temperature,
        seed=question.seed,
        max_tokens=min(question.max_tokens, limit or question.max_tokens),
    )


def _answer(completion: Completion) -> Answer:
    audit = completion.audit
    if audit is None:
        raise RuntimeError("a run of the proof wasn't audited")
    return Answer(
        completion.token_ids,
        audit.rows,
        audit.logits_sha256,
        audit.kv_sha256,
        audit.kv_length,
    )
