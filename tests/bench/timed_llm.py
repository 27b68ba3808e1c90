"""An LLM with a clock of its own, for the arithmetic of comparisons: nothing real takes time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from draftproof.config import SpeculativeConfig
from draftproof.drafting import SpeculationStats
from draftproof.drafting.verify_cost import VerifyCost
from draftproof.errors import ContextLengthError
from draftproof.outputs import Completion, EngineInfo, Timings, Usage
from draftproof.request import SamplingParams


def text_of(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


@dataclass
class TimedLLM:
    """Answers with `max_tokens` tokens that depend on the prompt. rate(prompt, on, call): tokens/s,
    call counts the runs of that prompt on that side from 0. broken: prompt -> output position that
    comes out wrong with speculation. Prompts that contain "too long" don't fit."""

    rate: Callable[[str, bool, int], float] = lambda prompt, on, call: 20.0 if on else 10.0
    broken: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, bool, int | None]] = field(default_factory=list)
    verify_cost: VerifyCost = field(default_factory=VerifyCost)
    counts: dict[tuple[str, bool], int] = field(default_factory=dict)
    interrupt_after: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def open(self, model: str | None, **settings: Any) -> TimedLLM:
        """Stands in for the class LLM."""
        self.settings = {"model": model, **settings}
        return self

    def generate(
        self,
        prompt: Any,
        sampling: SamplingParams | None = None,
        speculation: SpeculativeConfig | None = None,
    ) -> Completion:
        assert sampling is not None
        assert speculation is not None
        text, on = text_of(prompt), speculation.drafter != "off"
        if "too long" in text:
            raise ContextLengthError("the prompt has 999 tokens, the context 512")
        if self.interrupt_after is not None and len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        count = sampling.max_tokens or 0
        self.calls.append((text, on, sampling.max_tokens))
        call = self.counts.get((text, on), 0)
        self.counts[text, on] = call + 1
        ids = [len(text) * 100 + i for i in range(count)]
        if on and text in self.broken and self.broken[text] < count:
            ids[self.broken[text]] = 7
        stats = SpeculationStats.of(speculation)
        if on:
            stats.count_try(4, call, call + 1)
            stats.modelled_plain, stats.modelled = 30.0, 20.0 - call
        rate = self.rate(text, on, call)
        return Completion(
            text="",
            token_ids=tuple(ids),
            finish_reason="length",
            usage=Usage(5, count),
            timings=Timings(1.0, 1.0, 1.0, 1000 * (count - 1) / rate, rate),
            speculation=stats.to_dict(),
            spec_line="",
            engine=EngineInfo("scalar", 2, 1000, 2000, "dp-test", 0),
        )
