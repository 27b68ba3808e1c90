"""`draftproof bench`: prompts off against on, and what is said meanwhile and at the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.cli.run import open_model
from draftproof.cli.terminal import EXIT_CHECK_FAILED, EXIT_USER_ERROR, TextOut, note
from draftproof.config import (
    DRAFTERS,
    MAX_DRAFT_TOKENS,
    VERIFY_MODES,
    SpeculativeConfig,
    check_choice,
    check_int,
    check_real,
)
from draftproof.errors import ContextLengthError, InvalidRequestError

if TYPE_CHECKING:
    from draftproof.bench.compare import CompareSettings, PromptResult
    from draftproof.bench.workloads import Workload
    from draftproof.llm import LLM

_BENCHED = tuple(name for name in DRAFTERS if name not in ("off", "oracle"))


@dataclass(frozen=True)
class BenchOptions:
    """The command line of `bench`, as it was typed. spec None: the best drafter there is."""

    model: str | None = None
    workloads: tuple[Path, ...] = ()
    spec: str | None = None
    spec_k: str | None = None
    spec_verify: str = "exact"
    threads: int | None = None
    repeat: int = 3
    max_tokens: int | None = None
    temperature: float = 0.0
    sample: int | None = None
    seed: int = 0
    resume: Path | None = None
    keep_going: bool = False
    drafter_only: bool = False
    replay: Path | None = None
    profile: Path | None = None
    plot: Path | None = None
    format: str = "md"


def speculation_of(options: BenchOptions) -> SpeculativeConfig:
    """Checks the --spec options, in the words of the command line. Nothing is remembered between
    requests: else a prompt's second run would be drafted from its first."""
    spec = _BENCHED[0] if options.spec is None else options.spec
    check_choice("--spec", spec, _BENCHED)
    check_choice("--spec-verify", options.spec_verify, VERIFY_MODES)
    return SpeculativeConfig(
        drafter=spec, k=_draft_length(options.spec_k), verify=options.spec_verify, remember=False
    )


