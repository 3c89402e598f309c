"""Closes connections that do not authenticate in time; one timer for all of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from penstock.server.core import ConnectionCore
from penstock.server.stats import CloseReason


class HandshakeWatch:
    """The connections with a handshake in progress and the end of its time, in the order of their begin."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self.loop, self.limit_s = loop, limit_s
        self.deadlines: OrderedDict[ConnectionCore, float] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None

    def add(self, connection: ConnectionCore) -> None:
        """Watch a connection; its time starts again if it is watched already."""
        self.deadlines.pop(connection, None)
        self.deadlines[connection] = self.loop.time() + self.limit_s
        self._schedule()

    def remove(self, connection: ConnectionCore) -> None:
        """Stop watching a connection."""
        self.deadlines.pop(connection, None)

    def _schedule(self) -> None:
        if self.timer is None and self.deadlines:
            self.timer = self.loop.call_at(next(iter(self.deadlines.values())), self._close_late)

    def _close_late(self) -> None:
        self.timer = None
        now = self.loop.time()
        while self.deadlines:
            connection, deadline = next(iter(self.deadlines.items()))
            if deadline > now:
                break
            self.remove(connection)
            connection.close(CloseReason.HANDSHAKE)
        self._schedule()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
