"""`draftproof chat`: a conversation in a terminal, or line by line from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from draftproof.cli.conversation import Conversation
from draftproof.cli.run import open_model
from draftproof.cli.terminal import (
    EXIT_CHECK_FAILED,
    EXIT_USER_ERROR,
    TextOut,
    image_progress,
    note,
    one_line,
    speed_line,
)
from draftproof.config import check_int
from draftproof.errors import DraftproofError, InvalidRequestError

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import Completion, Delta

HELP = """\
/set NAME VALUE   a setting of the sampler; /set alone shows them
/spec off|auto|K  speculation off, on, or with drafts of K tokens
/system TEXT      the system message; /system alone forgets it
/colours on|off   colour the tokens of an answer by who drafted them
/image PATH       an image for the next message
/retry            the last answer once more
/stats            tokens, speed and speculation of the last answer
/save FILE        keep the conversation; /load FILE brings it back
/clear            forget the messages
/bye              end (so does Ctrl-D)
A message of several lines: between lines of three double quotes, or Alt-Enter for a new line.
Ctrl-C stops an answer and keeps what there is of it."""

_QUOTES = '"""'
_COLOURS = {
    **{"window": 34, "suffix": 33, "template": 32, "resync": 35, "grammar": 36},
    **{"store": 93, "reference": 95},
}
_OTHER_COLOUR = 96


@dataclass(frozen=True)
class ChatOptions:
    """The command line of `chat`."""

    model: str | None = None
    system: str | None = None
    threads: int | None = None
    ctx: int | None = None
    spec: str = "auto"
    colours: bool = False
    mmproj: Path | None = None


class Reader(Protocol):
    """Where messages come from. EOFError: there are no more. KeyboardInterrupt: the line that was
    being typed is dropped."""

    interactive: bool

    def line(self, more: bool) -> str:
        """The next line; more: it continues a message."""


def run_chat(options: ChatOptions) -> int:
    """The exit code of `draftproof chat`."""
    if options.threads is not None:
        check_int("--threads", options.threads, 1, 1024)
    conversation = Conversation(system=options.system)
    conversation.speculate(options.spec)
    reader = terminal_reader() if _at_terminal() else PipeReader()
    llm = open_model(options.model, threads=options.threads, ctx=options.ctx, mmproj=options.mmproj)
    return Chat(llm, conversation, reader, colours=options.colours).run()


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


