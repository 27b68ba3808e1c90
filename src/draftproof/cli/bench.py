"""`draftproof bench` and `draftproof bench kernels`: their options. The work is done elsewhere.

Without a subcommand, `bench` means `bench compare`: `draftproof bench MODEL`.
"""

# typer reads the annotations below at run time: every name in them must stay a global of this file.
from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from draftproof.cli.terminal import guarded

_DEFAULT = "compare"


class _DefaultGroup(TyperGroup):
    """Puts the default subcommand in front of whatever isn't the name of a subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_DEFAULT, *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


bench_app = typer.Typer(
    cls=_DefaultGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure: speculation off against on (`bench MODEL`), or the kernels (`bench kernels`).",
)


class Format(str, Enum):
    MD = "md"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"


Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", help="Threads. Default: the cores this process may use."),
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


@bench_app.command(
    _DEFAULT,
    epilog="Examples:  draftproof bench qwen2.5-coder-1.5b --plot bench.svg  |  draftproof bench "
    "-w prompts.jsonl --repeat 5 --json. The linear kernels alone: draftproof bench kernels.",
)
def compare(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A .gguf file or a name. Default: smollm2-135m."),
    ] = None,
    workload: Annotated[
        list[Path] | None,
        typer.Option(
            "--workload",
            "-w",
            metavar="FILE.jsonl",
            help="Prompts, one JSON object a line: messages or prompt, max_tokens, id, kind. May "
            "be given more than once. Default: a built-in set.",
        ),
    ] = None,
    spec: Annotated[
        str | None, typer.Option(metavar="DRAFTER", help="Who drafts. Default: the best there is.")
    ] = None,
    spec_k: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Draft tokens per step: fixed, or chosen every step."),
    ] = None,
    spec_verify: Annotated[str, typer.Option(metavar="exact|replay", help="How.")] = "exact",
    threads: Threads = None,
    repeat: Annotated[
        int, typer.Option("--repeat", "-r", help="Runs off and on per prompt, in turns.")
    ] = 3,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", help="Cuts every answer at this length.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.0,
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="Only N of the prompts, drawn by --seed.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For --sample, and for sampling tokens.")] = 0,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keep finished prompts here, and skip those already there."
        ),
    ] = None,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="Run the good lines of a workload despite bad ones."),
    ] = False,
    drafter_only: Annotated[
        bool,
        typer.Option("--drafter-only", help="Replay recorded texts; the model isn't run."),
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="For --drafter-only: id, kind, prompt, output."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="For --drafter-only: V(m) from `draftproof profile --json`. Default: typical.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg|png", help="Draw it too; needs the extra `plot`."),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.MD,
    as_json: Json = False,
) -> None:
    """Speculation off against on: speed, and whether every token is the same.

    Ends with 0, 1 if any prompt's tokens differ, 2 for a mistake in the call or in a workload.
    """
    with guarded():
        from draftproof.cli.bench_compare import BenchOptions, run_bench

        options = BenchOptions(
            model=model,
            workloads=tuple(workload or ()),
            spec=spec,
            spec_k=spec_k,
            spec_verify=spec_verify,
            threads=threads,
            repeat=repeat,
            max_tokens=max_tokens,
            temperature=temperature,
            sample=sample,
            seed=seed,
            resume=resume,
            keep_going=keep_going,
            drafter_only=drafter_only,
            replay=replay,
            profile=profile,
            plot=plot,
            format="json" if as_json else format_.value,
        )
        code = run_bench(options)
    raise typer.Exit(code)


@bench_app.command(epilog="Example:  draftproof bench kernels --type Q4_K --shape 1536x8960")
def kernels(
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", help="A weight type such as Q4_K. May be given more than once."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="INxOUT", help="A layer's shape. May be given more than once."),
    ] = None,
    rows: Annotated[
        str, typer.Option(metavar="M,M,...", help="Rows per step.")
    ] = "1,2,4,8,16,32,64",
    threads: Threads = None,
    isa: Annotated[str, typer.Option(help="A row of the dispatch table. Default: the best.")] = "",
    repeat: Annotated[int, typer.Option("--repeat", "-r", help="Rounds, in turns over all m.")] = 7,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")
    ] = False,
) -> None:
    """The linear kernels: GB/s, share of the read bandwidth, V(m) and rows/s.

    The bandwidth is measured in the same run; figures of a busy machine are marked noisy.
    """
    with guarded():
        from draftproof.cli.bench_kernels import KernelOptions, run_kernels

        options = KernelOptions(
            types=tuple(kind or ()),
            shapes=tuple(shape or ()),
            rows=rows,
            threads=threads,
            isa=isa,
            repeat=repeat,
            as_json=as_json,
        )
        code = run_kernels(options)
    raise typer.Exit(code)
