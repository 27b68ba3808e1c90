"""`draftproof bench --drafter-only`: drafters on recorded texts; a model lends its tokenizer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from draftproof import discovery
from draftproof.cli.terminal import EXIT_USER_ERROR, TextOut, model_progress, note
from draftproof.config import SpeculativeConfig
from draftproof.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftproof.bench.replay import ReplayTotals
    from draftproof.cli.bench_compare import BenchOptions
    from draftproof.drafting.verify_cost import Measurement

# Shown beside `auto` if nothing else was asked for: the classic scan at its usual lengths.
_USUAL_WINDOWS = (4, 8, 15)


def run_replay(options: BenchOptions, speculation: SpeculativeConfig) -> int:
    """The exit code."""
    from draftproof.bench.replay import load_recordings, replay_all
    from draftproof.drafting import TokenText
    from draftproof.models import open_model

    if options.replay is None:
        raise InvalidRequestError("--drafter-only needs --replay FILE, the recorded texts")
    measurement = _measurement(options)
    with model_progress() as progress:
        path = discovery.resolve(options.model, progress)
    with closing(open_model(path)) as source:
        tokenizer = source.tokenizer()

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, parse_special=False)

    recordings, complaints = load_recordings(options.replay, encode)
    if complaints and not options.keep_going:
        raise InvalidRequestError(
            f"{complaints[0]}; --keep-going replays the good lines nevertheless"
        )
    for complaint in complaints:
        note(f"draftproof: skipped: {complaint}")
    if not recordings:
        raise InvalidRequestError(f"no recorded texts in {options.replay}")
    configs = [speculation]
    if options.spec is None and options.spec_k is None:
        configs += [replace(speculation, drafter="window", k=k) for k in _USUAL_WINDOWS]
    text = TokenText(tokenizer.token_bytes, encode)
    rows = []
    for config in configs:
        totals = replay_all(recordings, config, measurement, text, tokenizer.vocab_size)
        rows += [(config, kind, total) for kind, total in totals.items()]
        note(f"{_name(config)}: {totals['all'].modelled_speedup:.2f} x modelled")
    out = TextOut()
    out.write(_render(options.format, rows, measurement))
    out.finish()
    return EXIT_USER_ERROR if complaints else 0


def _measurement(options: BenchOptions) -> Measurement | None:
    from draftproof.drafting import verify_cost

    if options.profile is None:
        return None
    measurement = verify_cost.load(options.profile)
    if measurement is None:
        raise InvalidRequestError(
            f"--profile {options.profile} can't be read, or isn't the --json output of "
            "draftproof profile"
        )
    return measurement


def _name(config: SpeculativeConfig) -> str:
    return config.drafter if config.k is None else f"{config.drafter} k={config.k}"


def _render(
    format_: str,
    rows: Sequence[tuple[SpeculativeConfig, str, ReplayTotals]],
    measurement: Measurement | None,
) -> str:
    import json

    from draftproof.bench.tables import comma_separated, markdown
    from draftproof.drafting.verify_cost import TYPICAL_COSTS

    records: list[dict[str, Any]] = [
        {"drafter": config.drafter, "k": config.k, "kind": kind, **total.to_dict()}
        for config, kind, total in rows
    ]
    if format_ == "jsonl":
        return "".join(json.dumps(record) + "\n" for record in records)
    if format_ == "json":
        costs = TYPICAL_COSTS if measurement is None else measurement.costs
        result = {
            "verify_cost": {str(m): cost for m, cost in costs.items()},
            "measured": measurement is not None,
            "results": records,
        }
        return json.dumps(result) + "\n"
    if format_ == "csv":
        return comma_separated(list(records[0]), [list(record.values()) for record in records])
    header = [
        "drafter", "kind", "texts", "tokens", "tokens/step", "drafted", "accepted", "acceptance",
        "length", "speedup", "µs/token",
    ]  # fmt: skip
    cells = [
        [
            _name(config),
            kind,
            str(record["recordings"]),
            str(record["tokens"]),
            f"{record['tokens_per_step']:.2f}",
            str(record["drafted"]),
            str(record["accepted"]),
            f"{record['acceptance_rate']:.0%}",
            f"{record['mean_acceptance_length']:.2f}",
            f"{record['modelled_speedup']:.2f}",
            f"{record['drafting_us_per_token']:.1f}",
        ]
        for (config, kind, _), record in zip(rows, records, strict=True)
    ]
    source = "of --profile" if measurement is not None else "typical, drafting taken as free"
    return markdown(header, cells, left=2) + f"\nspeedup: modelled, V(m) {source}\n"
