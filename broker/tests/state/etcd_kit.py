"""Helpers of the etcd tests: a proxy that disturbs connections, and waits with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.state.store import StoreUnavailable

T = TypeVar("T")
DEADLINE_S = 60.0
"""Generous timeout, which only a failing test reaches."""


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def persistently(call: Callable[[], Awaitable[T]]) -> T:
    """Retry while the store is unavailable: during an election no member responds."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


class Proxy:
    """A TCP proxy on loopback in front of one address. It can reset connections, refuse them, and drop responses."""

    def __init__(self, port: int) -> None:
        self._target_port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        self.swallowed_bytes = 0
        self.is_swallowing = False
        """Whether requests pass and responses are dropped."""
        self.is_refusing = False
        self.is_silent = False
        """Whether connections are accepted and then ignored."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.is_refusing:
            writer.transport.abort()
            return
        if self.is_silent:
            self._writers.add(writer)
            return
        onward, outward = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, outward}
        pumps = {
            asyncio.ensure_future(self._pump(reader, outward, is_answer=False)),
            asyncio.ensure_future(self._pump(onward, writer, is_answer=True)),
        }
        self._tasks |= pumps
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, outward):
                end.transport.abort()
            self._writers -= {writer, outward}
            self._tasks -= pumps

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if is_answer and self.is_swallowing:
                    self.swallowed_bytes += len(data)
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
