"""The clocks of a process. Everybody who needs the time is given a `Clock`; only `node` makes the real one.

Timers are the event loop's (`call_later`, `loop.time()`); this is for timestamps and for noticing leaps.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks whose difference tells when the wall clock was set."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC; may leap."""

    def boot_ms(self) -> int:
        """Milliseconds since boot, suspended time counted; never goes back."""


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(BOOT_CLOCK) // 1_000_000


BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