def _draft_length(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    if not (text.isascii() and text.isdigit()) or int(text[:9]) > MAX_DRAFT_TOKENS:
        raise InvalidRequestError(
            f"--spec-k must be auto or a whole number from 0 to {MAX_DRAFT_TOKENS}, "
            f"got {text!r:.40}"
        )
    return int(text)


def chosen_workloads(options: BenchOptions) -> tuple[list[Workload], list[str]]:
    """(prompts to run, complaints about bad lines). InvalidRequestError: nothing is left, or a line
    is bad and --keep-going wasn't given."""
    from dataclasses import replace

    from draftproof.bench.builtin import BUILT_IN
    from draftproof.bench.workloads import load_workloads, sample

    workloads: Sequence[Workload] = BUILT_IN
    complaints: list[str] = []
    if options.workloads:
        workloads, complaints = load_workloads(options.workloads)
    if complaints and not options.keep_going:
        more = f" (and {len(complaints) - 1} more bad lines)" if len(complaints) > 1 else ""
        raise InvalidRequestError(
            f"{complaints[0]}{more}; --keep-going runs the good lines nevertheless"
        )
    chosen = sample(workloads, options.sample, options.seed)
    if options.max_tokens is not None:
        limit = options.max_tokens
        chosen = [replace(w, max_tokens=min(w.max_tokens, limit)) for w in chosen]
    if not chosen:
        names = ", ".join(str(path) for path in options.workloads)
        raise InvalidRequestError(f"no prompts to run in {names}" if names else "no prompts to run")
    return chosen, complaints


def check_options(options: BenchOptions) -> None:
    """InvalidRequestError that names the option."""
    if options.threads is not None:
        check_int("--threads", options.threads, 1, 1024)
    check_int("--repeat", options.repeat, 1, 1000)
    if options.max_tokens is not None:
        check_int("--max-tokens", options.max_tokens, 1, 1 << 20)
    check_real("--temperature", options.temperature, 0.0, 100.0)
    if options.sample is not None:
        check_int("--sample", options.sample, 1, 1 << 20)
    check_int("--seed", options.seed, 0, 2**64 - 1)
    if options.drafter_only != (options.replay is not None):
        raise InvalidRequestError(
            "--drafter-only and --replay FILE belong together: give both or neither"
        )
    if options.plot is not None and options.drafter_only:
        raise InvalidRequestError("--plot is for runs of a model, not for --drafter-only")
    if options.profile is not None and not options.drafter_only:
        raise InvalidRequestError("--profile is for --drafter-only: a real run measures V itself")


def run_bench(options: BenchOptions) -> int:
    """The exit code of `draftproof bench`."""
    from draftproof.bench import plot
    from draftproof.bench.compare import CompareSettings
    from draftproof.bench.noise import Watch
    from draftproof.bench.report import render

    check_options(options)
    speculation = speculation_of(options)
    if options.drafter_only:
        from draftproof.cli.bench_replay import run_replay

        return run_replay(options, speculation)
    if options.plot is not None:
        plot.check_plot(options.plot)
    workloads, complaints = chosen_workloads(options)
    for complaint in complaints:
        note(f"draftproof: skipped: {complaint}")
    settings = CompareSettings(
        on=speculation, repeat=options.repeat, temperature=options.temperature, seed=options.seed
    )
    llm = open_model(options.model, threads=options.threads, prefix_cache=False)
    watch = Watch()
    with _progress(len(workloads)) as progress:
        engine, results, skipped = _compare_all(llm, workloads, settings, options, progress)
    if not results:
        raise InvalidRequestError("no prompt could be run")
    engine["noise_reasons"] = watch.reasons()
    out = TextOut()
    out.write(render(options.format, engine, results))
    out.finish()
    if options.plot is not None:
        plot.draw_comparison(engine, results, options.plot)
        note(f"plot written to {options.plot}")
    for reason in engine["noise_reasons"]:
        note(f"noisy: {reason}")
    different = [result for result in results if not result.identical]
    for result in different:
        note(
            f"draftproof: error: {result.id} differs from plain decoding at token "
            f"{result.first_difference}"
        )
    if different:
        return EXIT_CHECK_FAILED
    return EXIT_USER_ERROR if complaints or skipped else 0


def _compare_all(
    llm: LLM,
    workloads: Sequence[Workload],
    settings: CompareSettings,
    options: BenchOptions,
    progress: Callable[[PromptResult | None, str], None],
) -> tuple[dict[str, Any], list[PromptResult], int]:
    """(engine, results in order of the workloads, prompts left out because they don't fit)"""
    from draftproof.bench.compare import compare, warm_up
    from draftproof.bench.resume import Journal

    verify_cost = llm.verify_cost  # measured before the first run, if it has to be
    first = warm_up(llm, workloads[0], settings)
    engine = _engine(first.engine, options, settings)
    journal = None
    if options.resume is not None:
        keys = ("model", "isa", "threads", "system_fingerprint", "speculation", "sampling")
        journal = Journal(options.resume, {key: engine[key] for key in keys})
    results: list[PromptResult] = []
    controlled: set[str] = set()
    skipped = 0
    for workload in workloads:
        done = None if journal is None else journal.done.get(workload.id)
        if done is None:
            progress(None, workload.id)
            try:
                # With one run of each side only the first prompt of a kind pays for a control.
                done = compare(llm, workload, settings, workload.kind not in controlled)
            except ContextLengthError as error:
                if not options.keep_going:
                    raise ContextLengthError(f"{workload.id}: {error}") from None
                note(f"draftproof: skipped: {workload.id}: {error}")
                skipped += 1
                continue
            if journal is not None:
                journal.add(done)
        controlled.add(workload.kind)
        results.append(done)
        progress(done, workload.id)
    engine["verify_cost"] = verify_cost.to_dict()["verify_cost"]
    return engine, results, skipped


def _engine(info: Any, options: BenchOptions, settings: CompareSettings) -> dict[str, Any]:
    from draftproof import catalogue

    on = settings.on
    k = "k chosen every step" if on.k is None else f"k = {on.k}"
    sampling = (
        f"temperature {settings.temperature:g}, seed {settings.seed}"
        if settings.temperature
        else "greedy"
    )
    model = catalogue.DEFAULT_MODEL if options.model is None else Path(options.model).name
    return {
        "model": model,
        **asdict(info),
        "speculation": f"{on.drafter}, {k}, {on.verify}",
        "sampling": sampling,
        "repeat": settings.repeat,
    }


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[PromptResult | None, str], None]]:
    """A callback (result or None at a prompt's start, its id): a bar on a terminal's stderr, else
    one line per finished prompt."""
    if not sys.stderr.isatty():
        done = 0

        def line(result: PromptResult | None, name: str) -> None:
            nonlocal done
            if result is not None:
                done += 1
                note(f"{done}/{total} {name}: {_short(result)}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=total)

        def draw(result: PromptResult | None, name: str) -> None:
            text = name if result is None else f"{name}: {_short(result)}"
            bar.update(task, advance=result is not None, description=text)

        yield draw


def _short(result: PromptResult) -> str:
    verdict = "identical" if result.identical else "DIFFERENT"
    return f"{result.tokens} tokens, {result.speedup:.2f} x, {verdict}"
