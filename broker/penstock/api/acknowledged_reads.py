"""Lets a request for the end of a log wait until records acknowledged before it are visible.

With one in-sync replica, acks=0 and acks=1 are acknowledged when written, and the records become visible after the
flush. `log_queries` and `fetch` use this module so that a client never misses a record that it has an acknowledgement
for.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.replica.leader import Leader

MAX_FLUSH_WAIT_S = 30.0
"""Longest wait for a flush, after which the request fails and the connection stays open."""


class FlushWait:
    """Acknowledged records of several partitions that are not flushed yet. Used on the event loop."""

    __slots__ = ("completed", "offsets")

    def __init__(self) -> None:
        self.offsets: dict[Leader, int] = {}
        """End offsets that are still above the high watermark."""
        self.completed: asyncio.Event | None = None

    def add(self, leader: Leader | None) -> None:
        """Include what `leader` has acknowledged so far, unless it is visible."""
        if leader is not None and leader in leader.unflushed and leader not in self.offsets:
            self.offsets[leader] = leader.acknowledged_offset

    def hides(self, leader: Leader) -> bool:
        """Return whether records acknowledged when `leader` was added are still above its high watermark."""
        return leader in self.offsets

    async def wait(self, timeout_s: float = MAX_FLUSH_WAIT_S) -> None:
        """Return when all partitions are flushed, have failed, or after `timeout_s`; then see `hides`."""
        if not self.offsets:
            return
        self.completed = asyncio.Event()
        for leader, offset in list(self.offsets.items()):
            if leader.high_watermark >= offset:
                self.on_flushed(leader, 0)
            else:
                leader.when_committed(offset, partial(self.on_flushed, leader))
        try:
            async with asyncio.timeout(timeout_s):
                await self.completed.wait()
        except TimeoutError:
            pass  # `hides` reports what is not flushed

    def on_flushed(self, leader: Leader, error: int) -> None:
        """Remove a partition that is flushed, or whose role ended with `error`."""
        self.offsets.pop(leader, None)
        if not self.offsets and self.completed is not None:
            self.completed.set()
