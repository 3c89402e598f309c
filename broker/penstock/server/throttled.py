"""Resumes the connections of throttled clients when their time is over. Used by `hub`."""

from __future__ import annotations

import asyncio
import heapq

from penstock.server.core import PAUSED_FOR_QUOTA, ConnectionCore

TICK_S = 0.01
"""Connections that are due in the same tick are resumed together."""
MAX_RESUMED = 32
"""Connections that are resumed in one iteration of the event loop: each may have a request to dispatch."""


class ThrottledConnections:
    """The paused connections by the tick in which they are due, with one timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[int, dict[ConnectionCore, None]] = {}
        self._tick_of: dict[ConnectionCore, int] = {}
        self._order: list[int] = []
        """A heap of the ticks in `_due`."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        """When the timer is due: uvloop returns a handle without `when` for a time that has passed."""

    def __len__(self) -> int:
        return len(self._tick_of)

    def add(self, connection: ConnectionCore, delay_s: float) -> None:
        """Resume a paused connection after `delay_s` seconds, or when it is due already if that is later."""
        tick = int((self._loop.time() + delay_s) / TICK_S) + 1
        if self._tick_of.get(connection, 0) >= tick:
            return
        self.remove(connection)
        if tick not in self._due:
            self._due[tick] = {}
            heapq.heappush(self._order, tick)
        self._due[tick][connection] = None
        self._tick_of[connection] = tick
        self._schedule()

    def remove(self, connection: ConnectionCore) -> None:
        """Drop a connection that is lost. Its tick stays until it is due."""
        tick = self._tick_of.pop(connection, None)
        if tick is not None:
            del self._due[tick][connection]

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Set the timer for the first tick."""
        due_s = self._order[0] * TICK_S
        if self._timer is None or self._timer_due_s > due_s:
            self.cancel()
            self._timer_due_s = due_s
            self._timer = self._loop.call_at(due_s, self._resume_due)

    def _resume_due(self) -> None:
        """Resume connections that are due; the rest of them in the next iteration of the event loop."""
        self._timer = None
        now_tick = int(self._loop.time() / TICK_S + 1e-6)
        left = MAX_RESUMED
        while left and self._order and self._order[0] <= now_tick:
            due = self._due[self._order[0]]
            while left and due:
                connection = next(iter(due))
                self.remove(connection)
                connection.resume(PAUSED_FOR_QUOTA)
                left -= 1
            if not due:
                del self._due[heapq.heappop(self._order)]
        if self._order and self._timer is None:
            self._schedule()
