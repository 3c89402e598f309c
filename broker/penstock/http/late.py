"""Brings the HTTP side up beside the rest of a broker, early enough to say that it is starting, and ends it last.

Used by `node`. Loading the web library costs more processor time than everything else in a start, and takes the
interpreter from it: a start that is over within `PATIENCE_S` is left alone until clients can connect. One that takes
longer, because logs must be recovered, gets its health pages meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.http.sources import Sources

if TYPE_CHECKING:
    from penstock.http.app import HttpServer

PATIENCE_S = 0.5


class LateHttp:
    """The HTTP server to be. `not_ready` is as in `HttpServer`; made on the event loop."""

    def __init__(self, host: str, port: int, not_ready: Callable[[], str | None]) -> None:
        self.host, self.port, self.not_ready = host, port, not_ready
        self.sources: Sources | None = None
        self.server: HttpServer | None = None
        self.listening = asyncio.Event()
        self.opening = asyncio.create_task(self.open())

    async def open(self) -> int:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.listening.wait(), PATIENCE_S)
        await asyncio.to_thread(importlib.import_module, "penstock.http.app")
        from penstock.http.app import HttpServer

        self.server = HttpServer(self.not_ready)
        self.server.sources = self.sources
        return await self.server.start(self.host, self.port)

    async def opened(self, sources: Sources) -> int:
        """Called when the broker's clients can connect: from now on there are metrics.

        Returns the port that is listened on. Raises `server.listener.ListenError`.
        """
        self.listening.set()
        self.tell(sources)
        return await self.opening

    def tell(self, sources: Sources | None) -> None:
        """What metrics are made from; None when it is not there any more."""
        self.sources = sources
        if self.server is not None:
            self.server.sources = sources

    async def close(self) -> None:
        self.opening.cancel()
        await asyncio.gather(self.opening, return_exceptions=True)
        if self.server is not None:
            await self.server.close()
