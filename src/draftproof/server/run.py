"""From a configuration to a process that serves: the socket, the model beside it, and the end.

The port is open before the model is loaded: until then /health and everything else say 503.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from draftproof.errors import InvalidRequestError
from draftproof.server.app import App
from draftproof.server.config import ServerConfig
from draftproof.server.served import Served
from draftproof.server.service import Service

if TYPE_CHECKING:
    from draftproof.llm import LLM


def open_socket(config: ServerConfig) -> socket.socket:
    """A bound socket. Raises InvalidRequestError that says what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidRequestError(f"--host {config.host}: {error.strerror or error}") from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(2048)  # from now on nobody is refused; they wait until we are ready
    except OSError as error:
        opened.close()
        raise InvalidRequestError(
            f"port {config.port} of {config.host} can't be opened ({error.strerror}): "
            "give another one with --port"
        ) from None
    return opened


class Server(uvicorn.Server):
    """uvicorn with an end that open streams take part in: they have a grace period, and then they
    end with an error that their clients can see."""

    def __init__(self, service: Service, load: Callable[[], LLM]) -> None:
        config = service.config
        super().__init__(
            uvicorn.Config(
                App(service),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(config.shutdown_grace) + 5,
                ws="none",
                lifespan="off",
            )
        )
        self._service = service
        self._load = load
        self._llm: LLM | None = None
        self.error: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._load_beside, args=[loop], daemon=True).start()

    def _load_beside(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            llm = self._load()
            llm.verify_cost  # noqa: B018 (measured now, not during the first request)
            served = Served(llm, self._service.config)
        except BaseException as error:
            self.error = error
            self.should_exit = True
            return
        self._llm = llm
        loop.call_soon_threadsafe(self._ready, served)

    def _ready(self, served: Served) -> None:
        self._service.serve(served)
        info = served.info
        self._service.log.event(
            "ready",
            model=served.config.name,
            context=info.context,
            fingerprint=info.fingerprint,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends us gently, the next one at once; either way with exit code 0."""
        if self.should_exit:
            self._service.is_hurried = True
        else:
            self._service.is_stopping = True
            self._service.log.event("stopping", running=len(self._service.running))
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()  # no new connections
        for opened in sockets or ():
            opened.close()
        await self._service.stop(self._service.config.shutdown_grace)
        await super().shutdown(sockets)
        if self._llm is not None:
            await asyncio.to_thread(self._llm.close)


def serve(
    config: ServerConfig, load: Callable[[], LLM], on_listening: Callable[[str], None]
) -> None:
    """Serves until a signal ends it. load: gives the model. Raises what `load` raises."""
    opened = open_socket(config)
    host, port = opened.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    on_listening(f"http://{shown}:{port}")
    server = Server(Service(config), load)
    try:
        server.run(sockets=[opened])
    finally:
        opened.close()
    if server.error is not None:
        raise server.error
