"""`draftproof models`: the catalogue, and every model in the caches of this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from draftproof import catalogue
from draftproof.cli.terminal import note, print_json


def catalogue_rows() -> list[dict[str, Any]]:
    """One row per model of the catalogue, JSON-ready. `size_bytes` is that of the file."""
    return [
        {
            "name": entry.name,
            "file": entry.file,
            "size_bytes": entry.size,
            "sha256": entry.sha256,
            "licence": entry.licence,
            "origin": entry.origin,
            "state": catalogue.state(entry),
            "default": entry.name == catalogue.DEFAULT_MODEL,
        }
        for entry in catalogue.CATALOGUE.values()
    ]


def found_rows() -> list[dict[str, Any]]:
    """One row per model that is on this machine, JSON-ready; see discovery.describe."""
    from draftproof.discovery import all_places
    from draftproof.discovery.describe import describe

    rows = []
    for place in all_places():
        row = asdict(describe(place))
        row |= {"name": place.name, "path": str(place.path), "source": place.source}
        del row["place"]
        row["size_bytes"], row["needs_bytes"] = row.pop("size"), row.pop("needs")
        rows.append(row)
    return rows


def show_models(as_json: bool) -> None:
    rows, found = catalogue_rows(), found_rows()
    folder = str(catalogue.models_dir())
    if as_json:
        print_json({"models_dir": folder, "models": rows, "found": found})
        return
    _print_table(
        ("NAME", "SIZE", "STATE", "LICENCE", "FROM"),
        [
            (
                row["name"] + (" (default)" if row["default"] else ""),
                _megabytes(row["size_bytes"]),
                *(row["state"], row["licence"], row["origin"]),
            )
            for row in rows
        ],
    )
    if found:
        print()
        _print_table(
            ("ON THIS MACHINE", "SIZE", "TYPE", "FAMILY", "CONTEXT", "MEMORY", "FITS", "CACHE"),
            [_found_line(row) for row in found],
        )
    note(f"cache: {folder}")


def _found_line(row: dict[str, Any]) -> tuple[str, ...]:
    if row["problem"]:
        what = (*("", row["family"], "", ""), row["problem"])
    else:
        fits = {True: "yes", False: "no", None: "?"}[row["fits"]]
        memory = _megabytes(row["needs_bytes"])
        what = (row["quantization"], row["family"], f"{row['context']:,}", memory, fits)
    return (row["name"], _megabytes(row["size_bytes"]), *what, row["source"])


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _print_table(titles: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles:
        right = title in ("SIZE", "CONTEXT", "MEMORY")
        table.add_column(title, overflow="fold", justify="right" if right else "left")
    for line in lines:
        table.add_row(*line)
    Console(file=sys.stdout, markup=False, highlight=False).print(table)