class Chat:
    """The loop: a message or a command, an answer, and again."""

    def __init__(
        self, llm: LLM, conversation: Conversation, reader: Reader, *, colours: bool = False
    ) -> None:
        self._llm = llm
        self._colours = colours
        self.conversation = conversation
        self._reader = reader
        self._last: Completion | None = None
        self._code = 0

    def run(self) -> int:
        """Until the end of the input or /bye; the exit code. At a terminal mistakes don't count."""
        if self._reader.interactive:
            note("/help shows the commands, /bye or Ctrl-D ends")
        while True:
            try:
                text = read_message(self._reader)
            except EOFError:
                break
            except KeyboardInterrupt:
                if self._reader.interactive:
                    continue
                raise
            try:
                if text.startswith("/"):
                    if not self._command(text):
                        break
                elif text.strip():
                    self._answer(text)
            except DraftproofError as error:
                note(f"draftproof: error: {one_line(error)}")
                if not self._reader.interactive:
                    self._code = EXIT_USER_ERROR
        return self._code

    def _command(self, line: str) -> bool:
        """False: the conversation is over."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name in ("/bye", "/exit", "/quit"):
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: note(HELP),
            "/set": self._set,
            "/spec": self.conversation.speculate,
            "/system": self._set_system,
            "/colours": self._set_colours,
            "/image": lambda path: self.conversation.attach(_path(path, "/image")),
            "/retry": lambda _: self._answer(self.conversation.take_back()),
            "/stats": lambda _: self._show_stats(),
            "/save": lambda path: self.conversation.save(_path(path, "/save")),
            "/load": lambda path: self.conversation.load(_path(path, "/load")),
            "/clear": lambda _: self.conversation.clear(),
        }
        if name not in commands:
            raise InvalidRequestError(f"no command {name:.40}: /help shows them")
        commands[name](rest)
        return True

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if rest:
            self.conversation.set(name, value.strip())
        for known, now in self.conversation.settings().items():
            if not rest or known == name:
                note(f"{known} = {'none' if now is None else now}")

    def _set_system(self, text: str) -> None:
        self.conversation.system = text or None

    def _set_colours(self, text: str) -> None:
        if text not in ("on", "off"):
            raise InvalidRequestError(f"/colours takes on or off, got {text!r:.40}")
        self._colours = text == "on"
        if self._colours and TextOut().has_colours:
            for source, colour in _COLOURS.items():
                TextOut().write(f"{source}\n", colour)

    def _show_stats(self) -> None:
        if self._last is None:
            raise InvalidRequestError("there is no answer yet")
        note(speed_line(self._last.to_dict()))
        note(self._last.spec_line)
        for source, counts in self._last.speculation["by_source"].items():
            note(f"  {source}: {counts['accepted']} of {counts['drafted']} drafted were accepted")

    def _answer(self, text: str) -> None:
        """Streams the answer. What Ctrl-C leaves of it stays in the conversation."""
        conversation = self.conversation
        conversation.say(text)
        out, pieces = TextOut(), []
        stream: Any = ()
        try:
            with image_progress() as self._llm.on_reading:
                stream = self._llm.stream(
                    conversation.prompt(), conversation.sampling, conversation.speculation
                )
            for delta in stream:
                pieces.append(delta.text)
                self._write(out, delta)
                self._last = delta.completion or self._last
        except KeyboardInterrupt:
            if not self._reader.interactive:
                raise
            _close(stream)
            note("(stopped)")
        except DraftproofError:
            conversation.take_back()
            raise
        finally:
            out.finish()
        conversation.hear("".join(pieces))
        if self._last is not None and self._last.finish_reason == "numeric_error":
            note(
                "draftproof: error: a value that is not finite appeared; the answer ends before it"
            )
            self._code = EXIT_CHECK_FAILED

    def _write(self, out: TextOut, delta: Delta) -> None:
        if not (self._colours and delta.events):
            out.write(delta.text)
            return
        for event in delta.events:
            source = event.origin.source
            drafted = source not in ("plain", "bonus")
            out.write(event.text, _COLOURS.get(source, _OTHER_COLOUR) if drafted else 0)


def _close(stream: Any) -> None:
    """Closing cancels the request; an iterator of a test has nothing to close."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()


def _path(text: str, command: str) -> Path:
    if not text:
        raise InvalidRequestError(f"{command} needs a file")
    return Path(text).expanduser()


def read_message(reader: Reader) -> str:
    """One message; several lines between lines of three double quotes."""
    line = reader.line(more=False)
    if not line.startswith(_QUOTES):
        return line
    lines = [line.removeprefix(_QUOTES)]
    while not lines[-1].endswith(_QUOTES):
        lines.append(reader.line(more=True))
    lines[-1] = lines[-1].removesuffix(_QUOTES)
    return "\n".join(lines).strip("\n")


class PipeReader:
    """Line by line; an open quotation ends with the input."""

    interactive = False

    def line(self, more: bool) -> str:
        stdin = sys.stdin
        data = b"" if stdin is None or stdin.closed else stdin.buffer.readline()
        if not data:
            if more:
                return _QUOTES
            raise EOFError
        return data.decode("utf-8", "replace").rstrip("\r\n")


class TerminalReader:
    """Line editing, and a history across sessions. session: a PromptSession of prompt_toolkit."""

    interactive = True

    def __init__(self, session: Any) -> None:
        self._session = session

    def line(self, more: bool) -> str:
        return str(self._session.prompt("... " if more else ">>> "))


def terminal_reader(**streams: Any) -> TerminalReader:
    """streams: input and output of a PromptSession, for tests."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    session: Any = PromptSession(history=_history(), key_bindings=keys, **streams)
    return TerminalReader(session)


def _history() -> Any:
    """In the cache folder, for its owner only; in memory where that can't be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from draftproof import catalogue

    path = catalogue.cache_dir() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
