"""Drafters, by name. Knows tokens; knows no model, no batch."""

from __future__ import annotations

from collections.abc import Callable

from draftproof.config import DRAFTERS, OWN_DRAFTERS, SpeculativeConfig
from draftproof.drafting.acceptance import Acceptance
from draftproof.drafting.allotment import allot
from draftproof.drafting.auto import AutoDrafter
from draftproof.drafting.controller import Controller, DraftMemory, TokenText
from draftproof.drafting.drafter import NO_DRAFT, Draft, Drafter, NoDrafter
from draftproof.drafting.grammar import DraftGrammar, ForcedDrafter, WithinGrammar
from draftproof.drafting.oracle import OracleDrafter
from draftproof.drafting.resync import ResyncDrafter
from draftproof.drafting.stats import SpeculationStats
from draftproof.drafting.store import RequestStore
from draftproof.drafting.suffix import SuffixDrafter
from draftproof.drafting.template import TemplateDrafter
from draftproof.drafting.verify_cost import VerifyCost
from draftproof.drafting.window import WindowDrafter
from draftproof.errors import InvalidRequestError

__all__ = [
    "NO_DRAFT",
    "Acceptance",
    "AutoDrafter",
    "Controller",
    "Draft",
    "DraftGrammar",
    "DraftMemory",
    "Drafter",
    "NoDrafter",
    "OracleDrafter",
    "RequestStore",
    "ResyncDrafter",
    "SpeculationStats",
    "SuffixDrafter",
    "TemplateDrafter",
    "TokenText",
    "VerifyCost",
    "WindowDrafter",
    "allot",
    "make_drafter",
    "register_drafter",
]


_Make = Callable[[SpeculativeConfig, DraftMemory], Drafter]
IN_AUTO = ("suffix", "template", "resync")


def _oracle(config: SpeculativeConfig, _: DraftMemory) -> Drafter:
    return OracleDrafter(
        config.recording or (),
        config.acceptance,
        config.wrong_at,
        config.wrong_in_draft,
        config.oracle_seed,
    )


def _suffix(config: SpeculativeConfig, memory: DraftMemory) -> Drafter:
    store = memory.store if config.remember else None
    return SuffixDrafter(store, config.scope, _reference(config))


def _template(_: SpeculativeConfig, memory: DraftMemory) -> Drafter:
    if memory.token_text is None:
        raise InvalidRequestError("drafter template needs a tokenizer: this engine has none")
    return TemplateDrafter(memory.token_text.token_bytes, memory.token_text.encode)


def _resync(config: SpeculativeConfig, _: DraftMemory) -> Drafter:
    return ResyncDrafter(_reference(config))


def _auto(config: SpeculativeConfig, memory: DraftMemory) -> Drafter:
    names = [name for name in IN_AUTO if name != "template" or memory.token_text is not None]
    return AutoDrafter([_DRAFTERS[name](config, memory) for name in names])


def _reference(config: SpeculativeConfig) -> tuple[int, ...]:
    if isinstance(config.reference, str):
        raise InvalidRequestError("reference is text where token ids are needed: encode it first")
    return config.reference or ()


_DRAFTERS: dict[str, _Make] = {
    "off": lambda _config, _memory: NoDrafter(),
    "auto": _auto,
    "suffix": _suffix,
    "template": _template,
    "resync": _resync,
    "window": lambda _config, _memory: WindowDrafter(),
    "oracle": _oracle,
}


def register_drafter(name: str, make: Callable[[], Drafter]) -> None:
    """Makes SpeculativeConfig(drafter=name) use what `make` gives, a fresh one for each request.
    Raises InvalidRequestError if the name is one of Draftproof's own. A drafter can't change an
    answer, only its time."""
    if not name.isidentifier() or name in DRAFTERS:
        raise InvalidRequestError(f"a drafter can't be called {name!r:.40}: choose another name")
    OWN_DRAFTERS.add(name)
    _DRAFTERS[name] = lambda _config, _memory: make()


def make_drafter(
    config: SpeculativeConfig,
    memory: DraftMemory | None = None,
    grammar: DraftGrammar | None = None,
) -> Drafter:
    """A fresh drafter for one request. memory: what it may draft from besides the request.
    grammar: what its answer has to follow."""
    memory = memory or DraftMemory()
    drafter = _DRAFTERS[config.drafter](config, memory)
    if grammar is None or config.drafter == "off":
        return drafter
    drafters = drafter.drafters if isinstance(drafter, AutoDrafter) else (drafter,)
    return AutoDrafter([ForcedDrafter(grammar), *(WithinGrammar(d, grammar) for d in drafters)])
