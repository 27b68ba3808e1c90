"""An LLM that recites, for tests of the command line; as a program, the command line around it.

`python fake_llm.py run "hello"` is `draftproof run "hello"` with the recital of $FAKE_PIECES (a
JSON list of strings, one per token), $FAKE_TIMES times, with a pause of $FAKE_PAUSE seconds before
each piece. The file $FAKE_READY appears once the first piece has been taken."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import Result

import draftproof.llm
from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.drafting.stats import SpeculationStats
from draftproof.outputs import Completion, Delta, EngineInfo, FinishReason, Timings, Usage
from draftproof.request import SamplingParams

Invoke = Callable[..., Result]
"""`invoke("run", "hello", input="text of the pipe")`; an unexpected exception fails the test."""


@dataclass
class FakeLLM:
    """Recites `pieces`, token i being 100 + i; records every call. `wrong_at[mode]`: the token at
    that position comes out as 7 in that mode ("off", "exact", "replay")."""

    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo ", "world"])
    pause: float = 0.0
    ready: Path | None = None
    wrong_at: dict[str, int] = field(default_factory=dict)
    short_in: dict[str, int] = field(default_factory=dict)
    replay_mismatches: int = 0
    slowdown: dict[int, float] = field(default_factory=dict)  # number of the call, from 1
    finish_reason: FinishReason = "stop"
    loaded: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[Any, SamplingParams, SpeculativeConfig]] = field(default_factory=list)

    def open(self, model: str | None, *, progress: Any = None, **settings: Any) -> FakeLLM:
        """Stands in for the class LLM."""
        threads = settings["threads"]
        EngineConfig(
            threads=1 if threads is None else threads,
            ctx=settings["ctx"],
            kv_type=settings["kv_type"],
        )
        self.loaded.append({"model": model, **settings})
        return self

    def stream(
        self, prompt: Any, sampling: SamplingParams, speculation: SpeculativeConfig
    ) -> Iterator[Delta]:
        self.calls.append((prompt, sampling, speculation))
        mode = "off" if speculation.drafter == "off" else speculation.verify
        pieces = self.pieces[: sampling.max_tokens]
        pieces = pieces[: len(pieces) - self.short_in.get(mode, 0)]
        ids = [7 if self.wrong_at.get(mode) == i else 100 + i for i in range(len(pieces))]
        for token, piece in zip(ids, pieces, strict=True):
            time.sleep(self.pause)
            yield Delta(piece, (token,))
            if self.ready is not None:
                self.ready.touch()
        yield Delta("", (), self._completion(mode, pieces, ids, speculation))

    def _completion(
        self, mode: str, pieces: list[str], ids: list[int], speculation: SpeculativeConfig
    ) -> Completion:
        stats = SpeculationStats.of(speculation)
        if mode != "off":
            stats.tries, stats.drafted, stats.accepted, stats.rejected = 2, 8, 5, 3
        if mode == "replay":
            stats.replay_mismatches = self.replay_mismatches
        rate = {"off": 20.0, "exact": 50.0, "replay": 19.0}[mode]
        rate /= self.slowdown.get(len(self.calls), 1.0)
        return Completion(
            text="".join(pieces),
            token_ids=tuple(ids),
            finish_reason=self.finish_reason,
            usage=Usage(11, len(ids)),
            timings=Timings(250.0, 100.0, 110.0, 1000 * len(ids) / rate, rate),
            speculation=stats.to_dict(),
            spec_line=stats.line(),
            engine=EngineInfo("scalar", 2, 1000, 2000, "dp-test", 0),
        )


if __name__ == "__main__":
    from draftproof.cli import main

    environment = os.environ
    fake = FakeLLM(
        pieces=json.loads(environment["FAKE_PIECES"]) * int(environment.get("FAKE_TIMES", "1")),
        pause=float(environment.get("FAKE_PAUSE", "0")),
        ready=Path(environment["FAKE_READY"]) if "FAKE_READY" in environment else None,
    )
    draftproof.llm.LLM = fake.open  # type: ignore[misc,assignment]
    main(sys.argv[1:])
