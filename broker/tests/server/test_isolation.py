"""Memory limits of a connection, and isolation of its errors from other connections."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

import pytest
from server_kit import Desk, Run, framed, serving

from penstock.server import output

pytestmark = pytest.mark.integration

UNTIL_S = 60.0


def test_without_a_descriptor_to_wait_with_only_the_slow_reader_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server needs one more descriptor to wait for a peer that does not read."""
    monkeypatch.setattr(output, "MAX_BYTES_PER_TURN", 1 << 30)  # so that the output waits for the peer

    async def scenario() -> None:
        desk = Desk()
        async with serving(desk) as service:
            loop = asyncio.get_running_loop()
            client = await service.connect()
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(("127.0.0.1", service.port))
                slow.setblocking(False)
                await loop.sock_sendall(slow, framed(b"much"))
                await desk.received(1)
                client.send(b"little")
                await desk.received(2)
                much, little = desk.open
                soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                lowest_free = os.dup(0)
                os.close(lowest_free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
                try:
                    much.reply([framed(bytes(1 << 18))] * 100)
                    little.reply([framed(b"here")])
                    assert await asyncio.wait_for(client.receive(), UNTIL_S) == b"here"
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    run(scenario())
