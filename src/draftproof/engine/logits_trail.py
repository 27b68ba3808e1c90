"""What an audited request leaves behind: one hash over all its logits, and a trace of every row.

Owns how a row of logits is hashed. Knows nothing of requests; an audit is slow, and may be.
"""

from __future__ import annotations

import hashlib

import numpy as np

from draftproof.outputs import LogitsRow

_TOP = 5


class LogitsTrail:
    """Is fed the logits row behind every emitted token, in order, as the bytes of float32."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._rows: list[LogitsRow] = []

    def update(self, row: bytes, /) -> None:
        self._sha256.update(row)
        logits = np.frombuffer(row, np.float32)
        # Highest first, the lower id first among equals.
        top = np.lexsort((np.arange(logits.size), -logits))[:_TOP]
        self._rows.append(
            LogitsRow(
                hashlib.sha256(row).hexdigest()[:16],
                tuple((int(token), float(logits[token])) for token in top),
            )
        )

    def hexdigest(self) -> str:
        """sha256 over all rows."""
        return self._sha256.hexdigest()

    @property
    def rows(self) -> tuple[LogitsRow, ...]:
        return tuple(self._rows)
