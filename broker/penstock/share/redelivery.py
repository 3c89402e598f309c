"""Decides how often, in how large batches and after which delay a share-partition delivers a record again.

Used by `partition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import ceil
from typing import NamedTuple, Protocol

from penstock.share.window import InFlightWindow, RecordState, Run

NEVER = float("inf")
MAX_DELAY_MS = 30 * 86_400_000
"""Longest delay between two deliveries of a record."""
GROUP_BACKOFF = -1
"""Delay of a release that names none: the group's back-off."""
DELAY_STEP_MS = 10
"""Delays end at multiples of this, so that records which were released one by one become available together."""


class RedeliveryBackoff(NamedTuple):
    """An exponential back-off, in ms: `first_ms` after the first delivery, at most `max_ms`."""

    first_ms: float = 0.0
    multiplier: float = 1.0
    max_ms: float = 0.0

    def after(self, delivery_count: int) -> float:
        """Return the delay after so many deliveries, 0 without back-off."""
        if not self.first_ms or not delivery_count:
            return 0.0
        try:
            return min(self.first_ms * self.multiplier ** (delivery_count - 1), self.max_ms)
        except OverflowError:
            return self.max_ms


NO_BACKOFF = RedeliveryBackoff()


class RedeliveryPolicy(Protocol):
    """The rules for records that were delivered before."""

    def is_exhausted(self, delivery_count: int) -> bool:
        """Return whether a record that was delivered so often is archived instead of delivered again."""

    def max_records(self, next_delivery_count: int, available: int) -> int:
        """Return how many of `available` adjacent records one acquisition may take, at least 1."""

    def delay_ms(self, delivery_count: int) -> float:
        """Return how long a record that was delivered so often is not delivered again."""


class DeliveryLimit(NamedTuple):
    """Apache Kafka's rules: at most `limit` deliveries (`share.delivery.count.limit`). The back-off is Penstock's.

    Past half of the limit each delivery halves the batch, and the last takes a single record, so that one bad record
    does not use up the deliveries of its neighbours.
    """

    limit: int
    backoff: RedeliveryBackoff = NO_BACKOFF

    def is_exhausted(self, delivery_count: int) -> bool:
        """Return whether the limit is reached."""
        return delivery_count >= self.limit

    def max_records(self, next_delivery_count: int, available: int) -> int:
        """Return `available`, or less near the limit."""
        if next_delivery_count >= self.limit > 1:
            return 1
        excess = next_delivery_count - (self.limit + 1) // 2
        return available if excess <= 0 else max(1, available >> excess)

    def delay_ms(self, delivery_count: int) -> float:
        """Return the back-off."""
        return self.backoff.after(delivery_count)


def end_of_delay(now_ms: float, delay_ms: float) -> float:
    """Return when a delay that starts now ends, at a multiple of `DELAY_STEP_MS`; 0 without a delay."""
    return ceil((now_ms + delay_ms) / DELAY_STEP_MS) * DELAY_STEP_MS if delay_ms > 0 else 0.0


class Delay(NamedTuple):
    """Adjacent offsets that are not delivered before `end_ms`; `last` is inclusive."""

    end_ms: float
    first: int
    last: int


class RedeliveryDelays:
    """The delays of the records in a window, by their ends. Those that begin with a run's release are in the run."""

    def __init__(self, window: InFlightWindow) -> None:
        self._window = window
        self._heap: list[Delay] = []

    def __iter__(self) -> Iterator[Delay]:
        return iter(self._heap)

    @property
    def next_end_ms(self) -> float:
        """The end of the next delay; infinite if there is none."""
        return self._heap[0].end_ms if self._heap else NEVER

    def add(self, run: Run) -> None:
        """Add a run whose delay has begun."""
        heappush(self._heap, Delay(run.delay_ends_ms, run.first, run.last))

    def restore(self, delays: Iterable[Delay]) -> None:
        """Delay the available records at the offsets of `delays`."""
        for delay in delays:
            for run in self._window.between(delay.first, delay.last):
                if run.state is RecordState.AVAILABLE:
                    run.delay_ends_ms = delay.end_ms
            heappush(self._heap, delay)

    def finish(self, now_ms: float) -> int:
        """Finish the delays that are over. Returns the lowest offset of them, or else the window's end."""
        lowest = self._window.end_offset
        while self.next_end_ms <= now_ms:
            _, first, last = heappop(self._heap)
            for run in self._window.between(first, last):
                if run.delay_ends_ms <= now_ms:
                    run.delay_ends_ms = 0.0
            self._window.merge(first, last)
            lowest = min(lowest, first)
        return lowest

    def cut(self, offset: int) -> None:
        """Drop the delays of offsets below `offset`."""
        if self._heap:
            self._heap = [delay for delay in self._heap if delay.last >= offset]
            heapify(self._heap)
