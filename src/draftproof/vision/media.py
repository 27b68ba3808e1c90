"""URLs of images -> bytes, with nothing reached that wasn't allowed.

data: always. file: only below one folder, without following links. http(s): only if allowed, only
addresses of the public internet, each redirect checked anew, within limits of size and time.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

from draftproof.errors import InvalidRequestError
from draftproof.vision.images import check_bytes, read_fd, read_path

MAX_REDIRECTS = 3
MAX_URL = 8192  # characters of a URL that isn't data:
_REDIRECTS = (301, 302, 303, 307, 308)

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: Address) -> bool:
    """Whether an address belongs to nobody's own network."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.teredo is not None or (inner is not None and not is_public(inner)):
            return False
    return address.is_global and not address.is_multicast


@dataclass(frozen=True)
class MediaPolicy:
    """What may be reached. paths: whether a text that is no URL is a path of this computer.
    folder: of file: URLs, None = none. remote: whether http(s) is allowed. seconds: for one
    download, redirects included. may_connect: which addresses are allowed."""

    paths: bool = True
    folder: Path | None = None
    remote: bool = False
    seconds: float = 10.0
    may_connect: Callable[[Address], bool] = is_public


class MediaLoader:
    """Loads by `policy`. Without state: safe from any thread."""

    def __init__(self, policy: MediaPolicy | None = None) -> None:
        self._policy = policy or MediaPolicy()

    def load(self, url: str | os.PathLike[str], where: str = "image") -> bytes:
        """The bytes behind a URL or a path. Raises InvalidRequestError: malformed, not allowed, not
        there, too large, too slow."""
        if not isinstance(url, str):
            return self._read_path(url, where)
        scheme = url[:10].partition(":")[0].lower()
        if scheme == "data":
            return _decode(url, where)
        if len(url) > MAX_URL:
            raise InvalidRequestError(f"{where} has a url or path of {len(url)} characters")
        if scheme == "file":
            return self._read_file(url, where)
        if scheme in ("http", "https"):
            if not self._policy.remote:
                raise InvalidRequestError(
                    f"{where} has a {scheme} url, and images aren't fetched from other computers "
                    "here: send it as a data: url"
                )
            return self._fetch(url, where)
        return self._read_path(url, where)

    # --- file: -----------------------------------------------------------------------------------

    def _read_path(self, path: str | os.PathLike[str], where: str) -> bytes:
        if not self._policy.paths:
            raise InvalidRequestError(
                f"{where} has a url that is neither data:, file: nor http(s):"
            )
        return read_path(Path(path).expanduser(), where)

    def _read_file(self, url: str, where: str) -> bytes:
        folder = self._policy.folder
        if folder is None:
            raise InvalidRequestError(
                f"{where} has a file: url, and files of this computer aren't read here: "
                "send it as a data: url"
            )
        split = urlsplit(url)
        path = Path(os.fsdecode(unquote_to_bytes(split.path)))
        refused = InvalidRequestError(f"{where} has a file: url that isn't below the media folder")
        if split.netloc not in ("", "localhost") or "\0" in str(path) or ".." in path.parts:
            raise refused
        try:
            parts = path.relative_to(folder).parts
        except ValueError:
            raise refused from None
        try:
            fd = _open_below(folder, parts)
        except OSError:
            raise InvalidRequestError(f"{where} can't be opened below the media folder") from None
        return read_fd(fd, where)

    # --- http(s): --------------------------------------------------------------------------------

    def _fetch(self, url: str, where: str) -> bytes:
        deadline = time.monotonic() + self._policy.seconds
        for _ in range(MAX_REDIRECTS + 1):
            try:
                status, location, body = self._get(urlsplit(url), where, deadline)
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = "it takes too long" if isinstance(error, TimeoutError) else str(error)
                raise InvalidRequestError(
                    f"{where} can't be fetched: {' '.join(reason.split())[:120]}"
                ) from None
            if status == 200:
                return body
            if status not in _REDIRECTS or not location:
                raise InvalidRequestError(f"{where} can't be fetched: the server answers {status}")
            url = urljoin(url, location)
        raise InvalidRequestError(f"{where} can't be fetched: more than {MAX_REDIRECTS} redirects")

    def _get(self, url: SplitResult, where: str, deadline: float) -> tuple[int, str | None, bytes]:
        """One request: status, Location, body (empty unless the status is 200)."""
        host = url.hostname
        if url.scheme not in ("http", "https") or not host or url.username is not None:
            raise InvalidRequestError(f"{where} has a url that can't be fetched")
        port = url.port or (443 if url.scheme == "https" else 80)
        sock = self._connect(host, port, where, deadline)
        if url.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        connection = _Pinned(host, port)
        connection.sock = sock
        # Each wait has a limit of its own; a server that sends byte by byte meets this one.
        guard = threading.Timer(_left(deadline), _shut, (sock,))
        guard.daemon = True
        guard.start()
        try:
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("GET", target, headers={"Accept": "image/*"})
            response = connection.getresponse()
            body = b""
            if response.status == 200:
                check_bytes(int(response.headers.get("Content-Length") or 0), where)
                chunks: list[bytes] = []
                size = 0
                while chunk := response.read1(1 << 16):
                    size += len(chunk)
                    check_bytes(size, where)
                    chunks.append(chunk)
                    sock.settimeout(_left(deadline))
                body = b"".join(chunks)
            _left(deadline)
            return response.status, response.headers.get("Location"), body
        finally:
            guard.cancel()
            connection.close()

    def _connect(self, host: str, port: int, where: str, deadline: float) -> socket.socket:
        """To the very address that was checked: a name that resolves anew can't slip by."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [info[4] for info in found]
        if not addresses or not all(
            self._policy.may_connect(ipaddress.ip_address(str(address[0]).partition("%")[0]))
            for address in addresses
        ):
            raise InvalidRequestError(
                f"{where} has a url of an address that isn't public: it isn't fetched"
            )
        return socket.create_connection((str(addresses[0][0]), port), timeout=_left(deadline))


class _Pinned(http.client.HTTPConnection):
    """Never connects by itself: its socket is given to it."""

    def connect(self) -> None:
        raise OSError("the connection was closed")


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        sock.shutdown(socket.SHUT_RDWR)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _open_below(folder: Path, parts: tuple[str, ...]) -> int:
    """Opens folder/part/.../part without following a link. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for i, part in enumerate(parts):
            kind = os.O_NONBLOCK if i == len(parts) - 1 else os.O_DIRECTORY
            inner = os.open(part, flags | kind, dir_fd=fd)
            os.close(fd)
            fd = inner
        return fd
    except OSError:
        os.close(fd)
        raise


def _decode(url: str, where: str) -> bytes:
    """data:[type][;base64],data"""
    head, comma, data = url.partition(",")
    if not comma:
        raise InvalidRequestError(f"{where} has a data: url without data")
    if not head.lower().endswith(";base64"):
        check_bytes(len(data) // 3, where)
        return unquote_to_bytes(data)
    check_bytes(len(data) // 4 * 3, where)
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"{where} has a data: url that isn't valid base64") from None
