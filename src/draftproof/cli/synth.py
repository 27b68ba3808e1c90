"""`draftproof synth`: a model file of true shapes and random weights."""

# typer reads the annotations below at run time: every name in them must stay a global of this file.
from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.options import Json
from draftproof.cli.terminal import guarded, model_progress, note, print_json


def synth(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="qwen3-0.6b, qwen3-1.7b, qwen3-8b, qwen3-30b-a3b, qwen3-vl-2b, qwen3-vl-8b, tiny.",
        ),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The .gguf file to write.")],
    quant: Annotated[
        str, typer.Option(help="q4_k_m, q5_k_m, q6_k, q4_0, q8_0, f16 or bf16.")
    ] = "q4_k_m",
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    mmproj: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a vision model: write its vision tower, too."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model with a real one's shapes and random weights, to measure speed and memory."""
    with guarded():
        _make(name, file, quant, seed, mmproj, as_json)


def _make(name: str, path: Path, quant: str, seed: int, mmproj: Path | None, as_json: bool) -> None:
    from draftproof.bench.synth import synthesise
    from draftproof.bench.synth_vision import synthesise_tower

    start = time.perf_counter()
    with model_progress() as progress:
        if mmproj is not None:
            synthesise_tower(name, mmproj, seed, progress)
        size = synthesise(name, path, quant, seed, progress)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(
            {"file": str(path), "model": name, "quant": quant, "seed": seed, "size_bytes": size}
        )
        return
    note(
        f"{path}: {size / 1e9:.2f} GB in {seconds:.1f} s; the shapes of {name} with random"
        " weights: for measuring, not for answers"
    )
