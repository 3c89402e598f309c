"""Rate limit of lag updates in the status, because each one is a write to the API server's store.

State, members, conditions and resets are written immediately. Lag is written at most every `EVERY_S` per object and
`WRITES_PER_S` times per second per cluster: with 1,000 lagging groups, each one is updated every 50 s. Jitter spreads
the writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.runtime.clock import Clock
from penstock_operator.model.common import ObjectKey

EVERY_S = 5.0
WRITES_PER_S = 20.0


class StatusPacing:
    """Schedules status writes. `jitter` returns numbers from 0 to 1; clusters are identified by namespace and name."""

    def __init__(self, clock: Clock, jitter: Callable[[], float]) -> None:
        self._clock, self._jitter = clock, jitter
        self._due_ms: dict[ObjectKey, float] = {}
        self._written_ms: dict[ObjectKey, int] = {}
        self._free_ms: dict[tuple[str, str], float] = {}
        """Time of the next lag write by cluster."""

    def wait_s(self, key: ObjectKey, cluster: tuple[str, str], *, is_urgent: bool) -> float:
        """Return the time in seconds until a status may be written; 0: now."""
        written_ms = self._written_ms.get(key)
        if is_urgent or written_ms is None:
            return 0.0
        now_ms = self._clock.boot_ms()
        due_ms = self._due_ms.get(key)
        if due_ms is None:
            own_ms = written_ms + EVERY_S * (1 + self._jitter() / 4) * 1_000
            due_ms = self._due_ms[key] = max(own_ms, self._free_ms.get(cluster, 0.0))
            self._free_ms[cluster] = max(due_ms, now_ms) + 1_000 / WRITES_PER_S
        # Whole seconds, so that many objects fall into one batch.
        return math.ceil(max(0.0, due_ms - now_ms) / 1_000)

    def written(self, key: ObjectKey) -> None:
        """Record that the status of an object was written now."""
        self._written_ms[key] = self._clock.boot_ms()
        self._due_ms.pop(key, None)

    def forget(self, key: ObjectKey) -> None:
        """Drop the state of a deleted object."""
        self._written_ms.pop(key, None)
        self._due_ms.pop(key, None)
