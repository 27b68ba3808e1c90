"""What the commands share in front of a terminal: streamed text, statistics, progress, exit codes.

Knows nothing of models or engines. Answers go to stdout, everything else to stderr.
Exit codes: 0 fine, 1 a check failed or an unexpected error, 2 a mistake of the user's,
130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from draftproof.catalogue import Progress
from draftproof.errors import DraftproofError

EXIT_CHECK_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE[0x7F] = 0x2421
_VISIBLE_TEXT: dict[int, str] = {code: chr(shown) for code, shown in _VISIBLE.items()}
_VISIBLE_TEXT.update({code: f"\\x{code:02x}" for code in range(0x80, 0xA0)})
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def visible(text: str) -> str:
    """Control characters as text (ESC as ␛), so that no answer can steer a terminal.

    Line feed and tab stay. The C1 range counts too: terminals read U+009B like ESC [."""
    return text.translate(_VISIBLE_TEXT)


class TextOut:
    """Streams an answer to stdout, piece by piece: made visible for a terminal, unchanged for a
    pipe; the end of the answer is the end of a line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: Any = sys.stdout if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._last = "\n"

    @property
    def has_colours(self) -> bool:
        """Whether a terminal is there that shows them (https://no-color.org)."""
        return (
            self._is_terminal
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM", "dumb") != "dumb"
        )

    def write(self, text: str, colour: int = 0) -> None:
        """colour: an SGR code for a terminal with colours, 0 = none."""
        if not text:
            return
        self._last = text[-1]
        if self._is_terminal:
            encoding = self._stream.encoding or "utf-8"
            shown = visible(text).encode(encoding, "replace").decode(encoding)
            if colour and self.has_colours:
                shown = f"\x1b[{colour}m{shown}\x1b[0m"
            self._stream.write(shown)
        else:
            # Around the text layer: UTF-8 whatever the locale says, and no newline translation.
            self._stream.flush()
            self._stream.buffer.write(text.encode("utf-8", "replace"))
        self._stream.flush()

    def finish(self) -> None:
        if self._last != "\n":
            self.write("\n")


def note(line: str) -> None:
    """One line to stderr."""
    print(visible(line), file=sys.stderr, flush=True)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of stdout; nothing in it can steer a terminal."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    out = TextOut()
    out.write(line.translate(_JSON_ESCAPES))
    out.finish()


def speed_line(completion: Mapping[str, Any]) -> str:
    """Tokens and tokens per second of prompt and answer."""
    usage, timings = completion["usage"], completion["timings"]
    return (
        f"prompt {usage['prompt_tokens']} tokens, {timings['prompt_per_second']:.1f} tok/s; "
        f"answer {usage['completion_tokens']} tokens, {timings['predicted_per_second']:.1f} tok/s; "
        f"loaded in {timings['load_ms'] / 1000:.2f} s"
    )


@contextlib.contextmanager
def model_progress() -> Iterator[Progress]:
    """A callback for the `progress` of `LLM` that draws a bar on a terminal's stderr.

    Nothing is drawn (and rich isn't imported) unless there is something to wait for."""
    if not sys.stderr.isatty():
        yield _PlainProgress().report
        return
    bar = _ProgressBar()
    try:
        yield bar.report
    finally:
        bar.close()


@contextlib.contextmanager
def image_progress() -> Iterator[Progress]:
    """A callback for `LLM.on_reading`: one line on stderr that changes, and is gone at the end; in
    logs and pipes one line per image."""
    shown: list[str] = []

    def report(what: str, done: int, total: int | None) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{what} … {100 * done // (total or 1)} %")
            sys.stderr.flush()
        elif what not in shown:
            note(f"draftproof: {what} …")
        shown.append(what)

    try:
        yield report
    finally:
        if shown and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class _PlainProgress:
    """For logs and pipes: one line, and only where waiting could be taken for hanging."""

    _WORTH_A_LINE = ("downloading", "waiting for another process")

    def __init__(self) -> None:
        self._stage = ""

    def report(self, stage: str, done: int, total: int | None) -> None:
        if stage != self._stage and stage in self._WORTH_A_LINE:
            size = f" ({total / 1e6:.0f} MB)" if total else ""
            note(f"draftproof: {stage}{size} …")
        self._stage = stage


class _ProgressBar:
    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._stage = ""

    def report(self, stage: str, done: int, total: int | None) -> None:
        if self._progress is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TransferSpeedColumn,
            )

            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
        # pip says nothing until the first bytes are there: a bar without an end until then.
        end = total if done or stage != "downloading" else None
        if stage != self._stage:
            self._stage = stage
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(stage, total=end)
        self._progress.update(self._task, completed=done, total=end)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Turns every way in which a command can fail into one line on stderr and an exit code."""
    _replace_closed_streams()
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        _forget_stdout()
        raise SystemExit(EXIT_BROKEN_PIPE) from None
    except DraftproofError as error:
        _show_traceback_if_asked()
        note(f"draftproof: error: {one_line(error)}")
        raise SystemExit(EXIT_USER_ERROR) from None
    except OSError as error:
        _show_traceback_if_asked()
        _forget_stdout()
        note(f"draftproof: error: the system says: {one_line(error)}")
        raise SystemExit(EXIT_CHECK_FAILED) from None
    except Exception as error:
        _show_traceback_if_asked()
        note(
            f"draftproof: unexpected error: {type(error).__name__}: {one_line(error)} "
            "(DRAFTPROOF_DEBUG=1 shows where)"
        )
        raise SystemExit(EXIT_CHECK_FAILED) from None


def _replace_closed_streams() -> None:
    """A stream that the caller has closed (`>&-`) swallows what is written to it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def one_line(error: BaseException) -> str:
    """What went wrong, without line feeds."""
    return " ".join(str(error).split())


def _show_traceback_if_asked() -> None:
    if os.environ.get("DRAFTPROOF_DEBUG", "") not in ("", "0"):
        traceback.print_exc()


def _forget_stdout() -> None:
    """Points stdout at nothing, so that Python's last flush doesn't complain either."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
