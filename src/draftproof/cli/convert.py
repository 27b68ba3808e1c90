"""`draftproof convert`: a model folder into a GGUF file."""

# typer reads the annotations below at run time: every name in them must stay a global of this file.
from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.options import Json, Threads
from draftproof.cli.terminal import guarded, model_progress, note, print_json
from draftproof.config import check_int, default_threads


class FileType(str, Enum):
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_K_M = "q4_k_m"


def convert(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="With config.json and safetensors.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.gguf", help="The file to write.")],
    quantize: Annotated[FileType, typer.Option(help="What the matrices become.")] = FileType.Q4_K_M,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Make a GGUF file of a Hugging Face folder, for this program and for llama.cpp."""
    with guarded():
        _convert(folder, to, quantize.value, threads, as_json)


def _convert(folder: Path, to: Path, quantize: str, threads: int | None, as_json: bool) -> None:
    from draftproof.models import FAMILIES
    from draftproof.models.convert import convert

    threads = default_threads() if threads is None else threads
    check_int("threads", threads, 1, 1024)
    start = time.perf_counter()
    with model_progress() as progress:
        done = convert(folder, to, quantize, threads, FAMILIES, progress)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(
            {
                "file": str(done.path),
                "size_bytes": done.size,
                "tensors": done.tensors,
                "quantize": quantize,
                "seconds": seconds,
            }
        )
        return
    note(f"{done.path}: {done.size / 1e6:,.0f} MB, {done.tensors} tensors, {seconds:.1f} s")
