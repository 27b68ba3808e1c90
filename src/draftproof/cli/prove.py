"""`draftproof prove`: the certificate of exactness, made here or checked here."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof import catalogue, discovery
from draftproof.cli.terminal import EXIT_CHECK_FAILED, model_progress, note, print_json
from draftproof.config import check_int, default_threads
from draftproof.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftproof.bench.certificate import Certificate, Question
    from draftproof.bench.proof import Open, Proof
    from draftproof.bench.workloads import Workload

KV_TYPE = "f16"
_TABLE_WIDTH = 79


@dataclass(frozen=True)
class ProveOptions:
    """The command line of `prove`. out None: NAME.certificate.json in the current folder."""

    model: str | None = None
    prompts: tuple[str, ...] = ()
    workload: Path | None = None
    max_tokens: int | None = None
    threads: int | None = None
    full: bool = False
    check: Path | None = None
    out: Path | None = None
    as_json: bool = False


def run_prove(options: ProveOptions) -> int:
    """The exit code of `draftproof prove`."""
    if options.threads is not None:
        check_int("--threads", options.threads, 1, 1024)
    if options.max_tokens is not None:
        check_int("--max-tokens", options.max_tokens, 2, 1 << 20)
    if options.check is not None:
        return _check(options, options.check)
    workloads = _workloads(options)
    path = _find(options.model)
    name = str(_model(path)["name"]).removesuffix(".gguf")
    out = options.out or Path(f"{name}.certificate.json")
    _check_folder(out)
    certificate = _prove(options, path, workloads)
    _write(certificate, out)
    _show(certificate, options.as_json, f"written to {out}")
    return 0 if certificate.holds else EXIT_CHECK_FAILED


def _workloads(options: ProveOptions) -> Sequence[Workload]:
    from draftproof.bench import questions
    from draftproof.bench.workloads import DEFAULT_MAX_TOKENS, Workload, load_workloads

    if options.prompts and options.workload is not None:
        raise InvalidRequestError("--prompt and --workload exclude each other: give one of them")
    workloads: Sequence[Workload] = questions.BUILT_IN
    if options.workload is not None:
        workloads, complaints = load_workloads([options.workload])
        if complaints:
            raise InvalidRequestError(complaints[0])
        if not workloads:
            raise InvalidRequestError(f"no prompts in {options.workload}")
    elif options.prompts:
        if not all(prompt.strip() for prompt in options.prompts):
            raise InvalidRequestError("--prompt is empty")
        workloads = [
            Workload(f"prompt {i}", "own", ({"role": "user", "content": text},), DEFAULT_MAX_TOKENS)
            for i, text in enumerate(options.prompts, 1)
        ]
    limit = options.max_tokens
    if limit is None:
        return workloads
    return [replace(w, max_tokens=min(w.max_tokens, limit)) for w in workloads]


def _check_folder(out: Path) -> None:
    """Before anything is computed."""
    folder = out.absolute().parent
    if not folder.is_dir():
        raise InvalidRequestError(f"--out {out}: there is no such folder")
    if not os.access(folder, os.W_OK):
        raise InvalidRequestError(f"{folder} can't be written: say with --out where to")


def _find(model: str | None) -> Path:
    with model_progress() as progress:
        return discovery.resolve(model, progress)


def _prove(options: ProveOptions, path: Path, workloads: Sequence[Workload]) -> Certificate:
    from draftproof.bench import questions
    from draftproof.bench.proof import Proof

    asked = questions.questions(workloads, _encoder(path))
    proof = Proof(
        _opener(path),
        asked,
        threads=options.threads or default_threads(),
        report=_reporter(options.as_json),
        full=options.full,
    )
    return _run(path, asked, proof, lambda: proof.run(_machine_rows()))


def _check(options: ProveOptions, file: Path) -> int:
    """Answers recorded elsewhere, on every row of this machine's dispatch table."""
    from draftproof import _native
    from draftproof.bench import certificate as certificates
    from draftproof.bench.proof import Proof

    if options.prompts or options.workload is not None or options.max_tokens is not None:
        raise InvalidRequestError("--check asks what the certificate asked: no prompts of your own")
    recorded = certificates.load(file)
    version = recorded.engine["arithmetic_version"]
    if version != _native.ARITHMETIC_VERSION:
        raise InvalidRequestError(
            f"{file} is of arithmetic version {version}, this is {_native.ARITHMETIC_VERSION}: "
            "bits of different versions can't be compared; make a new certificate"
        )
    name = recorded.model["name"]
    path = _find(options.model or (name if name in catalogue.CATALOGUE else None))
    model = _model(path)
    if model["sha256"] != recorded.model["sha256"]:
        raise InvalidRequestError(
            f"{file} is about another model file: {name}, sha256 {recorded.model['sha256']:.12}, "
            f"not {model['name']}, {model['sha256']:.12}: name its model before --check"
        )
    proof = Proof(
        _opener(path),
        recorded.questions,
        threads=options.threads or default_threads(),
        report=_reporter(options.as_json),
    )
    here = _run(
        path,
        recorded.questions,
        proof,
        lambda: proof.check(recorded.answers, _machine_rows()),
    )
    _show(here, options.as_json, f"{file} was made on: {recorded.machine.get('cpu', '?')}")
    return 0 if here.holds else EXIT_CHECK_FAILED


