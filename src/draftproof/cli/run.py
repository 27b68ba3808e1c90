"""`draftproof run`: which prompt, which settings, and the answer as it comes.

Options are turned into the checked settings of `config` and `request` before a model is touched, so
that a mistake costs no loading time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof import catalogue
from draftproof.cli.terminal import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    TextOut,
    image_progress,
    model_progress,
    note,
    print_json,
    speed_line,
)
from draftproof.config import (
    MAX_DRAFT_TOKENS,
    SpeculativeConfig,
    check_int,
    check_real,
    parse_bytes,
)
from draftproof.errors import InvalidRequestError, ModelNotFoundError

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import Completion
    from draftproof.sampling import Grammar, SamplingParams

Prompt = str | list[dict[str, Any]]
"""Raw text, or the messages of a chat."""


@dataclass(frozen=True)
class RunOptions:
    """The command line of `run`, as it was typed."""

    model: str | None = None
    prompt: str | None = None
    system: str | None = None
    raw: bool = False
    images: tuple[Path, ...] = ()
    mmproj: Path | None = None
    image_max_tokens: int = 512
    image_min_tokens: int = 64
    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    json_schema: Path | None = None
    grammar: Path | None = None
    regex: str | None = None
    logprobs: int | None = None
    threads: int | None = None
    ctx: int | None = None
    kv_type: str = "f16"
    quantize: str | None = None
    kv_memory: str | None = None
    drafter: str = "auto"
    k: str = "auto"
    k_max: int = MAX_DRAFT_TOKENS
    verify: str = "exact"
    recording: Path | None = None
    acceptance: float = 1.0
    as_json: bool = False


def split_arguments(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """(model, prompt) out of one or two positional arguments.

    One alone is the model if it is a name of the catalogue, ends in .gguf or is a file, else the
    prompt. A single word that nearly is a name is an error rather than a strange prompt."""
    if first is None or second is not None:
        return first, second
    if first in catalogue.CATALOGUE or first.lower().endswith(".gguf") or _is_file(first):
        return first, None
    near = catalogue.close_names(first, cutoff=0.8) if len(first.split()) == 1 else []
    if near:
        raise ModelNotFoundError(
            f"no such model: {first}; did you mean {' or '.join(near)}? "
            f"(to use it as a prompt: draftproof run {catalogue.DEFAULT_MODEL} {first})"
        )
    return None, first


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        return False  # too long for a path, no such user, a NUL byte: a prompt


def read_pipe() -> str | None:
    """The text piped into the command, without its last newline; None at a terminal."""
    stdin = sys.stdin
    if stdin is None or stdin.closed or stdin.isatty():
        return None
    data = stdin.buffer.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the text from the pipe isn't UTF-8 (byte {error.start}): convert it, e.g. with iconv"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def join_prompt(argument: str | None, piped: str | None) -> str:
    """The argument first, then the pipe, a blank line between. InvalidRequestError if both are
    empty."""
    prompt = "\n\n".join(part for part in (argument, piped) if part)
    if not prompt.strip():
        raise InvalidRequestError(
            'no prompt: give one, as in draftproof run "Why is the sky blue?", or pipe one in'
        )
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the prompt isn't valid UTF-8 (character {error.start})"
        ) from None
    return prompt


def load_recording(path: Path) -> tuple[int, ...]:
    """The token ids of an earlier run's --json output."""
    try:
        recorded = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidRequestError(
            f"--spec-recording {path} can't be read: {error.strerror}"
        ) from None
    except ValueError:
        recorded = None
    ids = recorded.get("token_ids") if isinstance(recorded, dict) else None
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise InvalidRequestError(
            f"--spec-recording {path} isn't the --json output of a run: it has no token_ids"
        )
    return tuple(ids)


def parse_k(text: str) -> int | None:
    """`--spec-k`: a number is a fixed draft length, `auto` (None) leaves it to the controller."""
    if text == "auto":
        return None
    try:
        k = int(text)
    except ValueError:
        raise InvalidRequestError(f"--spec-k must be a number or auto, got {text!r}") from None
    check_int("--spec-k", k, 0, MAX_DRAFT_TOKENS)
    return k


def speculation_of(options: RunOptions) -> SpeculativeConfig:
    """Checks the --spec options, in the words of the command line."""
    check_int("--spec-k-max", options.k_max, 0, MAX_DRAFT_TOKENS)
    check_real("--spec-acceptance", options.acceptance, 0.0, 1.0)
    recording = None
    if options.drafter == "oracle":
        if options.recording is None:
            raise InvalidRequestError(
                "--spec oracle needs --spec-recording FILE, the --json output of an earlier run"
            )
        recording = load_recording(options.recording)
    elif options.recording is not None:
        raise InvalidRequestError(
            f"--spec-recording is for --spec oracle, not for --spec {options.drafter}"
        )
    return SpeculativeConfig(
        drafter=options.drafter,
        k=parse_k(options.k),
        k_max=options.k_max,
        verify=options.verify,
        recording=recording,
        acceptance=options.acceptance,
    )


def sampling_of(options: RunOptions) -> SamplingParams:
    """The settings of the sampler, grammar files read."""
    from draftproof.sampling import SamplingParams

    return SamplingParams(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logprobs=options.logprobs,
        grammar=_grammar_of(options),
    )


