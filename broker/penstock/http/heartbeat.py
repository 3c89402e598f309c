"""Watches the event loop from within: a timer that should fire on time, and what it means when it does not."""

from __future__ import annotations

import asyncio

INTERVAL_S = 0.1
STALL_S = 0.05
"""A delay beyond it counts as a stall: nobody was served meanwhile."""


class Heartbeat:
    """Beats while the loop turns. `stalls` and `stalled_s` are totals, `longest_s` the worst one since the start."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float = INTERVAL_S) -> None:
        self.loop, self.interval_s = loop, interval_s
        self.last = loop.time()
        self.stalls = 0
        self.stalled_s = 0.0
        self.longest_s = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def age_s(self) -> float:
        """Time since the last beat."""
        return self.loop.time() - self.last

    def start(self) -> None:
        self.last = self.loop.time()
        self.timer = self.loop.call_at(self.last + self.interval_s, self.beat)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def beat(self) -> None:
        late_s = self.age_s - self.interval_s
        if late_s > STALL_S:
            self.stalls += 1
            self.stalled_s += late_s
            self.longest_s = max(self.longest_s, late_s)
        self.start()