def _run(
    path: Path, asked: Sequence[Question], proof: Proof, play: Callable[[], None]
) -> Certificate:
    from draftproof import _native
    from draftproof.bench.certificate import Certificate
    from draftproof.bench.proof import DifferenceFoundError
    from draftproof.cli.doctor import cpu_name, missing_rows, version

    difference = None
    try:
        play()
    except DifferenceFoundError as found:
        difference = found.difference
    finally:
        _end_of_report()
    rows = _machine_rows()
    return Certificate(
        model=_model(path),
        engine={
            "version": version(),
            "arithmetic_version": _native.ARITHMETIC_VERSION,
            "kv_type": KV_TYPE,
            "system_fingerprint": proof.fingerprint,
        },
        machine={"cpu": cpu_name(), "isa_rows": rows, "isa_rows_missing": missing_rows(rows)},
        plain={"isa": proof.plain_isa},
        questions=tuple(asked),
        answers=proof.answers,
        lines=tuple(proof.lines),
        missing=tuple(proof.missing),
        difference=difference,
    )


def _machine_rows() -> list[str]:
    from draftproof import _native

    return list(_native.isa_rows())


def _model(path: Path) -> dict[str, Any]:
    from draftproof.models import open_model
    from draftproof.models.source_digest import source_digest

    names = {entry.file: name for name, entry in catalogue.CATALOGUE.items()}
    with closing(open_model(path)) as source:
        return {"name": names.get(path.name, path.name), "sha256": source_digest(source)}


def _opener(path: Path) -> Open:
    from draftproof.bench.proof import Setting
    from draftproof.llm import LLM

    def open_llm(setting: Setting) -> LLM:
        return LLM(
            path,
            threads=setting.threads,
            kv_type=KV_TYPE,
            prefill_chunk=setting.prefill_chunk,
            isa=setting.isa,
            prefix_cache=setting.prefix_cache,
        )

    return open_llm


def _encoder(path: Path) -> Callable[[Any], list[int]]:
    from draftproof.models import open_model

    with closing(open_model(path)) as source:
        tokenizer = source.tokenizer()
        template = source.chat_template(tokenizer)

    def encode(prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt, parse_special=True)
        return template.encode(tokenizer, prompt)

    return encode


def _reporter(quiet: bool) -> Callable[[str, str], None]:
    """Says on stderr what is being run: a proof takes a while. A terminal keeps one line of it."""

    def report(axis: str, setting: str) -> None:
        if quiet:
            return
        if sys.stderr.isatty():
            shown = f"{axis}: {setting} ..."[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
        else:
            note(f"{axis}: {setting} ...")

    return report


def _end_of_report() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _write(certificate: Certificate, out: Path) -> None:
    text = json.dumps(certificate.to_dict(), ensure_ascii=True, allow_nan=False)
    try:
        out.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{out} can't be written: {error.strerror or error}") from None


def _show(certificate: Certificate, as_json: bool, remark: str) -> None:
    if as_json:
        print_json(certificate.to_dict())
    else:
        print("\n".join(_lines(certificate)))
        sys.stdout.flush()
        note(remark)
    if certificate.difference is not None:
        for line in certificate.difference.lines():
            note(f"draftproof: error: {line}")
    for gap in certificate.missing:
        note(f"draftproof: error: this proves too little: {gap}")


def _lines(certificate: Certificate) -> list[str]:
    model, engine, machine = certificate.model, certificate.engine, certificate.machine
    run = ", ".join(machine["isa_rows"])
    absent = ", ".join(machine["isa_rows_missing"])
    found = [
        "Certificate of exactness",
        "",
        f"model    {model['name']}, sha256 {model['sha256'][:16]}",
        f"engine   draftproof {engine['version']}, arithmetic version "
        f"{engine['arithmetic_version']}, kv {engine['kv_type']}, {engine['system_fingerprint']}",
        f"machine  {machine['cpu']}; kernels: {run}" + (f"; not here: {absent}" if absent else ""),
        "",
        _row("compared with plain decoding", "tokens", "drafted", "rejected"),
    ]
    for line in certificate.lines:
        remark = f" ({line.evidence})" if line.evidence else ""
        name = f"{line.axis}: {line.setting}{remark}"
        found.append(_row(name, line.tokens, line.drafted, line.rejected))
    total = certificate.total
    found += [
        _row("in all", total("tokens"), total("drafted"), total("rejected")),
        "",
        f"digest   {certificate.digest}",
        "verdict  every token, every logit and the KV cache: identical, bit for bit"
        if certificate.holds
        else "verdict  THIS IS NO PROOF: see the errors",
    ]
    return found


def _row(name: str, *counts: object) -> str:
    """One line of the table, two where the terminal is narrow."""
    tokens, drafted, rejected = counts
    numbers = f"{tokens:>8}{drafted:>9}{rejected:>10}"
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < _TABLE_WIDTH:
        return f"{name}\n  {numbers}"
    return f"{name:<{_TABLE_WIDTH - len(numbers)}}{numbers}"
