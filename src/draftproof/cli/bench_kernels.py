"""`draftproof bench kernels`: checks its options, measures case by case, prints table or JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from draftproof.cli.terminal import note, print_json
from draftproof.config import check_int, default_threads
from draftproof.errors import InvalidRequestError, OutOfMemoryError

if TYPE_CHECKING:
    from draftproof.bench.bandwidth import ReadBandwidth
    from draftproof.bench.kernels import CaseResult, Shape

_MAX_ROWS = 1024


@dataclass(frozen=True)
class KernelOptions:
    """The command line of `bench kernels`. Empty types, shapes: all, the default ones."""

    types: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    rows: str = "1,2,4,8,16,32,64"
    threads: int | None = None
    isa: str = ""
    repeat: int = 7
    as_json: bool = False


def parse_rows(text: str) -> list[int]:
    """'1,2,8' -> [1, 2, 8]. InvalidRequestError for anything else."""
    rows = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit()) or not 1 <= int(word) <= _MAX_ROWS:
            raise InvalidRequestError(
                f"--rows must be numbers from 1 to {_MAX_ROWS} such as 1,2,8, got {text!r:.40}"
            )
        rows.append(int(word))
    return sorted(set(rows))


def run_kernels(options: KernelOptions) -> int:
    """The exit code of `draftproof bench kernels`."""
    from draftproof import _native
    from draftproof.bench.bandwidth import read_bandwidth
    from draftproof.bench.kernels import DEFAULT_SHAPES, Shape, check_case, packable_types
    from draftproof.bench.noise import Watch

    rows = parse_rows(options.rows)
    threads = default_threads() if options.threads is None else options.threads
    check_int("--threads", threads, 1, 1024)
    check_int("--repeat", options.repeat, 1, 10_000)
    known = _native.isa_rows()
    if options.isa and options.isa not in known:
        raise InvalidRequestError(f"--isa must be one of {', '.join(known)}, got {options.isa!r}")
    types = options.types or tuple(packable_types())
    shapes = [Shape.parse(text) for text in options.shapes or DEFAULT_SHAPES]
    for kind in types:
        for shape in shapes:
            check_case(kind, shape)
    watch = Watch()
    try:
        before = read_bandwidth(threads)
        results = [
            _measure(kind, shape, rows, threads, before, options)
            for kind in types
            for shape in shapes
        ]
        after = read_bandwidth(threads)
    except MemoryError:
        raise OutOfMemoryError("no memory left for the weights of bench kernels") from None
    reasons = watch.reasons() + _reasons(before, after, results)
    if options.as_json:
        print_json(_to_dict(before, after, results, reasons))
    else:
        _print(before, results, reasons)
    return 0


def _measure(
    kind: str,
    shape: Shape,
    rows: Sequence[int],
    threads: int,
    bandwidth: ReadBandwidth,
    options: KernelOptions,
) -> CaseResult:
    from draftproof.bench.kernels import KernelCase, default_total_bytes, measure_case

    case = KernelCase(kind, shape, max(rows), threads, options.isa, default_total_bytes())
    result = measure_case(case, rows, options.repeat, bandwidth)
    note(f"{result.type} {result.shape}: {result.rows[0].gb_per_second:.1f} GB/s at m = 1")
    return result


def _reasons(
    before: ReadBandwidth, after: ReadBandwidth, results: Sequence[CaseResult]
) -> list[str]:
    from draftproof.bench.noise import MAX_DRIFT, drift_reasons

    reasons = []
    slow, fast = sorted((before.gb_per_second, after.gb_per_second))
    if fast > slow * MAX_DRIFT:
        reasons.append(
            f"the read bandwidth was {before.gb_per_second:.1f} GB/s at the beginning and "
            f"{after.gb_per_second:.1f} at the end"
        )
    for result in results:
        reasons += [
            f"{result.type} {result.shape}: {reason}"
            for reason in drift_reasons(result.plain_seconds)
        ]
    return reasons


def _to_dict(
    before: ReadBandwidth,
    after: ReadBandwidth,
    results: Sequence[CaseResult],
    reasons: Sequence[str],
) -> dict[str, Any]:
    return {
        "isa": results[0].isa,
        "threads": results[0].threads,
        "read_bandwidth_gb_s": before.gb_per_second,
        "read_bandwidth": {"before": asdict(before), "after": asdict(after)},
        "noisy": bool(reasons),
        "noise_reasons": list(reasons),
        "cases": [result.to_dict() for result in results],
    }


def _print(bandwidth: ReadBandwidth, results: Sequence[CaseResult], reasons: Sequence[str]) -> None:
    from draftproof.bench.tables import markdown

    first = results[0]
    print(
        f"{first.isa} kernels, {first.threads} threads; read bandwidth "
        f"{bandwidth.gb_per_second:.1f} GB/s ({bandwidth.reduction} over "
        f"{bandwidth.buffer_bytes >> 20} MiB)\n"
    )
    header = ["type", "shape", "m", "ms", "GB/s", "share", "V(m)", "rows/s"]
    cells = [
        [
            result.type,
            result.shape,
            str(row.m),
            f"{1000 * row.seconds:.2f}",
            f"{row.gb_per_second:.1f}",
            f"{row.share:.2f}",
            f"{row.verify_cost:.2f}",
            f"{row.rows_per_second:.0f}",
        ]
        for result in results
        for row in result.rows
    ]
    print(markdown(header, cells, left=2))
    print("ms: one step over all layers of a case. share: of the read bandwidth above.")
    print("V(m): against m = 1. rows/s: rows through one layer of that shape.")
    sys.stdout.flush()
    for reason in reasons:
        note(f"noisy: {reason}")
