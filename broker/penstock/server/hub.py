"""The state that all connections of a broker share: handler, limits, buffers, statistics, connection registry."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Protocol

from penstock.api.exchange import FrameHandler, PeerInfo
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report
from penstock.server.buffers import BufferPool
from penstock.server.core import ConnectionCore
from penstock.server.handshakes import HandshakeWatch
from penstock.server.idle import IdleWatch
from penstock.server.limits import ServerLimits
from penstock.server.pressure import MemoryPressure
from penstock.server.stats import CloseReason, ServerStats
from penstock.server.throttled import ThrottledConnections

log = get_logger(__name__)

MAX_WARNINGS_PER_PERIOD = 20
WARNING_PERIOD_S = 10.0
NO_HANDSHAKES: Mapping[str, Callable[[ConnectionCore], None]] = {}


class ConnectionQuotas(Protocol):
    """The quotas on the connections of an address (KIP-612)."""

    limits_connections: bool
    """Whether there are any."""

    def connection_delay_s(self, host: str) -> float:
        """Count a connection from an address, and return how long it must wait, in seconds."""


class Hub:
    """Implements `core.ConnectionHub`; one per broker, on its event loop."""

    def __init__(
        self,
        handler: FrameHandler,
        limits: ServerLimits,
        executor: Executor | None,
        quotas: ConnectionQuotas | None = None,
        accept: Mapping[str, Callable[[ConnectionCore], None]] = NO_HANDSHAKES,
    ) -> None:
        """Create the hub. `accept` begins the handshake of a new connection, by the name of its listener."""
        self.accept = accept
        self.handler, self.limits, self.executor = handler, limits, executor
        self.loop = asyncio.get_running_loop()
        self.stats = ServerStats()
        self.pool = BufferPool(limits.max_request_bytes, limits.max_receive_bytes // 2)
        self.connections: dict[int, ConnectionCore] = {}
        self.idle = IdleWatch(self.loop, limits.idle_s)
        self.handshakes = HandshakeWatch(self.loop, limits.handshake_s)
        self.watch_handshake, self.unwatch_handshake = self.handshakes.add, self.handshakes.remove
        self.pressure = MemoryPressure(self.loop, limits, self.pool, self.connections)
        self.throttled = ThrottledConnections(self.loop)
        self.quotas = quotas
        self.call_soon, self.resume_later = self.loop.call_soon, self.throttled.add
        self.record_activity, self.relieve_memory = self.idle.touch, self.pressure.pause_largest
        self.connections_by_host: Counter[str] = Counter()
        self.ids = itertools.count(1)
        self.pending_flushes: list[ConnectionCore] = []
        self.empty: asyncio.Event | None = None
        self.closing = False
        self.warnings_logged = 0
        self.period_ends_at = 0.0

    async def close(self, grace_s: float) -> None:
        """Stop reading, wait up to `grace_s` seconds for requests in progress, then close all connections."""
        self.closing = True
        self.empty = asyncio.Event()
        for connection in list(self.connections.values()):
            connection.finish()
        await self.wait_empty(grace_s)
        for connection in list(self.connections.values()):
            connection.transport.abort()
        await self.wait_empty(None)
        self.idle.cancel()
        self.throttled.cancel()
        self.handshakes.cancel()

    async def wait_empty(self, timeout_s: float | None) -> None:
        """Wait until all connections are closed, at most `timeout_s` seconds; None waits without a limit."""
        assert self.empty is not None, "the server is closing"
        if self.connections:
            try:
                await asyncio.wait_for(self.empty.wait(), timeout_s)
            except TimeoutError:
                log.info("closing connections with requests in progress", connections=len(self.connections))

    def admit(self, connection: ConnectionCore) -> None:
        """Register a connection; close it if the broker is closing or a limit is exceeded."""
        self.connections[connection.peer.connection_id] = connection
        self.connections_by_host[connection.peer.host] += 1
        self.stats.accepted += 1
        self.stats.connections += 1
        max_connections, max_per_ip = self.limits.max_connections, self.limits.max_connections_per_ip
        if self.closing:
            connection.close(CloseReason.SHUTDOWN)
        elif len(self.connections) > max_connections:
            self.refuse(connection, f"limit is {max_connections}; raise max.connections or the limit of open files")
        elif self.connections_by_host[connection.peer.host] > max_per_ip:
            self.refuse(connection, f"max.connections.per.ip is {max_per_ip}")
        else:
            self.idle.add(connection)
            if self.quotas is not None and self.quotas.limits_connections:
                self.delay_new(connection, self.quotas)
            begin = self.accept.get(connection.peer.listener)
            if begin is not None:
                begin(connection)

    def delay_new(self, connection: ConnectionCore, quotas: ConnectionQuotas) -> None:
        """Do not read a new connection before its address may open one."""
        delay_s = quotas.connection_delay_s(connection.peer.host)
        if delay_s:
            connection.throttle(math.ceil(delay_s * 1000))

    def refuse(self, connection: ConnectionCore, why: str) -> None:
        """Log and close a connection that exceeds a limit."""
        self.log_peer_warning("connection refused", connection.peer, why)
        connection.close(CloseReason.TOO_MANY)

    def remove(self, connection: ConnectionCore) -> None:
        """Remove a lost connection and count the reason."""
        del self.connections[connection.peer.connection_id]
        self.connections_by_host[connection.peer.host] -= 1
        if not self.connections_by_host[connection.peer.host]:
            del self.connections_by_host[connection.peer.host]
        self.stats.connections -= 1
        self.stats.closed[connection.reason or CloseReason.PEER] += 1
        self.idle.remove(connection)
        self.handshakes.remove(connection)
        self.pressure.remove(connection)
        self.throttled.remove(connection)
        if self.empty is not None and not self.connections:
            self.empty.set()

    def flush_soon(self, connection: ConnectionCore) -> None:
        """Flush the connection at the end of this event loop iteration, together with others."""
        if not self.pending_flushes:
            self.loop.call_soon(self.flush_all)
        self.pending_flushes.append(connection)

    def flush_all(self) -> None:
        """Flush the connections that `flush_soon` has queued."""
        connections, self.pending_flushes = self.pending_flushes, []
        for connection in connections:
            try:
                connection.flush()
            except Exception as e:  # the other connections must still be flushed
                report("failed to send responses", e, peer=str(connection.peer))
                connection.transport.abort()

    def log_peer_warning(self, event: str, peer: PeerInfo, why: str) -> None:
        """Log a warning about a peer, rate-limited so that no peer can fill the disk."""
        now = self.loop.time()
        if now >= self.period_ends_at:
            if self.warnings_logged > MAX_WARNINGS_PER_PERIOD:
                log.warning("connection warnings suppressed", number=self.warnings_logged - MAX_WARNINGS_PER_PERIOD)
            self.warnings_logged, self.period_ends_at = 0, now + WARNING_PERIOD_S
        self.warnings_logged += 1
        if self.warnings_logged <= MAX_WARNINGS_PER_PERIOD:
            log.warning(event, listener=peer.listener, peer=peer.address, why=why)
