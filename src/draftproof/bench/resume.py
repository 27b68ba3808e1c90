"""A journal of finished prompts, so that a long comparison can be interrupted and go on.

JSON Lines: the first line holds the settings, every further line one prompt's result. A journal of
other settings is refused, since its figures can't be mixed with new ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from draftproof.bench.compare import PromptResult
from draftproof.errors import InvalidRequestError


class Journal:
    """settings: whatever must agree (model fingerprint, speculation, threads, ...), JSON-ready."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Reads what is there and writes the settings if nothing is. InvalidRequestError: can't be
        read or written, isn't a journal, or is one of other settings."""
        self._path = path
        self.done: dict[str, PromptResult] = {}
        header = {"draftproof_bench": 1, **settings}
        try:
            text = path.read_text("utf-8") if path.exists() else ""
            lines = text.splitlines()
            if not lines:
                path.write_text(json.dumps(header) + "\n", "utf-8")
            else:
                self._check(lines[0], header)
                self._read(lines[1:])
                if not text.endswith("\n"):  # the last line was cut off by whatever ended the run
                    self._write_anew(header)
        except OSError as error:
            raise InvalidRequestError(
                f"--resume {path} can't be used: {error.strerror or error}"
            ) from None
        except UnicodeDecodeError:
            raise InvalidRequestError(
                f"--resume {path} isn't a journal of draftproof bench: choose another file"
            ) from None

    def add(self, result: PromptResult) -> None:
        """Appends one line at once."""
        self.done[result.id] = result
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(result))
        except OSError as error:
            raise InvalidRequestError(
                f"--resume {self._path} can't be written: {error.strerror or error}"
            ) from None

    def _check(self, line: str, header: Mapping[str, Any]) -> None:
        found = _object(line)
        if found is None or "draftproof_bench" not in found:
            raise InvalidRequestError(
                f"--resume {self._path} isn't a journal of draftproof bench: choose another file"
            )
        for key, value in header.items():
            if found.get(key) != value:
                raise InvalidRequestError(
                    f"--resume {self._path} was begun with {key} = {found.get(key)!r}, now it is "
                    f"{value!r}: use the same settings or another file"
                )

    def _read(self, lines: list[str]) -> None:
        names = {field.name for field in fields(PromptResult)}
        for number, line in enumerate(lines, 2):
            record = _object(line)
            if record is not None and names <= set(record):
                record["accepted_per_position"] = tuple(record["accepted_per_position"])
                result = PromptResult(**{name: record[name] for name in names})
                self.done[result.id] = result
            elif number <= len(lines):
                raise InvalidRequestError(
                    f"--resume {self._path}:{number} is no result: delete the line or the file"
                )

    def _write_anew(self, header: Mapping[str, Any]) -> None:
        whole = json.dumps(header) + "\n" + "".join(_line(r) for r in self.done.values())
        partial = self._path.with_name(self._path.name + ".partial")
        partial.write_text(whole, "utf-8")
        partial.replace(self._path)


def _line(result: PromptResult) -> str:
    return json.dumps(asdict(result)) + "\n"


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
