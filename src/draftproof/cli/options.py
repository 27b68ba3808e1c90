"""Choices and options that several commands share."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class KvType(str, Enum):
    F16 = "f16"
    F32 = "f32"
    BF16 = "bf16"


class Quantization(str, Enum):
    Q8_0 = "q8_0"
    Q4_K_M = "q4_k_m"


class Drafter(str, Enum):
    AUTO = "auto"
    OFF = "off"
    SUFFIX = "suffix"
    TEMPLATE = "template"
    RESYNC = "resync"
    WINDOW = "window"
    ORACLE = "oracle"


class Verify(str, Enum):
    EXACT = "exact"
    REPLAY = "replay"


Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", help="Threads. Default: the cores this process may use."),
]
SpecK = Annotated[
    str,
    typer.Option(
        metavar="N|auto", help="Draft tokens per step, 0 to 63; auto: as many as pay, step by step."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
KvStore = Annotated[
    KvType, typer.Option(envvar="DRAFTPROOF_KV_TYPE", help="How keys and values are stored.")
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        envvar="DRAFTPROOF_KV_MEMORY",
        help="Memory for keys and values, such as 2G; what no answer needs keeps prefixes.",
    ),
]
