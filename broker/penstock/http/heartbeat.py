"""Measures the delays of the event loop with a periodic timer."""

from __future__ import annotations

import asyncio

INTERVAL_S = 0.1
STALL_THRESHOLD_S = 0.05
"""A timer that is later than this counts as a stall."""


class Heartbeat:
    """A periodic timer on the event loop. `stalls` and `stalled_s` are totals, `longest_s` is the longest stall."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float = INTERVAL_S) -> None:
        self.loop, self.interval_s = loop, interval_s
        self.last = loop.time()
        self.stalls = 0
        self.stalled_s = 0.0
        self.longest_s = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the last beat."""
        return self.loop.time() - self.last

    def start(self) -> None:
        """Start the timer."""
        self.last = self.loop.time()
        self.timer = self.loop.call_at(self.last + self.interval_s, self.beat)

    def stop(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def beat(self) -> None:
        """Record the delay and schedule the next beat."""
        late_s = self.age_s - self.interval_s
        if late_s > STALL_THRESHOLD_S:
            self.stalls += 1
            self.stalled_s += late_s
            self.longest_s = max(self.longest_s, late_s)
        self.start()
