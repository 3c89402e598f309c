"""Keeps what connections hold of incomplete requests within one bound for all, by letting the greediest wait.

Called by a connection when the bound has been passed, and by a timer while somebody waits. Costs
nothing while there is memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from penstock.server.buffers import BufferPool, RequestReader
from penstock.server.limits import ServerLimits
from penstock.server.stats import CloseReason

CHECK_S = 0.05

OWES_MEMORY = 2
"""The reason for which connections are paused here; others are the connection's own affair."""


class Holder(Protocol):
    """A connection, for its share of the memory."""

    reader: RequestReader
    paused: int

    def pause(self, why: int) -> None: ...

    def resume(self, why: int) -> None: ...

    def close(self, reason: CloseReason) -> None: ...


class Holders(Protocol):
    """All connections."""

    def values(self) -> Iterable[Holder]: ...


class Pressure:
    """The connections that must wait for memory, with the time since when."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: ServerLimits, pool: BufferPool, connections: Holders
    ) -> None:
        self.loop, self.limits, self.pool, self.connections = loop, limits, pool, connections
        self.waiting: dict[Holder, float] = {}
        self.scheduled = False

    def relieve(self) -> None:
        """Stops reading the connection that holds most, unless it is the only one that is still being read."""
        holders = [c for c in self.connections.values() if c.reader.held_bytes and c not in self.waiting]
        if len(holders) > 1:
            greediest = max(holders, key=lambda c: c.reader.held_bytes)
            self.waiting[greediest] = self.loop.time()
            greediest.pause(OWES_MEMORY)
        if self.waiting:
            self.watch()

    def watch(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_later(CHECK_S, self.check)

    def check(self) -> None:
        """Lets those go on for whom there is memory again; closes one that has held it for too long."""
        self.scheduled = False
        limits, pool = self.limits, self.pool
        if not self.waiting:
            return
        if pool.held_bytes <= limits.max_receive_bytes // 2 or not self.somebody_reads():
            smallest = min(self.waiting, key=lambda c: c.reader.held_bytes)
            self.forget(smallest)
            smallest.resume(OWES_MEMORY)
        elif self.waiting:
            longest = next(iter(self.waiting))
            if self.loop.time() - self.waiting[longest] >= limits.pressure_s:
                self.forget(longest)
                longest.close(CloseReason.MEMORY)
        if self.waiting:
            self.watch()

    def somebody_reads(self) -> bool:
        """Whether a connection that holds part of a request may receive the rest of it."""
        return any(c.reader.held_bytes and not c.paused for c in self.connections.values())

    def forget(self, connection: Holder) -> None:
        self.waiting.pop(connection, None)
