"""What the connections of a broker share: the handler, the bounds, buffers, counters, and their own register."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from concurrent.futures import Executor
from typing import Protocol

from penstock.api.exchange import FrameHandler, PeerInfo
from penstock.runtime.logging import get_logger
from penstock.server.buffers import BufferPool
from penstock.server.idle import IdleWatch, IdleWatched
from penstock.server.limits import ServerLimits
from penstock.server.pressure import Holder, Pressure
from penstock.server.stats import CloseReason, ServerStats

log = get_logger(__name__)

COMPLAINTS_PER_PERIOD = 20
PERIOD_S = 10.0


class HubConnection(Holder, IdleWatched, Protocol):
    """A connection, for the register."""

    peer: PeerInfo
    transport: asyncio.Transport

    def flush(self) -> None: ...

    def finish(self) -> None: ...


class Hub:
    """One for all connections of a broker; on its event loop."""

    def __init__(self, handler: FrameHandler, limits: ServerLimits, executor: Executor | None) -> None:
        self.handler, self.limits, self.executor = handler, limits, executor
        self.loop = asyncio.get_running_loop()
        self.stats = ServerStats()
        self.pool = BufferPool(limits.max_request_bytes, limits.max_receive_bytes // 2)
        self.connections: dict[int, HubConnection] = {}
        self.idle = IdleWatch(self.loop, limits.idle_s)
        self.pressure = Pressure(self.loop, limits, self.pool, self.connections)
        self.by_host: Counter[str] = Counter()
        self.ids = itertools.count(1)
        self.to_flush: list[HubConnection] = []
        self.empty: asyncio.Event | None = None
        self.closing = False
        self.complaints = 0
        self.period_ends = 0.0

    async def close(self, grace_s: float) -> None:
        """Reads no more; requests in progress get `grace_s` seconds for their answers; then all connections end."""
        self.closing = True
        self.empty = asyncio.Event()
        for connection in list(self.connections.values()):
            connection.finish()
        await self.wait_empty(grace_s)
        for connection in list(self.connections.values()):
            connection.transport.abort()
        await self.wait_empty(None)
        self.idle.cancel()

    async def wait_empty(self, timeout_s: float | None) -> None:
        assert self.empty is not None, "the server is closing"
        if self.connections:
            try:
                await asyncio.wait_for(self.empty.wait(), timeout_s)
            except TimeoutError:
                log.info("connections end before their requests", connections=len(self.connections))

    def next_id(self) -> int:
        return next(self.ids)

    def admit(self, connection: HubConnection) -> CloseReason | None:
        """Takes a connection in; says so where it must not stay."""
        self.connections[connection.peer.connection_id] = connection
        self.by_host[connection.peer.host] += 1
        self.stats.accepted += 1
        self.stats.connections += 1
        if self.closing:
            return CloseReason.SHUTDOWN
        if len(self.connections) > self.limits.max_connections:
            why = f"{self.limits.max_connections} at most: max.connections, or what the limit of open files leaves"
            self.complain("a connection too many", connection.peer, why)
            return CloseReason.TOO_MANY
        if self.by_host[connection.peer.host] > self.limits.max_connections_per_ip:
            most = self.limits.max_connections_per_ip
            self.complain("a connection too many", connection.peer, f"max.connections.per.ip is {most}")
            return CloseReason.TOO_MANY
        self.idle.add(connection)
        return None

    def forget(self, connection: HubConnection, reason: CloseReason) -> None:
        """A connection is lost."""
        del self.connections[connection.peer.connection_id]
        self.by_host[connection.peer.host] -= 1
        if not self.by_host[connection.peer.host]:
            del self.by_host[connection.peer.host]
        self.stats.connections -= 1
        self.stats.closed[reason] += 1
        self.idle.remove(connection)
        self.pressure.forget(connection)
        if self.empty is not None and not self.connections:
            self.empty.set()

    def flush_soon(self, connection: HubConnection) -> None:
        """Sends a connection's answers at the end of this turn of the loop, with those of all others."""
        if not self.to_flush:
            self.loop.call_soon(self.flush_all)
        self.to_flush.append(connection)

    def flush_all(self) -> None:
        connections, self.to_flush = self.to_flush, []
        for connection in connections:
            try:
                connection.flush()
            except Exception as e:  # the answers of the others are not to wait for it
                log.error("answers could not be sent", peer=str(connection.peer), exc_info=e)
                connection.transport.abort()

    def complain(self, event: str, peer: PeerInfo, why: str) -> None:
        """Logs what a peer did, at most so many times in a while: no peer may fill the disk with it."""
        now = self.loop.time()
        if now >= self.period_ends:
            if self.complaints > COMPLAINTS_PER_PERIOD:
                log.warning("more complaints were left out", number=self.complaints - COMPLAINTS_PER_PERIOD)
            self.complaints, self.period_ends = 0, now + PERIOD_S
        self.complaints += 1
        if self.complaints <= COMPLAINTS_PER_PERIOD:
            log.warning(event, listener=peer.listener, peer=peer.address, why=why)
