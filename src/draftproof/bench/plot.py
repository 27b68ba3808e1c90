"""The profile as a picture. matplotlib is an optional extra and is imported only here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from draftproof.bench.profile import Profile
from draftproof.errors import InvalidRequestError

SUFFIXES = (".svg", ".png")
_SHOWN_K = (1, 3, 7, 15, 31)


def check_plot(path: Path) -> None:
    """Before anything is measured. InvalidRequestError: another kind of file, no such folder, or
    matplotlib isn't installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidRequestError(f"--plot must end in {' or '.join(SUFFIXES)}, got {path}")
    if not path.absolute().parent.is_dir():
        raise InvalidRequestError(f"--plot {path}: there is no such folder")
    _pyplot()


def draw(profile: Profile, path: Path) -> None:
    """Writes the file. InvalidRequestError where it can't be written."""
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    _draw_costs(left, profile)
    _draw_speedups(right, profile)
    figure.suptitle(f"{profile.model}, {profile.isa}, {profile.threads} threads")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidRequestError(
            f"--plot {path} can't be written: {error.strerror or error}"
        ) from None
    finally:
        pyplot.close(figure)


def _draw_costs(axes: Any, profile: Profile) -> None:
    costs = profile.measurement.costs
    axes.plot(list(costs), list(costs.values()), marker="o", label="V(m), measured")
    axes.plot(list(costs), list(costs), color="grey", linestyle=":", label="one step per row")
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


def _draw_speedups(axes: Any, profile: Profile) -> None:
    table = profile.table
    for row in table.rows:
        if row.k in _SHOWN_K:
            (line,) = axes.plot(table.acceptances, row.exact, marker=".", label=f"k = {row.k}")
            axes.plot(table.acceptances, row.replay, color=line.get_color(), linestyle="--")
    axes.axhline(1.0, color="grey", linestyle=":")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} x")
    axes.set_xlabel("acceptance")
    axes.set_ylabel("expected speedup")
    axes.set_title("When it pays (solid: exact, dashed: replay)")
    axes.legend()


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise InvalidRequestError(
            "--plot needs matplotlib, the extra `plot`: pip install 'draftproof[plot]'"
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "draftproof"  # the same figures give the same file
    return importlib.import_module("matplotlib.pyplot")
