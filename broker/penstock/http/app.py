"""The HTTP server of a broker: probes for Kubernetes and metrics for Prometheus. Started by `node`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from penstock.config.listeners import ListenerAddress
from penstock.http.access import HttpAccess
from penstock.http.heartbeat import Heartbeat
from penstock.http.sources import Sources
from penstock.server.listener import bind_sockets

LIVENESS_TIMEOUT_S = 10.0
"""An event loop without a heartbeat for this long is reported as dead, so that the broker is restarted."""
SHUTDOWN_TIMEOUT_S = 1.0
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """Serves `/health/live`, `/health/ready` and `/metrics`.

    `not_ready` returns the reason why clients must not connect yet, or None. `sources` provides the metrics; it is None
    while the broker starts or stops. `access` protects all pages but those of health.
    """

    def __init__(self, not_ready: Callable[[], str | None], access: HttpAccess | None = None) -> None:
        self.not_ready = not_ready
        self.access = access or HttpAccess()
        self.sources: Sources | None = None
        self.heartbeat = Heartbeat(asyncio.get_running_loop())
        self.rendering: asyncio.Task[bytes] | None = None
        app = web.Application(client_max_size=1 << 16, middlewares=[self.access.middleware()])
        app.add_routes(
            [
                web.get("/health/live", self.live),
                web.get("/health/ready", self.ready),
                web.get("/metrics", self.metrics),
            ]
        )
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)

    async def start(self, host: str, port: int) -> int:
        """Listen on `host` and `port` (0 for any) and return the port. Raises `server.listener.ListenError`."""
        address, sockets = await bind_sockets(asyncio.get_running_loop(), ListenerAddress("HTTP", host, port))
        await self.runner.setup()
        context = self.access.context()
        for sock in sockets:
            await web.SockSite(self.runner, sock, ssl_context=context).start()
        self.heartbeat.start()
        return address.port

    async def close(self) -> None:
        """Stop listening and cancel a running scrape."""
        self.heartbeat.stop()
        await self.runner.cleanup()
        if self.rendering is not None:
            self.rendering.cancel()
            await asyncio.wait([self.rendering])

    async def live(self, request: web.Request) -> web.Response:
        """Return 503 if the event loop is blocked."""
        age_s = self.heartbeat.age_s
        if age_s > LIVENESS_TIMEOUT_S:
            return web.Response(status=503, text=f"the event loop has been blocked for {age_s:.1f} s\n")
        return web.Response(text="live\n")

    async def ready(self, request: web.Request) -> web.Response:
        """Return 503 with the reason while clients must not connect."""
        reason = self.not_ready()
        if reason is not None:
            return web.Response(status=503, text=f"not ready: {reason}\n")
        return web.Response(text="ready\n")

    async def metrics(self, request: web.Request) -> web.Response:
        """Return the metrics. Concurrent scrapes share one rendering."""
        if self.sources is None:
            return web.Response(status=503, text=f"no metrics: {self.not_ready()}\n")
        if self.rendering is None or self.rendering.done():
            self.rendering = asyncio.get_running_loop().create_task(self.render(self.sources), name="metrics")
        body = await asyncio.shield(self.rendering)
        return web.Response(body=body, headers={"Content-Type": TEXT_FORMAT})

    async def render(self, sources: Sources) -> bytes:
        """Take a snapshot and render it in a thread."""
        from penstock.http.metrics import render, take_snapshot  # loads megabytes that only a scraped broker needs

        snapshot = await take_snapshot(sources, self.heartbeat)
        return await asyncio.get_running_loop().run_in_executor(None, render, snapshot)
