"""`draftproof models`: the catalogue and what of it lies in the cache."""

from __future__ import annotations

import sys
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


def show_models(as_json: bool) -> None:
    rows = catalogue_rows()
    folder = str(catalogue.models_dir())
    if as_json:
        print_json({"models_dir": folder, "models": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("NAME", "SIZE", "STATE", "LICENCE", "FROM"):
        table.add_column(title, overflow="fold", justify="right" if title == "SIZE" else "left")
    for row in rows:
        name = row["name"] + (" (default)" if row["default"] else "")
        size = f"{row['size_bytes'] / 1e6:,.0f} MB"
        table.add_row(name, size, row["state"], row["licence"], row["origin"])
    Console(file=sys.stdout, markup=False, highlight=False).print(table)
    note(f"cache: {folder}")
