"""Drafters, by name. Knows tokens; knows no model, no batch."""

from __future__ import annotations

from collections.abc import Callable

from draftproof.config import SpeculativeConfig
from draftproof.drafting.drafter import NO_DRAFT, Draft, Drafter, NoDrafter
from draftproof.drafting.oracle import OracleDrafter
from draftproof.drafting.stats import SpeculationStats
from draftproof.drafting.window import WindowDrafter

__all__ = [
    "NO_DRAFT",
    "Draft",
    "Drafter",
    "NoDrafter",
    "OracleDrafter",
    "SpeculationStats",
    "WindowDrafter",
    "make_drafter",
]


def _oracle(config: SpeculativeConfig) -> Drafter:
    return OracleDrafter(
        config.recording or (),
        config.acceptance,
        config.wrong_at,
        config.wrong_in_draft,
        config.oracle_seed,
    )


_DRAFTERS: dict[str, Callable[[SpeculativeConfig], Drafter]] = {
    "off": lambda _: NoDrafter(),
    "window": lambda _: WindowDrafter(),
    "oracle": _oracle,
}


def make_drafter(config: SpeculativeConfig) -> Drafter:
    """A fresh drafter for one request."""
    return _DRAFTERS[config.drafter](config)
