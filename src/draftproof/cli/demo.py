"""`draftproof demo`: the same answers without and with speculation, compared token by token.

`measure` does the work and knows neither terminal nor model files; the rest shows what it found.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftproof.cli.run import generate, messages_of, open_model, parse_k
from draftproof.cli.terminal import EXIT_CHECK_FAILED, TextOut, note, print_json
from draftproof.config import SpeculativeConfig, check_int

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import Completion
    from draftproof.sampling import SamplingParams


@dataclass(frozen=True)
class DemoOptions:
    """The command line of `demo`. k: draft tokens per step, or auto; max_tokens per answer."""

    model: str | None = None
    threads: int | None = None
    k: str = "auto"
    max_tokens: int = 128
    as_json: bool = False


@dataclass(frozen=True)
class DemoPrompt:
    title: str
    text: str


PROMPTS = (
    DemoPrompt(
        "verbatim copy",
        "Repeat this text exactly, word for word, and nothing else:\n\n"
        "The harbour wakes before the town does. Crates of mackerel slide over the wet stones, "
        "gulls argue about every scrap, and the ferry to the islands sounds its horn twice. "
        "By seven the ice is gone, the crates are empty, and the harbour goes back to sleep.",
    ),
    DemoPrompt(
        "code rename",
        "Rename the variable `tmp` to `total` in this Python code. Answer with the code only.\n\n"
        "```python\n"
        "def mean(values):\n"
        "    tmp = 0.0\n"
        "    for value in values:\n"
        "        tmp = tmp + value\n"
        "    if len(values) > 0:\n"
        "        tmp = tmp / len(values)\n"
        "    return tmp\n"
        "```",
    ),
    DemoPrompt(
        "numbered list",
        "Write a numbered list from 1 to 12. Each line says: Step N: check valve N and write "
        "down its pressure.",
    ),
    DemoPrompt("free prose", "Tell me in a few sentences how bread is made."),
)

# FIXED drafts whether or not it pays, so that the verdict stands on drafts even where the
# controller of EXACT sees nothing to gain.
OFF, EXACT, FIXED, REPLAY = "off", "exact", "k = 8", "replay"
MODES = (OFF, EXACT, FIXED, REPLAY)
_FIXED_K = 8
_WARM_UP_TOKENS = 4
_STEADY_SPREAD = 1.25


@dataclass(frozen=True)
class Comparison:
    """One prompt in all modes. first_difference: mode → position of the first output token that
    differs from plain decoding, None = none does."""

    title: str
    completions: dict[str, Completion]
    first_difference: dict[str, int | None]

    @property
    def is_identical(self) -> bool:
        return all(position is None for position in self.first_difference.values())

    @property
    def mismatches(self) -> int:
        """Replayed rows that disagreed with their probe; 0 unless something is broken."""
        return sum(c.speculation["replay_mismatches"] for c in self.completions.values())

    def rate(self, mode: str) -> float:
        """Tokens per second after the first token."""
        return self.completions[mode].timings.predicted_per_second

    def speedup(self, mode: str) -> float:
        plain = self.rate(OFF)
        return self.rate(mode) / plain if plain else 0.0


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two answers differ, their ends included; None if they don't."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def plain_spread(comparisons: Sequence[Comparison]) -> float:
    """Fastest ÷ slowest plain run. A one-row step costs nearly the same whatever the text, so much
    more than 1 means that something else used the machine, and no speedup is to be believed."""
    rates = [c.rate(OFF) for c in comparisons if c.rate(OFF) > 0]
    return max(rates) / min(rates) if rates else 1.0


def token_digest(ids: Sequence[int]) -> str:
    """sha256 in hex over the ids as little-endian int32."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little", signed=True) for i in ids)).hexdigest()


def measure(
    llm: LLM,
    prompts: Sequence[DemoPrompt],
    *,
    k: int | None,
    max_tokens: int,
    on_start: Callable[[DemoPrompt, str], None],
    on_text: Callable[[str], None],
) -> list[Comparison]:
    """Runs every prompt in all MODES; greedy, one after the other.

    `on_start(prompt, mode)` comes before each run, `on_text(piece)` while it answers."""
    from draftproof.sampling import SamplingParams

    configs = {
        OFF: SpeculativeConfig(drafter="off"),
        # Nothing is remembered: the second answer must not be drafted from the first.
        EXACT: SpeculativeConfig(drafter="auto", k=k, verify="exact", remember=False),
        FIXED: SpeculativeConfig(drafter="auto", k=_FIXED_K, verify="exact", remember=False),
        REPLAY: SpeculativeConfig(drafter="auto", k=k, verify="replay", remember=False),
    }
    # The first run after loading pays for page faults and waking threads: not the model's speed.
    warm_up = SamplingParams(max_tokens=min(_WARM_UP_TOKENS, max_tokens))
    _answer(llm, prompts[0], warm_up, configs[OFF], lambda _: None)
    sampling = SamplingParams(max_tokens=max_tokens)
    comparisons = []
    for prompt in prompts:
        completions = {}
        for mode, config in configs.items():
            on_start(prompt, mode)
            completions[mode] = _answer(llm, prompt, sampling, config, on_text)
        plain = completions[OFF].token_ids
        differences = {
            mode: first_difference(plain, completions[mode].token_ids) for mode in MODES[1:]
        }
        comparisons.append(Comparison(prompt.title, completions, differences))
    return comparisons


