"""Tables as text: Markdown that also reads well in a terminal, and CSV. Knows no figures."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A padded Markdown table with a final newline; the first `left` columns are flush left, the
    others right. A | inside a cell is escaped."""
    cells = [[_cell(c) for c in row] for row in (header, *rows)]
    widths = [max(3, *(_width(row[i]) for row in cells)) for i in range(len(header))]
    lines = []
    for number, row in enumerate(cells):
        padded = [
            cell + " " * (width - _width(cell)) if i < left else " " * (width - _width(cell)) + cell
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
        if number == 0:
            rules = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
            lines.append("| " + " | ".join(rules) + " |")
    return "\n".join(lines) + "\n"


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """CSV (RFC 4180 quoting, line feeds); None is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return out.getvalue()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _width(text: str) -> int:
    """Columns in a terminal: wide East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
