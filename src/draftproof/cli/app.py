"""The commands and their options, and nothing else: each hands over to a module of its own."""

# typer reads the annotations below at run time: every name in them must stay a global of this file.
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.bench import bench_app
from draftproof.cli.convert import convert
from draftproof.cli.options import (
    Context,
    Json,
    Mmproj,
    ModelName,
    SpecK,
    Threads,
)
from draftproof.cli.run_command import run
from draftproof.cli.serve import serve
from draftproof.cli.synth import synth
from draftproof.cli.terminal import guarded

app = typer.Typer(
    name="draftproof",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench_app, name="bench")
app.command(
    epilog="Examples:  draftproof convert qwen3-0.6b-folder --to qwen3.gguf  |  draftproof convert "
    "folder --to small.gguf --quantize q4_k_m"
)(convert)
app.command(epilog="Example:  draftproof synth qwen3-8b big.gguf")(synth)
app.command(
    epilog="Examples:  draftproof serve  |  draftproof serve model.gguf --port 8080 --api-key KEY"
)(serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"draftproof {version('draftproof')}")
        except PackageNotFoundError:
            print("draftproof (not installed: run from its sources)")
        raise typer.Exit


@app.callback(
    epilog="Examples:  draftproof demo  |  draftproof run 'Why is the sky blue?'  |  "
    "draftproof run model.gguf 'Rename x to y' < code.py  |  draftproof doctor",
)
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Qwen models on a CPU, made faster by speculation that cannot change a byte of the output."""


app.command(
    epilog="Examples:  draftproof run 'Why is the sky blue?'  |  draftproof run model.gguf "
    "--temperature 0.7 --seed 1 'A limerick.'  |  draftproof run 'Rename x to y' < code.py"
)(run)


@app.command(
    epilog="Examples:  draftproof chat  |  draftproof chat qwen2.5-coder-1.5b --system 'Be brief.'"
    "  |  printf 'Hello\\nAnd again?\\n' | draftproof chat",
)
def chat(
    model: ModelName = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None,
    threads: Threads = None,
    ctx: Context = None,
    spec: Annotated[
        str, typer.Option(metavar="off|auto|K", help="Speculation; `/spec` changes it later.")
    ] = "auto",
    colours: Annotated[
        bool, typer.Option("--colours", help="Colour the tokens by who drafted them.")
    ] = False,
    mmproj: Mmproj = None,
) -> None:
    """Talk with a model. `/help` shows what else can be typed; Ctrl-C stops an answer.

    From a pipe, every line is a message, and only the answers go to stdout.
    """
    with guarded():
        from draftproof.cli.chat import ChatOptions, run_chat

        options = ChatOptions(
            model=model,
            system=system,
            threads=threads,
            ctx=ctx,
            spec=spec,
            colours=colours,
            mmproj=mmproj,
        )
        code = run_chat(options)
    raise typer.Exit(code)


@app.command(
    epilog="Examples:  draftproof demo  |  draftproof demo --model qwen2.5-coder-1.5b --json"
)
def demo(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A .gguf file or a name. Default: smollm2-135m."),
    ] = None,
    threads: Threads = None,
    spec_k: SpecK = "auto",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Length of each answer at most, in tokens.")
    ] = 128,
    as_json: Json = False,
) -> None:
    """The same answers twice, the second time by speculation: same bytes, faster.

    Ends with 1 if a single token differs.
    """
    with guarded():
        from draftproof.cli.demo import DemoOptions, run_demo

        options = DemoOptions(
            model=model, threads=threads, k=spec_k, max_tokens=max_tokens, as_json=as_json
        )
        code = run_demo(options)
    raise typer.Exit(code)


@app.command(
    epilog="Examples:  draftproof profile qwen2.5-coder-0.5b  |  draftproof profile --plot v.svg"
)
def profile(
    model: ModelName = None,
    threads: Threads = None,
    context: Annotated[
        int, typer.Option("--context", help="Tokens before the steps that are timed.")
    ] = 512,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg|png", help="Draw it too; needs the extra `plot`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """When speculation pays on this machine with this model: V(m) and the break-even acceptance."""
    with guarded():
        from draftproof.cli.profile import ProfileOptions, run_profile

        options = ProfileOptions(
            model=model, threads=threads, context=context, plot=plot, as_json=as_json
        )
        code = run_profile(options)
    raise typer.Exit(code)


@app.command(
    epilog="Examples:  draftproof prove smollm2-135m  |  draftproof prove model.gguf --prompt "
    "'Count to 9.'  |  draftproof prove --check smollm2-135m.certificate.json",
)
def prove(
    model: ModelName = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="Ask this. May be given more than once."),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", metavar="FILE.jsonl", help="Ask these, as in `bench`."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", help="Cuts every answer at this length.")
    ] = None,
    threads: Threads = None,
    full: Annotated[
        bool, typer.Option("--full", help="More of every axis; minutes instead of seconds.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compute the answers of a certificate, of any machine, here."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Where to. Default: NAME.certificate.json."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that speculation, batching, threads and instruction sets change no bit here.

    Ends with 0, 1 at the first difference or if too little was tested, 2 for a mistake in the call.
    """
    with guarded():
        from draftproof.cli.prove import ProveOptions, run_prove

        options = ProveOptions(
            model=model,
            prompts=tuple(prompt or ()),
            workload=workload,
            max_tokens=max_tokens,
            threads=threads,
            full=full,
            check=check,
            out=out,
            as_json=as_json,
        )
        code = run_prove(options)
    raise typer.Exit(code)


@app.command(epilog="Example:  draftproof models --json")
def models(as_json: Json = False) -> None:
    """The models known by name, and which of them are in the cache."""
    with guarded():
        from draftproof.cli.models import show_models

        show_models(as_json)


@app.command(epilog="Example:  draftproof doctor --json")
def doctor(as_json: Json = False) -> None:
    """What this machine offers: CPU, kernels, threads, memory, cache."""
    with guarded():
        from draftproof.cli.doctor import show_doctor

        code = show_doctor(as_json)
    raise typer.Exit(code)
