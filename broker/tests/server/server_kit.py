"""A server on real sockets with the test's handler, on both event loops."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.api.exchange import PeerConnection, RequestExchange
from penstock.config.listeners import ListenerAddress
from penstock.log.types import LogSlice
from penstock.server import connection as connection_module
from penstock.server.limits import ServerLimits
from penstock.server.listener import Server

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["uvloop", "asyncio", "transport"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a scenario on uvloop, on asyncio's loop, and with output through the transport."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    if request.param == "transport":
        monkeypatch.setattr(connection_module, "HAS_SENDFILE", False)
    with asyncio.Runner(loop_factory=factory) as runner:
        yield lambda scenario: runner.run(asyncio.wait_for(scenario, 60))


@dataclass
class Desk:
    """A handler that records requests and calls `answer` for each, or leaves them pending if `answer` is None."""

    answer: Callable[[RequestExchange, bytes], None] | None = None
    requests: list[bytes] = field(default_factory=list)
    open: list[RequestExchange] = field(default_factory=list)
    most_open: int = 0

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        content = bytes(frame)
        self.requests.append(content)
        exchange = connection.open_exchange()
        if self.answer is not None:
            self.answer(exchange, content)
        else:
            self.open.append(exchange)
            self.most_open = max(self.most_open, len(self.open))

    async def received(self, number: int) -> None:
        while len(self.requests) < number:
            await asyncio.sleep(0.001)


def echo(exchange: RequestExchange, content: bytes) -> None:
    exchange.reply([framed(content)])


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@dataclass
class Client:
    """The client end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *contents: bytes) -> None:
        self.writer.write(b"".join(map(framed, contents)))

    async def receive(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ask(self, content: bytes) -> bytes:
        self.send(content)
        return await self.receive()

    async def closed(self) -> bytes:
        """Wait until the server has closed the connection; return what it sent before."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    def hang_up(self) -> None:
        self.writer.transport.abort()


class Service:
    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(handler: Desk, limits: ServerLimits | None = None, grace_s: float = 0.0) -> AsyncIterator[Service]:
    server = Server(handler, limits or ServerLimits())
    (address,) = await server.listen([ListenerAddress("PLAINTEXT", "127.0.0.1", 0)])
    service = Service(server, address.port)
    try:
        yield service
        probe = await service.connect()  # checks that the server still serves other clients
        handler.answer = echo
        assert await probe.ask(b"still there?") == b"still there?"
    finally:
        await server.close(grace_s)
        for client in service.clients:
            client.hang_up()
        assert server.hub.pool.held_bytes == 0, "memory of connections that are gone"
        assert server.stats.connections == server.stats.paused == 0, "connections that are gone"


class SegmentFile:
    """A segment file whose cache state and read errors the test controls."""

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self.path = str(path)
        self.content = content
        self.fd = os.open(path, os.O_RDONLY)
        self.cached = True
        self.reads = self.probes = 0
        self.loads: list[tuple[int, int]] = []
        self.streamed: list[tuple[int, int]] = []
        self.kept_from = len(content)
        self.error: OSError | None = None
        self.lent = 0

    def fileno(self) -> int:
        return self.fd

    def is_cached(self, offset: int, size: int) -> bool:
        self.probes += 1
        return self.cached

    def read_cached(self, offset: int, size: int) -> bytes | None:
        if not self.cached or self.error is not None:
            return None
        data = self.read_at(offset, size)
        return data if len(data) == size else None

    def load(self, offset: int, size: int) -> None:
        self.loads.append((offset, size))
        if self.error is not None:
            raise self.error

    def stream(self, offset: int, size: int) -> bool:
        self.streamed.append((offset, size))
        return offset < self.kept_from

    def read_at(self, offset: int, size: int) -> bytes:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return os.pread(self.fd, size, offset)

    def slice(self, position: int, size: int) -> LogSlice:
        self.lent += 1
        released = False

        def release() -> None:
            nonlocal released
            assert not released, "a slice is released once"
            released = True
            self.lent -= 1

        return LogSlice(self, position, size, release)  # type: ignore[arg-type]


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[SegmentFile]:
    file = SegmentFile(tmp_path / "segment.log", os.urandom(1 << 20) * 12)
    yield file
    os.close(file.fd)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)
