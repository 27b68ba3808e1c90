"""Incremental detokenizer of one request: token ids in, text that can no longer change out.

Holds back incomplete UTF-8 and anything that could still become a stop string. Knows nothing of
where the tokens come from.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from draftproof.errors import InvalidRequestError
from draftproof.text.tokenizer import Tokenizer


class Detokenizer:
    """Feeds on token ids with `push`, ends with `finish`.

    Without a stop string the concatenation of everything returned equals `Tokenizer.decode` of
    all ids, whatever the ids. With one, it equals that text cut before the stop string that is
    complete first; of several complete at the same character, the longest. So the cut doesn't
    depend on how the text was divided into tokens. `stopped` is that stop string, else None.

    Raises InvalidRequestError for an empty stop string.
    """

    stopped: str | None

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), skip_special: bool = True
    ) -> None:
        if isinstance(stop, str):
            stop = (stop,)
        if not all(stop):
            raise InvalidRequestError("stop: a stop string must not be empty")
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._hidden = tokenizer.control_ids if skip_special else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # decoded text that may be the beginning of a stop string
        self.stopped = None

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """The text that became certain with this token; "" once a stop string was met.

        may_stop False: stop strings that this token completes are plain text.
        Raises InvalidRequestError for an id out of range.
        """
        data = self._tokenizer.token_bytes(token_id)
        if self.stopped is not None or token_id in self._hidden:
            return ""
        return self._release(self._utf8.decode(data), may_stop)

    def finish(self) -> str:
        """The rest: incomplete UTF-8 as U+FFFD, and what was held back for a stop string."""
        if self.stopped is not None:
            return ""
        certain = self._release(self._utf8.decode(b"", final=True))
        rest, self._held = self._held, ""
        return certain + rest

    def _release(self, text: str, may_stop: bool = True) -> str:
        if not self._stop:
            return text
        if not text:
            return ""
        before = len(self._held)
        self._held += text
        # What was complete before was allowed to pass.
        found = [
            (at + len(stop), -len(stop), stop)
            for stop in self._stop
            if (at := self._held.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if found and may_stop:
            end, _, self.stopped = min(found)
            certain, self._held = self._held[: end - len(self.stopped)], ""
            return certain
        keep = max(_overlap(self._held, stop) for stop in self._stop)
        cut = len(self._held) - keep
        certain, self._held = self._held[:cut], self._held[cut:]
        return certain


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
