"""The controller's eye on a broker: a connection that nothing is sent on.

Implements `control.controller.probes.Prober`. Only the kernel's word counts here: a process that has died has its
connections closed, and nobody listens any more.
"""

from __future__ import annotations

import asyncio
import socket

from penstock.state.view import BrokerEndpoint, BrokerView


class ProbeConnection(asyncio.Protocol):
    """A connection whose end is noticed; what comes on it is of no interest."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    async def wait_closed(self) -> None:
        await self.lost.wait()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class TcpProber:
    """`listener` names the brokers' listener that is probed."""

    def __init__(self, listener: str) -> None:
        self.listener = listener

    async def connect(self, broker: BrokerView) -> ProbeConnection:
        """Raises ConnectionRefusedError where each address of the broker refuses, another OSError else."""
        endpoint = endpoint_of(broker, self.listener)
        if endpoint is None:
            raise OSError(f"broker {broker.broker_id} has no listener")
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        errors: list[OSError] = []
        for address in dict.fromkeys(where[4][0] for where in found):
            try:
                return (await loop.create_connection(ProbeConnection, str(address), endpoint.port))[1]
            except OSError as e:
                errors.append(e)
        if errors and all(isinstance(e, ConnectionRefusedError) for e in errors):
            raise errors[0]
        raise next((e for e in errors if not isinstance(e, ConnectionRefusedError)), OSError("no address"))


def endpoint_of(broker: BrokerView, listener: str) -> BrokerEndpoint | None:
    """Where other brokers reach a broker: its listener of that name, else its first."""
    return broker.endpoint(listener) or next(iter(broker.endpoints), None)
