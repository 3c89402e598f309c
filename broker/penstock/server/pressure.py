"""Limits the memory of incomplete requests over all connections by pausing the connection that holds most.

A connection calls it when the limit is exceeded, and a timer while connections are paused. It costs nothing otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.server.buffers import BufferPool
from penstock.server.core import PAUSED_FOR_MEMORY, ConnectionCore
from penstock.server.limits import ServerLimits
from penstock.server.stats import CloseReason

CHECK_INTERVAL_S = 0.05


class MemoryPressure:
    """The connections that are paused for memory, with the time since when."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ServerLimits,
        pool: BufferPool,
        connections: Mapping[int, ConnectionCore],
    ) -> None:
        self.loop, self.limits, self.pool, self.connections = loop, limits, pool, connections
        self.waiting: dict[ConnectionCore, float] = {}
        self.scheduled = False

    def pause_largest(self) -> None:
        """Pause the connection that holds most memory, unless it is the only one that is still read."""
        holders = [c for c in self.connections.values() if c.reader.held_bytes and c not in self.waiting]
        if len(holders) > 1:
            largest = max(holders, key=lambda c: c.reader.held_bytes)
            self.waiting[largest] = self.loop.time()
            largest.pause(PAUSED_FOR_MEMORY)
        if self.waiting:
            self.schedule_check()

    def schedule_check(self) -> None:
        """Schedule the next check unless one is scheduled."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_later(CHECK_INTERVAL_S, self.check)

    def check(self) -> None:
        """Resume the smallest paused connection if there is memory; otherwise close one that waited for too long."""
        self.scheduled = False
        limits, pool = self.limits, self.pool
        if not self.waiting:
            return
        if pool.held_bytes <= limits.max_receive_bytes // 2 or not self.has_readers():
            smallest = min(self.waiting, key=lambda c: c.reader.held_bytes)
            self.remove(smallest)
            smallest.resume(PAUSED_FOR_MEMORY)
        else:
            longest = next(iter(self.waiting))
            if self.loop.time() - self.waiting[longest] >= limits.max_memory_wait_s:
                self.remove(longest)
                longest.close(CloseReason.MEMORY)
        if self.waiting:
            self.schedule_check()

    def has_readers(self) -> bool:
        """Return whether a connection with an incomplete request is being read."""
        return any(c.reader.held_bytes and not c.paused for c in self.connections.values())

    def remove(self, connection: ConnectionCore) -> None:
        """Drop a connection that is resumed or lost."""
        self.waiting.pop(connection, None)
