"""A gateway that passes TLS through, as TLSRoutes ask for. The argument has HOST:PORT of Services by host, as JSON.

A connection is forwarded to the Service of the host in its TLS handshake (SNI), and closed if there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys

MAX_HELLO = 16 << 10
CHUNK = 64 << 10


def server_name(hello: bytes) -> str:
    """Return the host of a ClientHello, or "" if there is none or the bytes end before it."""
    found: list[str] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: found.append(name or "")
    received = ssl.MemoryBIO()
    received.write(hello)
    with contextlib.suppress(ssl.SSLError):  # there is no certificate, and the name comes before
        context.wrap_bio(received, ssl.MemoryBIO(), server_side=True).do_handshake()
    return found[0] if found else ""


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until the end of the source."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    target.close()


async def main(backends: dict[str, str]) -> None:
    """Forward connections on port 8443 until the process ends."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = b""
        while not (name := server_name(hello)) and len(hello) < MAX_HELLO and (data := await reader.read(MAX_HELLO)):
            hello += data
        if name not in backends:
            print(f"no route for {name!r}", flush=True)
            writer.close()
            return
        host, _, port = backends[name].rpartition(":")
        to_reader, to_writer = await asyncio.open_connection(host, int(port))
        to_writer.write(hello)
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

    server = await asyncio.start_server(forward, "0.0.0.0", 8443)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
