"""A comparison as Markdown, CSV, JSON or JSON Lines. Numbers come finished; nothing is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.bench.compare import PromptResult, by_kind, summarize
from draftproof.bench.tables import comma_separated, markdown

FORMATS = ("md", "csv", "json", "jsonl")

_HEADER = [
    "prompt", "kind", "tokens", "off tok/s", "on tok/s", "speedup", "modelled", "acceptance",
    "length", "verdict",
]  # fmt: skip


def render(format_: str, engine: Mapping[str, Any], results: Sequence[PromptResult]) -> str:
    """The whole output in one of FORMATS, with a final newline."""
    if format_ == "json":
        return _json(to_dict(engine, results))
    if format_ == "jsonl":
        return "".join(_json(result.to_dict()) for result in results)
    if format_ == "csv":
        rows = [result.to_dict() for result in results]
        header = list(_EMPTY.to_dict())
        return comma_separated(header, [[row[key] for key in header] for row in rows])
    return _markdown(engine, results)


def to_dict(engine: Mapping[str, Any], results: Sequence[PromptResult]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "engine": dict(engine),
        "summary": summarize(results).to_dict(),
        "prompts": [result.to_dict() for result in results],
    }


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False) + "\n"


def _markdown(engine: Mapping[str, Any], results: Sequence[PromptResult]) -> str:
    summary = summarize(results)
    kinds = by_kind(results)
    parts = [
        f"{engine['model']}: {engine['isa']} kernels, {engine['threads']} threads; "
        f"{engine['speculation']}\n",
        markdown(_HEADER, [_row(result) for result in results], left=2),
    ]
    if 1 < len(kinds) < len(results):
        header = ["kind", "prompts", "tokens", "speedup", "worst", "identical"]
        parts.append(markdown(header, [_kind_row(kind, kinds[kind]) for kind in kinds]))
    lines = [f"Speedup over all tokens: {summary.speedup:.2f}"]
    if summary.worst is not None:
        lines.append(f"Worst: {summary.worst.id}, {summary.worst.speedup:.2f}")
    if summary.noise is not None:
        lines.append(f"Noise: off against off deviates from 1 by at most {summary.noise:.1%}")
    lines += [f"Noisy: {reason}" for reason in engine.get("noise_reasons", ())]
    different = sum(not result.identical for result in results)
    verdict = "Every token is the same" if summary.identical else "THE TOKENS DIFFER"
    lines.append(f"{verdict}: {len(results) - different} of {len(results)} prompts identical")
    return "\n".join([*parts, *(f"- {line}" for line in lines)]) + "\n"


def _row(result: PromptResult) -> list[str]:
    modelled = result.modelled_speedup
    return [
        result.id,
        result.kind,
        str(result.tokens),
        f"{result.off_tps:.1f}",
        f"{result.on_tps:.1f}",
        f"{result.speedup:.2f}",
        "" if modelled is None else f"{modelled:.2f}",
        f"{result.acceptance_rate:.0%}",
        f"{result.mean_acceptance_length:.2f}",
        "identical" if result.identical else f"differs @{result.first_difference}",
    ]


def _kind_row(kind: str, results: Sequence[PromptResult]) -> list[str]:
    summary = summarize(results)
    worst = summary.worst
    return [
        kind,
        str(len(results)),
        str(sum(result.tokens for result in results)),
        f"{summary.speedup:.2f}",
        "" if worst is None else f"{worst.speedup:.2f} ({worst.id})",
        str(sum(result.identical for result in results)),
    ]


_EMPTY = PromptResult("", "", 0, 0.0, 0.0, None, 0.0, 0.0, "", "")
