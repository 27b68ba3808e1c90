"""A prompt and its settings as requests, one for each choice. Knows no queue and no thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draftproof.config import SpeculativeConfig
from draftproof.engine import LogitsTrail
from draftproof.request import Request
from draftproof.sampling import SamplingParams
from draftproof.text import Detokenizer
from draftproof.text.grammar import GrammarCompiler

if TYPE_CHECKING:
    from draftproof.text import Tokenizer


class RequestMaker:
    """For one tokenizer. Safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._grammars = GrammarCompiler(tokenizer)

    def make(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams | None,
        speculation: SpeculativeConfig | None,
        *,
        audit: bool = False,
        cache_salt: str = "",
        progress: bool = False,
    ) -> list[Request]:
        """sampling.n requests that differ in their choice only: one seed, one grammar. The first
        reports progress. Raises GrammarError."""
        sampling = sampling or SamplingParams()
        speculation = self._with_ids(speculation or SpeculativeConfig())
        tokenizer, grammar = self._tokenizer, sampling.grammar
        # A control token has no text that a stop string could be found in: stop at its id.
        control = tokenizer.control_tokens
        stop_ids = {control[text]: text for text in sampling.stop if text in control}
        matcher = None if grammar is None else self._grammars.compile(grammar.kind, grammar.text)
        requests: list[Request] = []
        for choice in range(sampling.n):
            if requests:
                sampling = replace(sampling, seed=requests[0].seed)
            requests.append(
                Request(
                    prompt_ids,
                    sampling,
                    speculation,
                    choice_index=choice,
                    eos_ids=tokenizer.eos_ids,
                    stop_ids=stop_ids,
                    text_sink=Detokenizer(tokenizer, sampling.stop),
                    grammar=matcher.copy() if matcher is not None else None,
                    logits_hash=LogitsTrail() if audit else None,
                    wants_progress=progress and choice == 0,
                    cache_salt=cache_salt,
                )
            )
        return requests

    def _with_ids(self, config: SpeculativeConfig) -> SpeculativeConfig:
        if not isinstance(config.reference, str):
            return config
        reference = self._tokenizer.encode(config.reference, parse_special=False)
        return replace(config, reference=tuple(reference))
