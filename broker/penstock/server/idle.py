"""Closes idle connections (`connections.max.idle.ms`); the cost does not depend on how many connections are quiet."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from penstock.server.core import ConnectionCore
from penstock.server.stats import CloseReason

TIMER_SLACK_S = 0.05
MAX_ACTIVITY_RESOLUTION_S = 1.0


class IdleWatch:
    """The connections in the order of their last activity, with one timer for the first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle_s: float) -> None:
        self.loop, self.idle_s = loop, idle_s
        self.activity_resolution_s = min(MAX_ACTIVITY_RESOLUTION_S, idle_s / 8)
        """Precision of `last_active`, in seconds: a connection need not record every request."""
        self.order: OrderedDict[ConnectionCore, None] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None

    def add(self, connection: ConnectionCore) -> None:
        """Watch a new connection."""
        self.order[connection] = None
        if self.timer is None:
            self.timer = self.loop.call_at(connection.last_active + self.idle_s + TIMER_SLACK_S, self.close_idle)

    def touch(self, connection: ConnectionCore, now: float) -> None:
        """Record activity and move the connection to the end of the order."""
        connection.last_active = now
        connection.activity_stale_at = now + self.activity_resolution_s
        if connection in self.order:
            self.order.move_to_end(connection)

    def remove(self, connection: ConnectionCore) -> None:
        """Stop watching a connection."""
        self.order.pop(connection, None)

    def close_idle(self) -> None:
        """Close connections that exceeded `idle_s`; a connection that waits for the broker gets another `idle_s`."""
        self.timer = None
        now = self.loop.time()
        while self.order:
            first = next(iter(self.order))
            if now - first.last_active < self.idle_s:
                break
            if first.is_waiting_for_broker:
                first.last_active = now
                self.order.move_to_end(first)
                continue
            self.remove(first)
            first.close(CloseReason.IDLE)
        if self.order:
            self.timer = self.loop.call_at(
                next(iter(self.order)).last_active + self.idle_s + TIMER_SLACK_S, self.close_idle
            )

    def cancel(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
