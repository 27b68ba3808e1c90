"""A profile or a comparison as a picture. matplotlib is an optional extra and imported only here.

Colours are told apart by people who see few of them, every series has a marker of its own, and the
background is transparent: all of it is readable on a light page as on a dark one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.bench.compare import PromptResult, summarize
from draftproof.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from draftproof.bench.profile import Profile

SUFFIXES = (".svg", ".png")
MAX_BARS = 40
_SHOWN_K = (1, 3, 7, 15, 31)
# Contrast of at least 3 : 1 on white and on near-black each.
_INK = "#7a7a7a"
_COLOURS = ("#2b83ba", "#d55e00", "#00966e", "#b565a7", "#8a7f1f")
_MARKERS = "osD^v"


def check_plot(path: Path) -> None:
    """Before anything is measured. InvalidRequestError: another kind of file, no such folder, or
    matplotlib isn't installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidRequestError(f"--plot must end in {' or '.join(SUFFIXES)}, got {path}")
    if not path.absolute().parent.is_dir():
        raise InvalidRequestError(f"--plot {path}: there is no such folder")
    _pyplot()


def draw(profile: Profile, path: Path) -> None:
    """V(m), and the expected speedup. InvalidRequestError where the file can't be written."""
    title = f"{profile.model}, {profile.isa}, {profile.threads} threads"
    with _figure(path, 2, title, 4.5) as (left, right):
        _draw_costs(left, profile.measurement.costs)
        _draw_expected(right, profile)


def draw_comparison(engine: Mapping[str, Any], results: Sequence[PromptResult], path: Path) -> None:
    """Speedup per prompt with the worst one marked, V(m), acceptance per position. engine: as
    `report` has it. At most MAX_BARS prompts are shown, the slowest first."""
    title = (
        f"{engine['model']}, {engine['isa']}, {engine['threads']} threads; {engine['speculation']}"
    )
    shown = sorted((r for r in results if r.speedup > 0), key=lambda r: r.speedup)[:MAX_BARS]
    with _figure(path, 3, title, max(4.5, 1.5 + 0.28 * len(shown))) as (left, middle, right):
        _draw_speedups(left, shown)
        _draw_costs(middle, {int(m): cost for m, cost in engine["verify_cost"].items()})
        _draw_positions(right, results)


def _draw_speedups(axes: Any, shown: Sequence[PromptResult]) -> None:
    names = [result.id for result in shown]
    worst = summarize(shown).worst
    bars = axes.barh(names, [result.speedup for result in shown], color=_COLOURS[0])
    for bar, result in zip(bars, shown, strict=True):
        label = f" {result.speedup:.2f} x"
        if result is worst:
            bar.set(color=_COLOURS[1], hatch="//", edgecolor=_INK)
            label += "  worst"
        axes.text(result.speedup, bar.get_y() + bar.get_height() / 2, label, va="center")
    axes.axvline(1.0, color=_INK, linestyle=":")
    axes.margins(x=0.3)
    axes.set_xlabel("speedup over plain decoding")
    axes.set_title("Speedup per prompt")


def _draw_costs(axes: Any, costs: Mapping[int, float]) -> None:
    axes.plot(list(costs), list(costs.values()), marker="o", color=_COLOURS[0], label="V(m)")
    axes.plot(list(costs), list(costs), color=_INK, linestyle=":", label="one step per row")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = list(costs)
    for set_ticks, set_labels in (
        (axes.set_xticks, axes.set_xticklabels),
        (axes.set_yticks, axes.set_yticklabels),
    ):
        set_ticks(ticks)
        set_labels([str(m) for m in ticks])
    axes.set_xlabel("rows of the step, m")
    axes.set_ylabel("time in plain steps")
    axes.set_title("What a verify step costs")
    axes.legend()


def _draw_positions(axes: Any, results: Sequence[PromptResult]) -> None:
    """One line per kind of prompt, of the kinds that draft most at most as many as colours."""
    tries: dict[str, int] = {}
    accepted: dict[str, list[int]] = {}
    for result in results:
        counts = accepted.setdefault(result.kind, [])
        tries[result.kind] = tries.get(result.kind, 0) + result.tries
        for i, count in enumerate(result.accepted_per_position):
            if i == len(counts):
                counts.append(0)
            counts[i] += count
    kinds = sorted((kind for kind in tries if tries[kind]), key=lambda kind: -tries[kind])
    for kind, colour, marker in zip(kinds, _COLOURS, _MARKERS, strict=False):
        shares = [count / tries[kind] for count in accepted[kind]]
        axes.plot(range(1, len(shares) + 1), shares, color=colour, marker=marker, label=kind)
    axes.set_ylim(0, 1.05)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of drafts accepted so far")
    axes.set_title("Acceptance per position")
    if kinds:
        axes.legend()


def _draw_expected(axes: Any, profile: Profile) -> None:
    table = profile.table
    rows = [row for row in table.rows if row.k in _SHOWN_K]
    for row, colour, marker in zip(rows, _COLOURS, _MARKERS, strict=False):
        axes.plot(table.acceptances, row.exact, color=colour, marker=marker, label=f"k = {row.k}")
        axes.plot(table.acceptances, row.replay, color=colour, linestyle="--")
    axes.axhline(1.0, color=_INK, linestyle=":")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} x")
    axes.set_xlabel("acceptance")
    axes.set_ylabel("expected speedup")
    axes.set_title("When it pays (solid: exact, dashed: replay)")
    axes.legend()


@contextmanager
def _figure(path: Path, columns: int, title: str, height: float) -> Iterator[Any]:
    """Axes side by side; the file is written at the end."""
    pyplot = _pyplot()
    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(
            1, columns, figsize=(5.5 * columns, height), layout="constrained"
        )
        try:
            figure.suptitle(title)
            yield axes
            figure.savefig(path, transparent=True)
        except OSError as error:
            raise InvalidRequestError(
                f"--plot {path} can't be written: {error.strerror or error}"
            ) from None
        finally:
            pyplot.close(figure)


_STYLE = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "legend.labelcolor"), _INK),
    "legend.framealpha": 0.0,
    "lines.markersize": 4,
    "svg.fonttype": "none",
    "svg.hashsalt": "draftproof",  # the same figures give the same file
}


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise InvalidRequestError(
            "--plot needs matplotlib, the extra `plot`: pip install 'draftproof[plot]'"
        ) from None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")
