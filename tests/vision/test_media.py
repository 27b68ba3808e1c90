"""What a URL of an image may reach: nothing that wasn't allowed. All servers are on loopback."""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import InvalidRequestError
from draftproof.vision import images, media
from draftproof.vision.media import MediaLoader, MediaPolicy, is_public

HERE = ipaddress.ip_address("127.0.0.1")


def only_here(address: Any) -> bool:
    return bool(address == HERE)


class Handler(BaseHTTPRequestHandler):
    """/image, /redirect?to=URL, /loop, /large, /endless, /slow, /missing"""

    seen: list[str] = []  # noqa: RUF012 (shared by all requests on purpose)

    def do_GET(self) -> None:
        self.seen.append(self.path)
        path, _, query = self.path.partition("?to=")
        if path == "/image":
            self._send(200, b"an image")
        elif path == "/redirect":
            self._send(302, b"", Location=query)
        elif path == "/loop":
            self._send(302, b"", Location="/loop")
        elif path == "/large":
            self.send_response(200)
            self.send_header("Content-Length", "999999999999")
            self.end_headers()
        elif path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 65536)
            except OSError:
                pass
        elif path == "/slow":
            self.send_response(200)
            try:
                for _ in range(200):
                    self.wfile.write(b"X-A: b\r\n")
                    self.wfile.flush()
                    time.sleep(0.05)
            except OSError:
                pass
        else:
            self._send(404, b"")

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def loader(**policy: Any) -> MediaLoader:
    return MediaLoader(MediaPolicy(paths=False, **policy))


REMOTE = {"remote": True, "may_connect": only_here, "seconds": 2.0}


# --- data: ---------------------------------------------------------------------------------------


def test_data_urls() -> None:
    data = bytes(range(256))
    text = base64.b64encode(data).decode()
    wrapped = text[:50] + "\n" + text[50:]
    for url in (f"data:image/png;base64,{text}", f"DATA:;base64,{text}", f"data:;base64,{wrapped}"):
        assert loader().load(url) == data
    assert loader().load("data:,a%20b") == b"a b"


@pytest.mark.parametrize(
    "url", ["data:", "data:image/png;base64", "data:;base64,%%%", "data:;base64,abc"]
)
def test_bad_data_urls(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="data: url"):
        loader().load(url)


def test_a_large_data_url_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 1000)
    monkeypatch.setattr(media.base64, "b64decode", None)
    with pytest.raises(InvalidRequestError, match="at most"):
        loader().load("data:;base64," + "A" * 4000)


# --- paths and file: -----------------------------------------------------------------------------


def test_paths_only_where_they_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"here")
    path = str(tmp_path / "a")
    assert MediaLoader().load(path) == b"here"
    for url in (path, f"file://{path}", "ftp://a/b", "gopher://a", "/etc/passwd", ""):
        with pytest.raises(InvalidRequestError) as caught:
            loader().load(url)
        assert "\n" not in str(caught.value)


def test_files_below_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "media", tmp_path / "secret"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a b.png").write_bytes(b"inside")
    outside.write_bytes(b"outside")
    (folder / "link").symlink_to(outside)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    files = loader(folder=folder)
    assert files.load(f"file://{folder}/deep/a%20b.png") == b"inside"
    assert files.load(f"file://localhost{folder}/deep/a b.png") == b"inside"
    for bad in (
        f"file://{outside}",
        f"file://{folder}/../secret",
        f"file://{folder}/%2e%2e/secret",
        f"file://{folder}/deep/../../secret",
        f"file://{folder}/link",
        f"file://{folder}/up/secret",
        f"file://{folder}/pipe",
        f"file://{folder}/deep",
        f"file://{folder}",
        f"file://{folder}/nothing",
        f"file://{folder}x/secret",
        f"file://{folder}/deep/a%20b.png%00.txt",
        f"file://elsewhere{folder}/deep/a%20b.png",
        "file:///etc/passwd",
        "file:deep/a b.png",
    ):
        with pytest.raises(InvalidRequestError) as caught:
            files.load(bad)
        assert "\n" not in str(caught.value)


# --- http ----------------------------------------------------------------------------------------


def test_fetching(origin: str) -> None:
    assert loader(**REMOTE).load(f"{origin}/image") == b"an image"
    assert loader(**REMOTE).load(f"{origin}/redirect?to=/image") == b"an image"


def test_nothing_is_fetched_unless_allowed(origin: str) -> None:
    Handler.seen.clear()
    with pytest.raises(InvalidRequestError, match="send it as a data: url"):
        loader().load(f"{origin}/image")
    # The default of a server that may fetch: public addresses only.
    port = origin.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.1", "2130706433", "0x7f.1"):
        with pytest.raises(InvalidRequestError, match=r"isn't public|can't be fetched"):
            loader(remote=True).load(f"http://{host}:{port}/image")
    assert Handler.seen == []


def test_redirects_are_checked_anew(origin: str) -> None:
    """To an address that isn't allowed, to a file, in a circle."""
    port = origin.rpartition(":")[2]
    for target in (
        f"http://127.0.0.2:{port}/image",
        f"http://[::1]:{port}/image",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "/loop",
    ):
        Handler.seen.clear()
        with pytest.raises(InvalidRequestError, match=r"public|can't be fetched|redirects"):
            loader(**REMOTE).load(f"{origin}/redirect?to={target}")
        assert "/image" not in Handler.seen


def test_the_checked_address_is_the_one_that_is_asked(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves to another address the second time gains nothing."""
    answers = iter(["127.0.0.1", "127.0.0.2"])
    port = int(origin.rpartition(":")[2])
    asked: list[str] = []
    connect = socket.create_connection

    def resolve(host: str, *_: Any, **__: Any) -> Any:
        assert host == "name.test"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    def connected(address: Any, *more: Any, **rest: Any) -> Any:
        asked.append(address[0])
        monkeypatch.undo()
        return connect(address, *more, **rest)

    monkeypatch.setattr(media.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(media.socket, "create_connection", connected)
    assert loader(**REMOTE).load(f"http://name.test:{port}/image") == b"an image"
    assert asked == ["127.0.0.1"]


def test_one_bad_address_of_a_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> Any:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))
            for address in ("8.8.8.8", "10.0.0.1")
        ]

    monkeypatch.setattr(media.socket, "getaddrinfo", resolve)
    with pytest.raises(InvalidRequestError, match="isn't public"):
        loader(remote=True).load("http://name.test/")


@pytest.mark.parametrize("path", ["/large", "/endless"])
def test_size_is_limited(origin: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 1 << 20)
    with pytest.raises(InvalidRequestError, match="at most"):
        loader(**REMOTE).load(origin + path)


def test_time_is_limited(origin: str) -> None:
    """A server that sends a byte now and then."""
    start = time.monotonic()
    with pytest.raises(InvalidRequestError, match="can't be fetched"):
        loader(**{**REMOTE, "seconds": 0.5}).load(f"{origin}/slow")
    assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///image",
        "http://user:pass@127.0.0.1/image",
        "http://127.0.0.1:99999/image",
        "http://127.0.0.1:0/image",
        "http://[::1/image",
        "http://exa mple/",
        "http://127.0.0.1/\r\nHost: x",
        "http://" + "a" * 300 + "/",
        "http://a" + "/b" * 5000,
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        loader(**REMOTE).load(url)
    assert "\n" not in str(caught.value)


def test_a_missing_page(origin: str) -> None:
    with pytest.raises(InvalidRequestError, match="answers 404"):
        loader(**REMOTE).load(f"{origin}/missing")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public
