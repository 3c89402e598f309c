"""Probes brokers for the controller by a TCP or TLS connection without data.

Implements `control.controller.probes.Prober`.

The kernel closes the connections of a process that has died, and refuses new ones.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from penstock.state.view import BrokerEndpoint, BrokerView


class ProbeConnection(asyncio.Protocol):
    """A connection whose end is observed; received data is ignored."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end."""
        self.lost.set()

    async def wait_closed(self) -> None:
        """Return when the connection is closed."""
        await self.lost.wait()

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()


class TcpProber:
    """Connects to the brokers' listener of that name, with what `tls` returns: such a listener ends connections without
    a handshake."""

    def __init__(self, listener: str, tls: Callable[[], ssl.SSLContext | None] = lambda: None) -> None:
        self.listener, self.tls = listener, tls

    async def connect(self, broker: BrokerView) -> ProbeConnection:
        """Connect to a broker. Raises ConnectionRefusedError if all its addresses refuse, else another OSError."""
        endpoint = endpoint_of(broker, self.listener)
        if endpoint is None:
            raise OSError(f"broker {broker.broker_id} has no listener")
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        errors: list[OSError] = []
        tls = self.tls()
        name = None if tls is None else endpoint.host
        for address in dict.fromkeys(where[4][0] for where in found):
            try:
                opening = loop.create_connection(
                    ProbeConnection, str(address), endpoint.port, ssl=tls, server_hostname=name
                )
                return (await opening)[1]
            except OSError as e:
                errors.append(e)
        if errors and all(isinstance(e, ConnectionRefusedError) for e in errors):
            raise errors[0]
        raise next((e for e in errors if not isinstance(e, ConnectionRefusedError)), OSError("no address"))


def endpoint_of(broker: BrokerView, listener: str) -> BrokerEndpoint | None:
    """Return the address at which other brokers reach a broker: its listener of that name, else its first."""
    return broker.endpoint(listener) or next(iter(broker.endpoints), None)
