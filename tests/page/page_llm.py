"""An LLM that recites and says who drafted what, for the page."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from server_support import FakeLLM

from draftproof.config import SpeculativeConfig
from draftproof.outputs import Delta, Origin, TokenEvent
from draftproof.sampling import SamplingParams


@dataclass
class PageLLM(FakeLLM):
    """Recites `text`, three tokens a step with speculation (the first one drafted by `suffix`, the
    second by `template`), one without. Every second step rejects a draft. text_on: recited instead
    with speculation."""

    verify_cost: Any = None
    text_on: str = ""

    async def astream(
        self, prompt: Any, sampling: SamplingParams, speculation: SpeculativeConfig, **more: Any
    ) -> AsyncGenerator[Delta, None]:
        if self.text_on and speculation.drafter != "off":
            self.text = self.text_on
        deltas = super().astream(prompt, sampling, speculation, **more)
        waiting: list[TokenEvent] = []
        step = 0
        width = 1 if speculation.drafter == "off" else 3
        sources = ("suffix", "template", "bonus") if width == 3 else ("plain",)
        async for delta in deltas:
            if delta.completion is None:
                rejected = (120, 121) if step % 2 and len(waiting) == 2 else ()
                origin = Origin(sources[len(waiting)], step, rejected)
                token = delta.token_ids[0] if delta.token_ids else 0
                waiting.append(TokenEvent(token, delta.text, None, origin=origin))
            if waiting and (len(waiting) == width or delta.completion is not None):
                yield Delta(
                    "".join(event.text for event in waiting),
                    tuple(event.token_id for event in waiting),
                    events=tuple(waiting),
                )
                waiting, step = [], step + 1
            if delta.completion is not None:
                yield delta
