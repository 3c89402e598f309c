"""The clocks of a process. `node` creates the real one and passes it to its components.

The event loop provides timers (`call_later`, `loop.time()`); this module is for timestamps and for detecting clock
jumps.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks; a change of their difference means that the wall clock was set."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, UTC; may jump."""

    def boot_ms(self) -> int:
        """Return milliseconds since boot, including suspended time; never goes back."""


class SystemClock:
    """The clocks of the machine."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, UTC; may jump."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Return milliseconds since boot, including suspended time where the system has such a clock."""
        return time.clock_gettime_ns(BOOT_CLOCK) // 1_000_000


BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
