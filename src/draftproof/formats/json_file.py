"""JSON files of a model folder: read within bounds, values checked, errors with file and key.

Knows no model.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.errors import ModelFileError
from draftproof.formats.mapped_file import file_label, open_regular

MAX_JSON_BYTES = 64 << 20  # the largest in real folders are tokenizers of 20 MB
BROKEN = "the file is damaged or incomplete, download it again"


def parse_object(text: bytes, label: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises ModelFileError, which starts with `label`."""
    try:
        value = json.loads(text.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{label}: isn't UTF-8 at byte {error.start}; {BROKEN}") from None
    except json.JSONDecodeError as error:
        raise ModelFileError(
            f"{label}: isn't JSON in line {error.lineno} ({error.msg}); {BROKEN}"
        ) from None
    except (RecursionError, ValueError) as error:  # too deep, a number of 5,000 digits, NaN
        what = "is nested too deep" if isinstance(error, RecursionError) else str(error)[:100]
        raise ModelFileError(f"{label}: {what}; {BROKEN}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{label}: isn't a JSON object; {BROKEN}")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} isn't a JSON number")


class JsonFile:
    """A JSON object of a file, or a part of it: `at` is the way from the top, for messages."""

    def __init__(self, path: Path, values: Mapping[str, Any], at: str = "") -> None:
        self.path = path
        self.values = values
        self.at = at

    @classmethod
    def read(cls, path: Path) -> JsonFile:
        """Raises ModelNotFoundError (no such file) and ModelFileError."""
        return cls(path, parse_object(read_text(path), file_label(path)))

    def error(self, key: str, what: str, hint: str = "get the folder anew") -> ModelFileError:
        return ModelFileError(f"{file_label(self.path)}: {self.at}{key} {what}; {hint}")

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def part(self, key: str) -> JsonFile | None:
        """The object behind `key`; None if there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return JsonFile(self.path, value, f"{self.at}{key}.")

    def int_value(self, key: str, lo: int, hi: int, default: int | None = None) -> int:
        """A whole number from lo to hi. A missing key gives the default, or ModelFileError without
        one; so do the other getters."""
        value = self._get(key, default)
        if type(value) is not int:
            raise self.error(key, f"must be a whole number (is {_shown(value)})")
        if not lo <= value <= hi:
            raise self.error(key, f"must be from {lo} to {hi} (is {_shown(value)})")
        return value

    def float_value(self, key: str, lo: float, hi: float, default: float | None = None) -> float:
        """A finite number from lo to hi."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not lo <= value <= hi or not math.isfinite(value):
            raise self.error(key, f"must be a number from {lo:g} to {hi:g} (is {_shown(value)})")
        return float(value)

    def bool_value(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.error(key, f"must be true or false (is {_shown(value)})")
        return value

    def str_value(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"must be a string (is {_shown(value)})")
        return value

    def _get(self, key: str, default: object) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        return value


def read_text(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file of at most `most` bytes. Raises ModelNotFoundError, ModelFileError."""
    fd, size = open_regular(path, "a file of a model folder")
    with os.fdopen(fd, "rb") as file:
        if size > most:
            raise ModelFileError(
                f"{file_label(path)}: {size} bytes are more than the {most} that such a file may"
                " have; get the folder from a source you trust"
            )
        try:
            text = file.read(most)
        except OSError as error:
            raise ModelFileError(
                f"{file_label(path)}: can't be read ({error.strerror}); check the disk"
            ) from None
    if text.startswith(b"version https://git-lfs"):
        raise ModelFileError(
            f"{file_label(path)}: is a Git LFS pointer; download the real file (git lfs pull)"
        )
    return text


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of more than 256 bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