def _grammar_of(options: RunOptions) -> Grammar | None:
    from draftproof.sampling import Grammar

    given = {
        "--json-schema": options.json_schema,
        "--grammar": options.grammar,
        "--regex": options.regex,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequestError(f"{' and '.join(names)} contradict each other: give one of them")
    if options.json_schema is not None:
        return Grammar("json_schema", _read("--json-schema", options.json_schema))
    if options.grammar is not None:
        return Grammar("lark", _read("--grammar", options.grammar))
    return Grammar("regex", options.regex) if options.regex is not None else None


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{option} {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{option} {path} isn't UTF-8 text") from None


def messages_of(
    prompt: str, system: str | None, images: Sequence[Path] = ()
) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    if not images:
        return [*messages, {"role": "user", "content": prompt}]
    parts: list[dict[str, Any]] = [{"type": "image", "image": path} for path in images]
    return [*messages, {"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}]


def open_model(
    model: str | None,
    *,
    threads: int | None,
    ctx: int | None = None,
    kv_type: str = "f16",
    quantize: str | None = None,
    **settings: Any,
) -> LLM:
    """Finds the model (fetching the default one on first use) and loads it. settings: of LLM."""
    from draftproof import llm

    with model_progress() as progress:
        return llm.LLM(
            model,
            threads=threads,
            ctx=ctx,
            kv_type=kv_type,
            quantize=quantize,
            progress=progress,
            **settings,
        )


def generate(
    llm: LLM,
    prompt: Prompt,
    sampling: SamplingParams,
    speculation: SpeculativeConfig,
    on_text: Callable[[str, tuple[int, ...]], None],
) -> Completion:
    """Streams one answer through `on_text(text, token ids)`; the completion at its end."""
    with image_progress() as llm.on_reading:
        deltas = llm.stream(prompt, sampling, speculation)
    for delta in deltas:
        if delta.text or delta.token_ids:
            on_text(delta.text, delta.token_ids)
        if delta.completion is not None:
            return delta.completion
    raise RuntimeError("the stream ended without its completion")


def run_prompt(options: RunOptions) -> int:
    """The exit code of `draftproof run`."""
    model, argument = split_arguments(options.model, options.prompt)
    if options.raw and options.system is not None:
        raise InvalidRequestError("--system has no place in --raw: a raw prompt has no messages")
    sampling = sampling_of(options)
    speculation = speculation_of(options)
    text = join_prompt(argument, read_pipe())
    if options.raw and options.images:
        raise InvalidRequestError("--image has no place in --raw: a raw prompt has no messages")
    prompt: Prompt = text if options.raw else messages_of(text, options.system, options.images)
    settings: dict[str, Any] = {
        "mmproj": options.mmproj,
        "image_max_tokens": options.image_max_tokens,
        "image_min_tokens": options.image_min_tokens,
    }
    if options.kv_memory is not None:
        settings["kv_memory"] = parse_bytes("--kv-memory", options.kv_memory)
    llm = open_model(
        model,
        threads=options.threads,
        ctx=options.ctx,
        kv_type=options.kv_type,
        quantize=options.quantize,
        **settings,
    )
    return answer(llm, prompt, sampling, speculation, as_json=options.as_json)


def answer(
    llm: LLM,
    prompt: Prompt,
    sampling: SamplingParams,
    speculation: SpeculativeConfig,
    *,
    as_json: bool,
) -> int:
    """Prints one answer and its statistics; the exit code."""
    out = TextOut()
    pieces: list[str] = []
    ids: list[int] = []

    def on_text(text: str, token_ids: tuple[int, ...]) -> None:
        pieces.append(text)
        ids.extend(token_ids)
        if not as_json:
            out.write(text)

    try:
        completion = generate(llm, prompt, sampling, speculation, on_text)
    except KeyboardInterrupt:
        if as_json:
            print_json(_interrupted("".join(pieces), ids))
        out.finish()
        return EXIT_INTERRUPTED
    out.finish()
    result = completion.to_dict()
    mismatches = result["speculation"]["replay_mismatches"]
    if as_json:
        print_json(result)
    else:
        if result["speculation"]["drafter"] != "off":
            note(completion.spec_line)
            _note_saved(result["speculation"])
        note(speed_line(result))
    if result["finish_reason"] == "numeric_error":
        note("draftproof: error: a value that is not finite appeared; the answer ends before it")
        return EXIT_CHECK_FAILED
    if mismatches:
        note(f"draftproof: error: replay disagreed with its probe {mismatches} times")
        return EXIT_CHECK_FAILED
    return 0


def _note_saved(stats: dict[str, Any]) -> None:
    """The ledger, where it says anything."""
    seconds, speedup = stats["time_saved_ms"] / 1000, stats["modelled_speedup"]
    if abs(seconds) >= 0.001:
        note(f"[SPEC] modelled: {seconds:+.2f} s saved, {speedup:.2f} x plain decoding")


def _interrupted(text: str, ids: list[int]) -> dict[str, Any]:
    """What there is of an answer that Ctrl-C cut off."""
    return {"text": text, "token_ids": ids, "finish_reason": "interrupted"}
