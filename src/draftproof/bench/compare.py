"""Off against on: every prompt without and with speculation, in turns, and whether tokens agree.

Off and on alternate (A B A B ...), so that a machine that slows down slows both. The off runs of a
prompt are also compared with each other, as if half of them were "on": what that control shows is
noise, and a speedup inside it means nothing. Knows an LLM by its `generate` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftproof.bench.metrics import median, overall_speedup, ratio, token_digest
from draftproof.bench.workloads import Workload
from draftproof.config import SpeculativeConfig
from draftproof.outputs import Completion
from draftproof.sampling import SamplingParams

OFF = SpeculativeConfig(drafter="off")
WARM_UP_TOKENS = 8


class Generates(Protocol):
    """What is needed of an LLM."""

    def generate(
        self,
        prompt: Any,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
    ) -> Completion: ...


@dataclass(frozen=True)
class CompareSettings:
    """on: the speculation that is compared with none. repeat: runs of each side per prompt.
    temperature, seed: sampling of both sides (0 = greedy)."""

    on: SpeculativeConfig
    repeat: int = 3
    temperature: float = 0.0
    seed: int = 0

    def sampling(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, seed=self.seed, max_tokens=max_tokens)


@dataclass(frozen=True)
class PromptResult:
    """One prompt. off_tps, on_tps: medians. modelled_speedup, acceptance_rate,
    mean_acceptance_length, tries and accepted_per_position (tries that accepted draft token i): of
    the run of median speed; modelled is None if it kept no ledger.
    control: off against off, 1 = no noise, None = no second off run. first_difference: the first
    output token that differs, None = none does."""

    id: str
    kind: str
    tokens: int
    off_tps: float
    on_tps: float
    modelled_speedup: float | None
    acceptance_rate: float
    mean_acceptance_length: float
    sha256_off: str
    sha256_on: str
    first_difference: int | None = None
    control: float | None = None
    tries: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @property
    def speedup(self) -> float:
        return ratio(self.on_tps, self.off_tps)

    @property
    def identical(self) -> bool:
        return self.first_difference is None and self.sha256_off == self.sha256_on

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "tokens": self.tokens,
            "off_tps": self.off_tps,
            "on_tps": self.on_tps,
            "speedup": self.speedup,
            "modelled_speedup": self.modelled_speedup,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "identical": self.identical,
            "sha256_off": self.sha256_off,
            "sha256_on": self.sha256_on,
        }


@dataclass(frozen=True)
class Summary:
    """speedup: see metrics.overall_speedup. worst: the prompt with the least speedup, None if
    nothing ran. noise: the largest deviation from 1 of an off/off control, None without control."""

    speedup: float
    worst: PromptResult | None
    identical: bool
    noise: float | None

    def to_dict(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "speedup": self.speedup,
            "worst": None
            if worst is None
            else {"id": worst.id, "kind": worst.kind, "speedup": worst.speedup},
            "identical": self.identical,
            "noise": self.noise,
        }


def summarize(results: Sequence[PromptResult]) -> Summary:
    """Answers of a single token have no rate: they count for identity only."""
    timed = [r for r in results if r.speedup > 0]
    controls = [abs(r.control - 1) for r in results if r.control is not None]
    return Summary(
        speedup=overall_speedup([r.tokens for r in timed], [r.speedup for r in timed]),
        worst=min(timed, key=lambda r: r.speedup, default=None),
        identical=all(r.identical for r in results),
        noise=max(controls, default=None),
    )


def by_kind(results: Sequence[PromptResult]) -> dict[str, list[PromptResult]]:
    """In order of first appearance."""
    kinds: dict[str, list[PromptResult]] = {}
    for result in results:
        kinds.setdefault(result.kind, []).append(result)
    return kinds


def warm_up(llm: Generates, workload: Workload, settings: CompareSettings) -> Completion:
    """Both sides once and briefly, so that neither pays for page faults and waking threads."""
    prompt = _prompt(workload)
    sampling = settings.sampling(min(WARM_UP_TOKENS, workload.max_tokens))
    llm.generate(prompt, sampling, settings.on)
    return llm.generate(prompt, sampling, OFF)


def compare(
    llm: Generates,
    workload: Workload,
    settings: CompareSettings,
    extra_control: bool = False,
) -> PromptResult:
    """Runs one prompt `repeat` times off and on in turns. extra_control: one more off run at the
    end, for a control although `repeat` is 1. Raises what the LLM raises."""
    prompt, sampling = _prompt(workload), settings.sampling(workload.max_tokens)
    off: list[Completion] = []
    on: list[Completion] = []
    for _ in range(settings.repeat):
        off.append(llm.generate(prompt, sampling, OFF))
        on.append(llm.generate(prompt, sampling, settings.on))
    if extra_control and settings.repeat == 1:
        off.append(llm.generate(prompt, sampling, OFF))
    reference = off[0].token_ids
    # A difference is looked for among the off runs too: then it isn't speculation that is broken.
    different = [c for c in (*on, *off[1:]) if c.token_ids != reference]
    shown = different[0] if different else on[0]
    # A controller learns from run to run: the counts shown are those of the run of median speed.
    typical = sorted(on, key=_rate)[(len(on) - 1) // 2]
    return PromptResult(
        id=workload.id,
        kind=workload.kind,
        tokens=len(reference),
        off_tps=median([_rate(c) for c in off]),
        on_tps=median([_rate(c) for c in on]),
        modelled_speedup=typical.speculation.get("modelled_speedup"),
        acceptance_rate=typical.speculation["acceptance_rate"],
        mean_acceptance_length=typical.speculation["mean_acceptance_length"],
        sha256_off=token_digest(reference),
        sha256_on=token_digest(shown.token_ids),
        first_difference=_first_difference(reference, different[0].token_ids)
        if different
        else None,
        control=_control([_rate(c) for c in off]),
        tries=typical.speculation["tries"],
        accepted_per_position=tuple(typical.speculation["accepted_per_position"]),
    )


def _control(rates: Sequence[float]) -> float | None:
    """Medians of every second off run against the others, as off and on are compared."""
    one, other = median(rates[::2]), median(rates[1::2])
    return other / one if one > 0 and other > 0 else None


def _rate(completion: Completion) -> float:
    return completion.timings.predicted_per_second


def _prompt(workload: Workload) -> str | list[dict[str, str]]:
    return workload.prompt if isinstance(workload.prompt, str) else list(workload.prompt)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))
