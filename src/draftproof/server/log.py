"""One line per request, for people (key=value) or for programs (JSON). Never a prompt or a key."""

from __future__ import annotations

import json
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any, TextIO

from draftproof.server.errors import ApiError


@dataclass(slots=True)
class RequestRecord:
    """What is known of one request; filled on its way, written at its end. Times: perf_counter."""

    id: str
    method: str
    path: str
    tenant: str = ""
    status: int = 0
    stream: bool = False
    outcome: str = "ok"  # ok, error, cancelled
    error: str = ""
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    spec_line: str = ""
    started: float = field(default_factory=time.perf_counter)
    first_token: float = 0.0

    def fail(self, error: ApiError, cause: BaseException | None) -> None:
        """Notes how it failed, with what the client isn't told."""
        self.outcome = "error"
        self.error = error.code or error.type
        if cause is not None and error.status == 500 and not isinstance(cause, ApiError):
            self.error = f"{type(cause).__name__}: {cause}"[:300]
            traceback.print_exception(cause)

    def to_dict(self) -> dict[str, Any]:
        line: dict[str, Any] = {
            "request": self.id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "outcome": self.outcome,
            "ms": round(1000 * (time.perf_counter() - self.started), 1),
        }
        if self.error:
            line["error"] = self.error
        if self.prompt_tokens:
            line |= {
                "stream": self.stream,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
                "finish_reason": self.finish_reason,
            }
        if self.first_token:
            line["first_token_ms"] = round(1000 * (self.first_token - self.started), 1)
        if self.spec_line:
            line["spec"] = self.spec_line
        return line


class Log:
    """Writes records; safe from any thread as far as a line is one write."""

    def __init__(self, as_json: bool, stream: TextIO | None = None) -> None:
        self._as_json = as_json
        self._stream = stream

    def request(self, record: RequestRecord) -> None:
        if record.path in ("/health", "/v1/health", "/metrics") and record.status < 400:
            return  # asked for every few seconds by machines
        self._write({"time": _now(), **record.to_dict()})

    def event(self, event: str, **facts: Any) -> None:
        self._write({"time": _now(), "event": event, **facts})

    def _write(self, line: dict[str, Any]) -> None:
        if self._as_json:
            text = json.dumps(line, ensure_ascii=True)
        else:
            spec = line.pop("spec", "")
            text = " ".join(f"{key}={_plain(value)}" for key, value in line.items())
            text += f" {spec}" if spec else ""
        print(text, file=self._stream or sys.stderr, flush=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _plain(value: Any) -> str:
    """One word or one quoted string: nobody can write a line of their own into the log."""
    text = str(value)
    if text and all(" " < character < "\x7f" and character not in '"=' for character in text):
        return text
    return json.dumps(text)
