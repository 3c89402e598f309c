"""When a group's lag is written again: every status is a write of the API server's store.

State, members, conditions and resets are written at once. Lag, which changes all the time, is written at most every
`EVERY_S` for each object, and for all objects of a cluster together `WRITES_PER_S` times a second: 1,000 groups that
all lag have their turn every 50 s. Jitter keeps objects from being written all at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.runtime.clock import Clock
from penstock_operator.model.common import ObjectKey

EVERY_S = 5.0
WRITES_PER_S = 20.0


class Pacing:
    """`jitter` gives numbers from 0 to 1. Clusters are named by namespace and name."""

    def __init__(self, clock: Clock, jitter: Callable[[], float]) -> None:
        self._clock, self._jitter = clock, jitter
        self._due_ms: dict[ObjectKey, float] = {}
        self._written_ms: dict[ObjectKey, int] = {}
        self._free_ms: dict[tuple[str, str], float] = {}
        """By cluster, when the next write of lag may be."""

    def wait_s(self, key: ObjectKey, cluster: tuple[str, str], *, is_urgent: bool) -> float:
        """How long a change has to wait; 0: not at all."""
        written_ms = self._written_ms.get(key)
        if is_urgent or written_ms is None:
            return 0.0
        now_ms = self._clock.boot_ms()
        due_ms = self._due_ms.get(key)
        if due_ms is None:
            own_ms = written_ms + EVERY_S * (1 + self._jitter() / 4) * 1_000
            due_ms = self._due_ms[key] = max(own_ms, self._free_ms.get(cluster, 0.0))
            self._free_ms[cluster] = max(due_ms, now_ms) + 1_000 / WRITES_PER_S
        # Whole seconds, so that many turns are one batch.
        return math.ceil(max(0.0, due_ms - now_ms) / 1_000)

    def written(self, key: ObjectKey) -> None:
        self._written_ms[key] = self._clock.boot_ms()
        self._due_ms.pop(key, None)

    def forget(self, key: ObjectKey) -> None:
        """The object is gone."""
        self._written_ms.pop(key, None)
        self._due_ms.pop(key, None)
