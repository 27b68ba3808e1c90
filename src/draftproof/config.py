"""Settings of the engine and of speculation, frozen and checked at the door.

Owns ranges and defaults. Knows nothing of models, requests or the native side.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from draftproof.errors import InvalidRequestError

KV_TYPES = ("f16", "f32", "bf16", "q8_0")
QUANTIZATIONS = ("q8_0", "q4_k_m")
DRAFTERS = ("off", "auto", "suffix", "template", "resync", "window", "oracle")
OWN_DRAFTERS: set[str] = set()  # names that drafting.register_drafter added
VERIFY_MODES = ("exact", "replay")
MAX_DRAFT_TOKENS = 63
MAX_REFERENCE_TOKENS = 100_000
MAX_REFERENCE_CHARACTERS = 1_000_000
DEFAULT_DRAFT_TOKENS = 4
MOST_LOGIT_ROWS = 128


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raises InvalidRequestError unless `value` is a whole number in low..high (bool isn't one)."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be a whole number, got {value!r}")
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be between {low} and {high}, got {value}")


def check_real(name: str, value: object, low: float, high: float) -> None:
    """Raises InvalidRequestError unless `value` is a finite number in low..high."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise InvalidRequestError(f"{name} must be finite, got {value}")
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be between {low:g} and {high:g}, got {value}")


def parse_bytes(name: str, text: str) -> int:
    """Bytes, as people write them: 800M, 2G, 1.5GiB, 123456. Raises InvalidRequestError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    if match is None or len(text) > 20:
        raise InvalidRequestError(f"{name} must be a size such as 2G or 800M, got {text!r:.40}")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises InvalidRequestError unless `value` is one of `choices`."""
    if value not in choices:
        raise InvalidRequestError(
            f"{name} must be one of {', '.join(choices)}, got {reprlib.repr(value)}"
        )


def _check_reference_length(length: int, most: int, unit: str) -> None:
    if length > most:
        raise InvalidRequestError(f"reference has {length} {unit}, at most {most} are allowed")


def default_threads() -> int:
    """max(1, min(CPUs this process may use, whole CPUs of the cgroup quota))."""
    usable = getattr(os, "sched_getaffinity", None)  # Linux only
    cpus = len(usable(0)) if usable else os.cpu_count() or 1
    quota = _cgroup_cpus(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, math.floor(min(cpus, quota)))


