"""What the routes of one server share."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from draftproof.server.config import ServerConfig
from draftproof.server.errors import ApiError, loading, shutting_down
from draftproof.server.log import Log
from draftproof.server.metrics import Metrics

if TYPE_CHECKING:
    from draftproof.server.served import Served
    from draftproof.server.streams import Reply


class Service:
    """One server's state: the model once it is loaded, the answers under way."""

    def __init__(self, config: ServerConfig, log: Log | None = None) -> None:
        self.config = config
        self.log = log or Log(config.log_json)
        self.metrics = Metrics(config.name)
        self.running: set[Reply] = set()
        self.is_stopping = False
        self.is_hurried = False
        self._served: Served | None = None

    def serve(self, served: Served) -> None:
        """The model is there: from now on requests are answered."""
        self._served = served
        self.metrics.watch(served.llm.metrics)

    @property
    def is_ready(self) -> bool:
        return self._served is not None and not self.is_stopping

    @property
    def served(self) -> Served:
        """The model. Raises ApiError 503 while there is none."""
        if self._served is None:
            raise loading()
        return self._served

    def check_open(self) -> None:
        """Raises ApiError 503 if no new answers are given."""
        if self.is_stopping:
            raise shutting_down()
        self.served  # noqa: B018 (raises while loading)

    async def stop(self, grace: float) -> None:
        """No new answers; those under way have `grace` seconds, then they are cut off."""
        self.is_stopping = True
        deadline = time.monotonic() + grace
        while self.running and time.monotonic() < deadline and not self.is_hurried:
            await asyncio.sleep(0.02)
        error: ApiError = shutting_down()
        for reply in list(self.running):
            reply.cut(error)