def _answer(
    llm: LLM,
    prompt: DemoPrompt,
    sampling: SamplingParams,
    config: SpeculativeConfig,
    on_text: Callable[[str], None],
) -> Completion:
    messages = messages_of(prompt.text, None)
    return generate(llm, messages, sampling, config, lambda text, _: on_text(text))


def to_dict(comparisons: Sequence[Comparison], k: int | None) -> dict[str, Any]:
    """What --json prints: whole digests, rates, and the full statistics of each run."""
    return {
        "identical": all(c.is_identical for c in comparisons),
        "k": "auto" if k is None else k,
        "plain_spread": plain_spread(comparisons),
        "engine": comparisons[0].completions[OFF].to_dict()["engine"],
        "prompts": [
            {
                "title": c.title,
                "verdict": "identical" if c.is_identical else "different",
                "first_difference": c.first_difference,
                "runs": {mode: _run_dict(c, mode) for mode in MODES},
            }
            for c in comparisons
        ],
    }


def _run_dict(comparison: Comparison, mode: str) -> dict[str, Any]:
    completion = comparison.completions[mode]
    result = completion.to_dict()
    del result["engine"]
    result["token_ids_sha256"] = token_digest(completion.token_ids)
    result["speedup"] = comparison.speedup(mode)
    return result


def run_demo(options: DemoOptions) -> int:
    """The exit code of `draftproof demo`."""
    k = parse_k(options.k)
    check_int("--max-tokens", options.max_tokens, 1, 1 << 20)
    llm = open_model(options.model, threads=options.threads, prefix_cache=False)
    screen = _Screen(quiet=options.as_json)
    comparisons = measure(
        llm,
        PROMPTS,
        k=k,
        max_tokens=options.max_tokens,
        on_start=screen.start,
        on_text=screen.write,
    )
    screen.finish()
    if options.as_json:
        print_json(to_dict(comparisons, k))
    else:
        _print_table(comparisons, k)
    return _verdict(comparisons)


class _Screen:
    """The answers as they come: plain and exact are shown, the others only measured."""

    def __init__(self, quiet: bool) -> None:
        self._out = TextOut()
        self._quiet = quiet
        self._mode = ""

    def start(self, prompt: DemoPrompt, mode: str) -> None:
        self._mode = mode
        if self._quiet:
            return
        self._out.finish()
        if mode == REPLAY:
            note("(once more with replay, for the table)")
        elif mode == FIXED:
            note(f"(once more with {FIXED} fixed, for the table)")
        else:
            self._out.write(f"\n── {prompt.title}, speculation {'off' if mode == OFF else 'on'}\n")

    def write(self, text: str) -> None:
        if not self._quiet and self._mode in (OFF, EXACT):
            self._out.write(text)

    def finish(self) -> None:
        if not self._quiet:
            self._out.finish()


def _print_table(comparisons: Sequence[Comparison], k: int | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Fits 80 columns: nothing between the columns but the box's own space.
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("prompt")
    table.add_column("verify", no_wrap=True)
    for title in ("tokens", "off\ntok/s", "on\ntok/s", "speedup", "accepted\n÷ drafted"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("sha256 of\ntoken ids", no_wrap=True)
    for c in comparisons:
        for mode in MODES[1:]:
            completion = c.completions[mode]
            stats = completion.speculation
            table.add_row(
                c.title if mode == EXACT else "",
                mode,
                str(completion.usage.completion_tokens),
                f"{c.rate(OFF):.1f}",
                f"{c.rate(mode):.1f}",
                f"{c.speedup(mode):.2f} x",
                f"{stats['accepted']} ÷ {stats['drafted']}",
                _word(c.first_difference[mode]),
                token_digest(completion.token_ids)[:12],
                end_section=mode == REPLAY,
            )
    console = Console(file=sys.stdout, highlight=False, markup=False)
    # A file or a pipe has no width of its own: nothing is to be cut there.
    console.print(table, width=None if console.is_terminal else 100)
    engine = comparisons[0].completions[OFF].engine
    length = "auto" if k is None else k
    note(f"auto drafter, k = {length}; {engine.isa} kernels, {engine.threads} threads, greedy")
    spread = plain_spread(comparisons)
    if spread > _STEADY_SPREAD:
        note(
            f"The plain runs differ in speed by a factor of {spread:.1f}: the machine was busy, so "
            "don't trust the speedups; run it again when it is idle. The verdicts hold."
        )


def _word(difference: int | None) -> str:
    return "identical" if difference is None else f"differs @{difference}"


def _verdict(comparisons: Sequence[Comparison]) -> int:
    code = 0
    for c in comparisons:
        for mode, position in c.first_difference.items():
            if position is not None:
                plain, other = c.completions[OFF].token_ids, c.completions[mode].token_ids
                note(
                    f"draftproof: error: {c.title}: {mode} differs from plain decoding at token "
                    f"{position}: {_token(other, position)} instead of {_token(plain, position)}"
                )
                code = EXIT_CHECK_FAILED
        if c.mismatches:
            note(f"draftproof: error: {c.title}: {c.mismatches} replayed rows disagreed")
            code = EXIT_CHECK_FAILED
    return code


def _token(ids: Sequence[int], position: int) -> str:
    return str(ids[position]) if position < len(ids) else "the end"
