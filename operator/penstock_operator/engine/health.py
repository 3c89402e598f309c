"""HTTP server for Prometheus and the kubelet: /metrics, /health/live, /health/ready.

Live: the event loop responds, no batch is stuck, and the watches are fresh. Ready: the first lists are complete, so the
process can become leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

Check = Callable[[], str | None]
"""Returns None if healthy, otherwise the reason."""


class OperatorHealth:
    """The HTTP server. `text` returns the metrics in Prometheus format."""

    def __init__(self, text: Callable[[], bytes], live: Mapping[str, Check], ready: Mapping[str, Check]) -> None:
        self._text, self._live, self._ready = text, live, ready
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def serve(self, host: str, port: int) -> None:
        """Start the server. `port` 0: any free port. Raises OSError if the port is in use."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health/live", _check_handler(self._live))
        app.router.add_get("/health/ready", _check_handler(self._ready))
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop the server. Idempotent."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(body=self._text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _check_handler(checks: Mapping[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(request: web.Request) -> web.Response:
        del request
        wrong = {name: why for name, check in checks.items() if (why := check()) is not None}
        return web.json_response({"ok": not wrong, "wrong": wrong}, status=503 if wrong else 200)

    return respond
