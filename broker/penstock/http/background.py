"""Starts the HTTP server in the background while the broker starts, and closes it last. Used by `node`.

Importing the web library takes more CPU than the rest of a start, and holds the GIL. A start that takes less than
`START_DELAY_S` therefore imports it only when clients can connect; a longer one, which has logs to recover, serves its
health pages meanwhile.
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
    from penstock.server.tls.listener_tls import ListenerTls

START_DELAY_S = 0.5
"""How long the import of the web library waits for the broker."""


class BackgroundHttpServer:
    """Creates an `HttpServer` in a task. `not_ready`, `tls` and `token_file` are passed on to it. Created on the event
    loop."""

    def __init__(
        self,
        host: str,
        port: int,
        not_ready: Callable[[], str | None],
        tls: ListenerTls | None = None,
        token_file: str | None = None,
    ) -> None:
        self.host, self.port, self.not_ready = host, port, not_ready
        self.tls, self.token_file = tls, token_file
        self.sources: Sources | None = None
        self.server: HttpServer | None = None
        self.listening = asyncio.Event()
        self.starting = asyncio.create_task(self.open())

    async def open(self) -> int:
        """Import the web library, start the server and return its port."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.listening.wait(), START_DELAY_S)
        await asyncio.to_thread(importlib.import_module, "penstock.http.app")
        from penstock.http.access import HttpAccess
        from penstock.http.app import HttpServer

        self.server = HttpServer(self.not_ready, HttpAccess(self.tls, self.token_file))
        self.server.sources = self.sources
        return await self.server.start(self.host, self.port)

    async def wait_started(self, sources: Sources) -> int:
        """Serve metrics from now on, because clients can connect, and wait until the server listens.

        Return its port. Raises `server.listener.ListenError`.
        """
        self.listening.set()
        self.set_sources(sources)
        return await self.starting

    def set_sources(self, sources: Sources | None) -> None:
        """Set the sources of metrics; None while the broker stops."""
        self.sources = sources
        if self.server is not None:
            self.server.sources = sources

    async def close(self) -> None:
        """Close the server, or cancel its start."""
        self.starting.cancel()
        await asyncio.gather(self.starting, return_exceptions=True)
        if self.server is not None:
            await self.server.close()
