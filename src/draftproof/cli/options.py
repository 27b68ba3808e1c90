"""Choices and options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class KvType(str, Enum):
    F16 = "f16"
    F32 = "f32"
    BF16 = "bf16"
    Q8_0 = "q8_0"


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
Temperature = Annotated[float, typer.Option(help="0: always the likeliest token.")]
TopK = Annotated[int, typer.Option(help="Only the k likeliest tokens; 0: off.")]
TopP = Annotated[float, typer.Option(help="Smallest set with this probability; 1: off.")]
MinP = Annotated[
    float, typer.Option(help="Least probability relative to the likeliest token; 0: off.")
]
Seed = Annotated[int | None, typer.Option(help="Default: drawn once, and reported.")]
MinTokens = Annotated[int, typer.Option(metavar="N", help="The answer can't end before N tokens.")]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Divides the logits of tokens that occurred, prompt included; 1: off.")
]
PresencePenalty = Annotated[
    float, typer.Option(help="Taken from the logits of tokens that the answer has; 0: off.")
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="The same, as often as the answer has them; 0: off.")
]
Logprobs = Annotated[
    int | None, typer.Option(metavar="N", help="With --json: logprobs, and of the N likeliest.")
]
JsonSchema = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The answer is JSON by this schema.")
]
LarkFile = Annotated[
    Path | None, typer.Option("--grammar", metavar="FILE", help="The answer follows this grammar.")
]
Regex = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="The whole answer matches this pattern.")
]
Mmproj = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="DRAFTPROOF_MMPROJ",
        help="The vision tower of a model that sees images (an mmproj .gguf file).",
    ),
]
ImageMaxTokens = Annotated[
    int,
    typer.Option(
        metavar="N",
        envvar="DRAFTPROOF_IMAGE_MAX_TOKENS",
        help="An image becomes at most so many tokens: more show finer detail and take longer.",
    ),
]
ImageMinTokens = Annotated[
    int,
    typer.Option(
        metavar="N",
        envvar="DRAFTPROOF_IMAGE_MIN_TOKENS",
        help="A small image is enlarged to so many tokens.",
    ),
]
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="An image, shown before the prompt; repeatable."),
]
Context = Annotated[
    int | None,
    typer.Option("--ctx", "-c", help="Context in tokens. Default: the model's, at most 32768."),
]
ModelName = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A .gguf file or a name. Default: smollm2-135m."),
]
