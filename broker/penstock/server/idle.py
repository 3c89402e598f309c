"""Closes connections on which nothing has moved for too long, at no cost for those that are merely quiet."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from penstock.server.stats import CloseReason

SLACK_S = 0.05
EXACTNESS_S = 1.0


class IdleWatched(Protocol):
    """A connection, for the watch."""

    touched: float
    """The loop's time of the last activity."""

    @property
    def waits_for_us(self) -> bool:
        """Whether its silence is our doing."""

    def close(self, reason: CloseReason) -> None: ...


class IdleWatch:
    """The connections in the order of their last activity, and one timer for the first of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle_s: float) -> None:
        self.loop, self.idle_s = loop, idle_s
        self.exactness_s = min(EXACTNESS_S, idle_s / 8)
        """How exactly the time of the last activity is to be known: not every request is worth a note."""
        self.order: OrderedDict[IdleWatched, None] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None

    def add(self, connection: IdleWatched) -> None:
        self.order[connection] = None
        if self.timer is None:
            self.timer = self.loop.call_at(connection.touched + self.idle_s + SLACK_S, self.expire)

    def touch(self, connection: IdleWatched) -> None:
        if connection in self.order:
            self.order.move_to_end(connection)

    def remove(self, connection: IdleWatched) -> None:
        self.order.pop(connection, None)

    def expire(self) -> None:
        """Closes those whose time is up; one that waits for our answer is given as much again."""
        self.timer = None
        now = self.loop.time()
        while self.order:
            first = next(iter(self.order))
            if now - first.touched < self.idle_s:
                break
            if first.waits_for_us:
                first.touched = now
                self.order.move_to_end(first)
                continue
            self.remove(first)
            first.close(CloseReason.IDLE)
        if self.order:
            self.timer = self.loop.call_at(next(iter(self.order)).touched + self.idle_s + SLACK_S, self.expire)

    def cancel(self) -> None:
        """Ends the watch."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
