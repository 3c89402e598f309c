"""Lets a request that asks for a log's end wait until records acknowledged before it are visible.

With one replica in sync, acks=0 and acks=1 are answered when a batch is written, and consumers see it after the flush.
`log_queries` and `fetch` use this module so that a client which has its acknowledgement never misses its own record.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.replica.leader import Leader

MAX_FLUSH_WAIT_S = 30.0
"""A disk that has not flushed for so long fails the request, not its connection."""


class FlushWait:
    """Acknowledged records of several partitions that are not flushed yet. Used on the event loop."""

    __slots__ = ("done", "offsets")

    def __init__(self) -> None:
        self.offsets: dict[Leader, int] = {}
        """What is still above the high watermark, by partition, as an end offset."""
        self.done: asyncio.Event | None = None

    def add(self, leader: Leader | None) -> None:
        """Include what `leader` has acknowledged by now, unless it is visible."""
        if leader is not None and leader in leader.unflushed and leader not in self.offsets:
            self.offsets[leader] = leader.acknowledged_offset

    def hides(self, leader: Leader) -> bool:
        """Whether records that were acknowledged when `leader` was added are still above its high watermark."""
        return leader in self.offsets

    async def finished(self, timeout_s: float = MAX_FLUSH_WAIT_S) -> None:
        """Return when all is flushed, when it never will be, or after `timeout_s` (`hides` then tells what is not)."""
        if not self.offsets:
            return
        self.done = asyncio.Event()
        for leader, offset in list(self.offsets.items()):
            if leader.high_watermark >= offset:
                self.settle(leader, 0)
            else:
                leader.when_committed(offset, partial(self.settle, leader))
        try:
            async with asyncio.timeout(timeout_s):
                await self.done.wait()
        except TimeoutError:
            pass  # `hides` tells

    def settle(self, leader: Leader, error: int) -> None:
        """A partition is flushed, or its role has ended with `error`: what it says from then on is right."""
        self.offsets.pop(leader, None)
        if not self.offsets and self.done is not None:
            self.done.set()
