"""The options of `draftproof run`, and nothing else: what it does is in cli/run.py."""

# typer reads the annotations below at run time: every name in them must stay a global of this file.
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.options import (
    Drafter,
    FrequencyPenalty,
    ImageMaxTokens,
    ImageMinTokens,
    Images,
    Json,
    JsonSchema,
    KvMemory,
    KvStore,
    KvType,
    LarkFile,
    Logprobs,
    MinP,
    MinTokens,
    Mmproj,
    PresencePenalty,
    Quantization,
    Regex,
    RepetitionPenalty,
    Seed,
    SpecK,
    Temperature,
    Threads,
    TopK,
    TopP,
    Verify,
)
from draftproof.cli.terminal import guarded


def run(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A .gguf file or a name from `draftproof models`. Default: smollm2-135m.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Text from a pipe comes after it, or instead."),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The prompt as it is, without the chat template.")
    ] = False,
    image: Images = None,
    mmproj: Mmproj = None,
    image_max_tokens: ImageMaxTokens = 512,
    image_min_tokens: ImageMinTokens = 64,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Length of the answer at most, in tokens.")
    ] = 512,
    min_tokens: MinTokens = 0,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    json_schema: JsonSchema = None,
    grammar: LarkFile = None,
    regex: Regex = None,
    logprobs: Logprobs = None,
    threads: Threads = None,
    ctx: Annotated[
        int | None,
        typer.Option("--ctx", "-c", help="Context in tokens. Default: the model's, at most 32768."),
    ] = None,
    kv_type: KvStore = KvType.F16,
    quantize: Annotated[
        Quantization | None, typer.Option(help="Pack float weights on load. Default: as they are.")
    ] = None,
    kv_memory: KvMemory = None,
    spec: Annotated[
        Drafter, typer.Option(help="Who drafts; auto: whoever promises most.")
    ] = Drafter.AUTO,
    spec_k: SpecK = "auto",
    spec_k_max: Annotated[
        int, typer.Option(metavar="N", help="With `--spec-k auto`: draft tokens at most.")
    ] = 63,
    spec_verify: Annotated[
        Verify, typer.Option(help="exact: one batched pass; replay: one row at a time, for audits.")
    ] = Verify.EXACT,
    spec_recording: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For `--spec oracle`: the --json output of a run."),
    ] = None,
    spec_acceptance: Annotated[
        float, typer.Option(help="For `--spec oracle`: how often a draft token is right, 0 to 1.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Answer a prompt: text to stdout as it comes, statistics to stderr.

    Ends with 0, or 1 if a replay disagreed, 2 for a mistake in the call, 130 after Ctrl-C.
    """
    with guarded():
        from draftproof.cli.run import RunOptions, run_prompt

        options = RunOptions(
            model=model,
            prompt=prompt,
            system=system,
            raw=raw,
            images=tuple(image or ()),
            mmproj=mmproj,
            image_max_tokens=image_max_tokens,
            image_min_tokens=image_min_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            min_tokens=min_tokens,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            json_schema=json_schema,
            grammar=grammar,
            regex=regex,
            logprobs=logprobs,
            threads=threads,
            ctx=ctx,
            kv_type=kv_type.value,
            quantize=None if quantize is None else quantize.value,
            kv_memory=kv_memory,
            drafter=spec.value,
            k=spec_k,
            k_max=spec_k_max,
            verify=spec_verify.value,
            recording=spec_recording,
            acceptance=spec_acceptance,
            as_json=as_json,
        )
        code = run_prompt(options)
    raise typer.Exit(code)
