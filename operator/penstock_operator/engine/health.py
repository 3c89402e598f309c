"""Metrics and health over HTTP, for Prometheus and the kubelet: /metrics, /health/live, /health/ready.

Alive means that starting again would not help: the loop ticks (it answers), no batch is stuck, and the watches bring
what this process itself wrote. Ready means that the first lists have come, so that it could act.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

Check = Callable[[], str | None]
"""None where all is well, otherwise what is not."""


class OperatorHealth:
    """Serves until `close`. `text` gives the metrics."""

    def __init__(self, text: Callable[[], bytes], live: Mapping[str, Check], ready: Mapping[str, Check]) -> None:
        self._text, self._live, self._ready = text, live, ready
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def serve(self, host: str, port: int) -> None:
        """Raises OSError where the port is taken. `port` 0: any."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health/live", _telling(self._live))
        app.router.add_get("/health/ready", _telling(self._ready))
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(body=self._text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _telling(checks: Mapping[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def tell(request: web.Request) -> web.Response:
        del request
        wrong = {name: why for name, check in checks.items() if (why := check()) is not None}
        return web.json_response({"ok": not wrong, "wrong": wrong}, status=503 if wrong else 200)

    return tell