def _cgroup_cpus(membership: Path, root: Path) -> float:
    """The smallest CPU quota on the way from this process's cgroup up to `root`, inf if none.

    Reads cgroup v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`, `cpu.cfs_period_us`).
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    smallest = math.inf
    for line in lines:
        _, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        folder = base / path.lstrip("/")
        while True:
            smallest = min(smallest, _folder_quota(folder))
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return smallest


def _folder_quota(folder: Path) -> float:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        if quota == "max" or int(quota) <= 0 or int(period) <= 0:
            return math.inf
        return int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


@dataclass(frozen=True)
class EngineConfig:
    """What is fixed when a model is loaded.

    threads: worker threads of the native side. ctx: positions of the context, None = set at load.
    kv_type: how keys and values are stored (a numeric setting: it changes the bits).
    quantize: what float weights are packed to while they are loaded, None = as they are (a numeric
    setting too).
    prefill_chunk: prompt rows per step. isa: a row of the dispatch table, "" = the best here.
    max_queue: requests that may wait for their turn. max_running: those that are played together.
    kv_memory: bytes for keys and values, None = set at load. prefix_cache: whether the keys and
    values of earlier requests serve later ones that begin alike.
    image_min_tokens, image_max_tokens: an image becomes at least and at most so many tokens (it is
    resized; numeric settings, too).
    Raises InvalidRequestError that names the field.
    """

    threads: int = field(default_factory=default_threads)
    ctx: int | None = None
    kv_type: str = "f16"
    quantize: str | None = None
    prefill_chunk: int = 256
    isa: str = ""
    max_queue: int = 256
    max_running: int = 64
    kv_memory: int | None = None
    prefix_cache: bool = True
    image_min_tokens: int = 64
    image_max_tokens: int = 512

    def __post_init__(self) -> None:
        check_int("threads", self.threads, 1, 1024)
        if self.ctx is not None:
            check_int("ctx", self.ctx, 2, 1 << 24)
        check_choice("kv_type", self.kv_type, KV_TYPES)
        if self.quantize is not None:
            check_choice("quantize", self.quantize, QUANTIZATIONS)
        check_int("prefill_chunk", self.prefill_chunk, 1, 4096)
        check_int("max_queue", self.max_queue, 1, 1 << 20)
        check_int("max_running", self.max_running, 1, 1024)
        if self.kv_memory is not None:
            check_int("kv_memory", self.kv_memory, 1, 1 << 46)
        if not isinstance(self.prefix_cache, bool):
            raise InvalidRequestError(
                f"prefix_cache must be true or false, got {self.prefix_cache!r}"
            )
        check_int("image_max_tokens", self.image_max_tokens, 4, 16384)
        check_int("image_min_tokens", self.image_min_tokens, 1, self.image_max_tokens)
        if not isinstance(self.isa, str):
            raise InvalidRequestError(f"isa must be a name, got {self.isa!r}")

    @property
    def max_rows(self) -> int:
        """Rows of the largest step: all answers with their drafts, and a chunk of a prompt."""
        return self.prefill_chunk + self.max_logit_rows

    @property
    def max_logit_rows(self) -> int:
        """Marked rows of the largest step: one per answer, or a few answers with long drafts. Each
        takes memory for the logits of the whole vocabulary once it is used."""
        return max(MOST_LOGIT_ROWS, self.max_running)


@dataclass(frozen=True)
class SpeculativeConfig:
    """How one request drafts and verifies.

    k: draft tokens per step (num_speculative_tokens); 0 drafts nothing; None: as many as pay, at
    most k_max, chosen every step (in mode `replay`, which never pays, 4).
    remember: the finished request may serve later ones of the same scope to draft from. scope: an
    opaque name; requests of different scopes never see one another. reference: text or token ids
    that the answer is likely to quote, to draft from; not part of the prompt.
    The rest belongs to the `oracle` drafter: recording = the completion's token ids of a plain run;
    acceptance = probability that a position is drafted right, drawn per output position from
    oracle_seed; wrong_at = output positions always drafted wrong; wrong_in_draft = places inside
    every draft that are wrong (-1 = its last token).
    Raises InvalidRequestError that names the field.
    """

    drafter: str = "auto"
    k: int | None = None
    verify: str = "exact"
    recording: tuple[int, ...] | None = None
    acceptance: float = 1.0
    wrong_at: tuple[int, ...] = ()
    wrong_in_draft: tuple[int, ...] = ()
    oracle_seed: int = 0
    k_max: int = MAX_DRAFT_TOKENS
    remember: bool = True
    scope: str = ""
    reference: str | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_choice("drafter", self.drafter, (*DRAFTERS, *sorted(OWN_DRAFTERS)))
        if self.k is not None:
            check_int("k", self.k, 0, MAX_DRAFT_TOKENS)
        check_int("k_max", self.k_max, 0, MAX_DRAFT_TOKENS)
        check_choice("verify", self.verify, VERIFY_MODES)
        check_real("acceptance", self.acceptance, 0.0, 1.0)
        check_int("oracle_seed", self.oracle_seed, 0, 2**64 - 1)
        if self.drafter == "oracle" and not self.recording:
            raise InvalidRequestError(
                "drafter oracle needs a recording: the token ids of a plain run of the same request"
            )
        if self.drafter != "oracle" and self.recording is not None:
            raise InvalidRequestError(f"recording is for drafter oracle, not for {self.drafter}")
        if not isinstance(self.remember, bool):
            raise InvalidRequestError(f"remember must be true or false, got {self.remember!r}")
        if not isinstance(self.scope, str):
            raise InvalidRequestError(f"scope must be a string, got {self.scope!r}")
        reference = self.reference
        if isinstance(reference, str):
            _check_reference_length(len(reference), MAX_REFERENCE_CHARACTERS, "characters")
        if reference is not None and not isinstance(reference, str):
            if not isinstance(reference, (tuple, list)):
                raise InvalidRequestError("reference must be text or a list of token ids")
            _check_reference_length(len(reference), MAX_REFERENCE_TOKENS, "tokens")
            for token in reference:
                check_int("reference", token, 0, 2**31 - 1)
            object.__setattr__(self, "reference", tuple(reference))

    @property
    def is_controlled(self) -> bool:
        """Whether the draft length is chosen step by step."""
        return self.k is None and self.drafter != "off" and self.verify == "exact"

    @property
    def largest_draft(self) -> int:
        """Draft tokens of one step at most."""
        if self.drafter == "off":
            return 0
        if self.k is not None:
            return self.k
        return self.k_max if self.is_controlled else min(DEFAULT_DRAFT_TOKENS, self.k_max)
