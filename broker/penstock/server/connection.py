"""A client connection on asyncio: passes the bytes received to `core` and creates the output for its transport."""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.api.exchange import PeerInfo
from penstock.server.core import ConnectionCore
from penstock.server.hub import Hub
from penstock.server.output import HAS_SENDFILE, Output, SocketOutput, TransportOutput


class ServerConnection(ConnectionCore, asyncio.BufferedProtocol):
    """The core as asyncio's protocol: one object, so that no call per request is forwarded."""

    __slots__ = ("listener",)

    hub: Hub
    output: Output

    def __init__(self, hub: Hub, listener: str) -> None:
        super().__init__(hub)
        self.listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; the hub closes it if a limit is exceeded."""
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's transport has another base class
        host, port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self.peer = PeerInfo(next(self.hub.ids), self.listener, str(host), int(port))
        self.output = self.make_output(transport)
        self.last_active = self.hub.loop.time()
        self.hub.admit(self)

    def make_output(self, transport: asyncio.Transport) -> Output:
        """Return the output for the transport."""
        loop, executor = self.hub.loop, self.hub.executor
        sock = transport.get_extra_info("socket")
        if sock is not None and HAS_SENDFILE:
            return SocketOutput(self, loop, executor, sock.fileno(), transport.is_closing)
        return TransportOutput(self, loop, executor, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into."""
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process the requests in the bytes received."""
        self.receive(nbytes, self.hub.loop.time())

    def eof_received(self) -> None:
        """Let the transport close: a client that has stopped sending expects no more responses."""

    def pause_writing(self) -> None:
        """Stop sending: the transport's buffer is full."""
        self.output.pause()

    def resume_writing(self) -> None:
        """Continue sending."""
        self.output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything and leave the hub."""
        self.on_lost()
        self.hub.remove(self)
