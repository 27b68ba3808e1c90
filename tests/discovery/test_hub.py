"""Downloads by hub id, from a hub of our own on this machine: progress, resuming, and failures."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from draftproof import LLM, discovery
from draftproof.errors import ModelNotFoundError
from tiny_folders import write_folder
from tiny_models import SPECS, TinyModels

constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories as {name: {file: bytes}}, and what was asked for."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.ranges: list[str] = []
        self.cut_after: int | None = None  # bytes after which a download breaks off, once

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/.*)?", path):
            files = self.repositories.get(match[1])
            if files is None:
                return self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
            siblings = [{"rfilename": n, "size": len(d)} for n, d in files.items()]
            body = {"id": match[1], "sha": COMMIT, "siblings": siblings}
            return self._send(request, 200, json.dumps(body).encode(), {})
        if match := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path):
            return self._file(request, self.repositories[match[1]][match[2]])
        return self._send(request, 404, b"", {})

    def _file(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if request.command == "HEAD":
            return self._send(request, 200, data, headers)
        start = 0
        if match := re.fullmatch(r"bytes=(\d+)-.*", request.headers.get("Range", "")):
            start = int(match[1])
            self.ranges.append(match[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self._send(request, 206 if start else 200, data[start:], headers)

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
    ) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        if self.cut_after is not None and len(body) > self.cut_after:
            body, self.cut_after = body[: self.cut_after], None
            request.close_connection = True
        request.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.answer(self)

        def do_HEAD(self) -> None:
            hub.answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name in ("HF_HUB_OFFLINE", "HF_HOME", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "own"))
    # The library reads its variables when it is imported.
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


def folder_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["Qwen/Qwen3-Tiny"] = {
        **folder_files(write_folder(tmp_path / "m", SPECS["qwen3"], shards=2)),
        "README.md": b"not needed",
    }
    seen: list[tuple[str, int, int | None]] = []
    path = discovery.resolve("Qwen/Qwen3-Tiny", lambda *report: seen.append(report))
    assert not (path / "README.md").exists()
    stages = {stage for stage, _, _ in seen}
    done = [done for _, done, _ in seen]
    assert stages == {"downloading"}
    assert done == sorted(done)
    assert done[-1] == seen[-1][2] == sum(p.stat().st_size for p in path.iterdir())
    with LLM("Qwen/Qwen3-Tiny", ctx=256, threads=1) as llm:
        assert llm.info.name == "Qwen3-Tiny"
    del hub.repositories["Qwen/Qwen3-Tiny"]  # the second time nothing is asked for
    assert discovery.resolve("Qwen/Qwen3-Tiny") == path


def test_a_gguf_file_by_its_type(hub: Hub, tiny: TinyModels) -> None:
    data = tiny.path("qwen3", "Q8_0").read_bytes()
    hub.repositories["a/b-GGUF"] = {"b-Q4_K_M.gguf": b"GGUF", "b-Q8_0.gguf": data}
    path = discovery.resolve("a/b-GGUF:q8_0")
    assert path.name == "b-Q8_0.gguf"
    assert path.read_bytes() == data
    with pytest.raises(ModelNotFoundError, match="has no Q2_K: it has Q4_K_M, Q8_0"):
        discovery.resolve("a/b-GGUF:Q2_K")


def test_a_download_that_broke_off_goes_on(hub: Hub, tiny: TinyModels) -> None:
    data = tiny.path("qwen3", "F32").read_bytes()
    hub.repositories["a/b"] = {"b-F32.gguf": data}
    hub.cut_after = len(data) // 2
    try:
        path = discovery.resolve("a/b:F32")
    except ModelNotFoundError:  # or the library goes on by itself
        path = discovery.resolve("a/b:F32")
    assert path.read_bytes() == data
    assert hub.ranges, "the second half was fetched alone"


def test_failures_are_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no such repository") as caught:
        discovery.resolve("a/nothing")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFoundError, match="no network"):
        discovery.resolve("a/nothing")


def test_without_the_library(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFoundError, match=r"pip install 'draftproof\[hub\]'"):
        discovery.resolve("a/nothing")
