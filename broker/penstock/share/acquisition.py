"""The request of a member for records of a share-partition, and what it acquires. Used by `partition`."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

UNLIMITED = 1 << 62


class AcquireMode(IntEnum):
    """How strictly `max_records` holds (KIP-1206): up to the end of its batch, or exactly."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class AcquireRequest(NamedTuple):
    """What a member asks for."""

    member: str
    max_records: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class AcquiredRange(NamedTuple):
    """Adjacent records that a member holds; `last` is inclusive."""

    first: int
    last: int
    delivery_count: int


class Acquisition:
    """One call of `SharePartition.acquire`: its limits and its result so far."""

    __slots__ = ("acquired", "deadline_ms", "ranges", "request")

    def __init__(self, request: AcquireRequest, deadline_ms: float) -> None:
        self.request, self.deadline_ms = request, deadline_ms
        self.ranges: list[AcquiredRange] = []
        self.acquired = 0

    @property
    def is_complete(self) -> bool:
        """Whether no further batch may be acquired from."""
        return self.acquired >= self.request.max_records

    @property
    def room(self) -> int:
        """How many more records the current batch may give."""
        if self.request.mode is AcquireMode.BATCH_OPTIMIZED:
            return UNLIMITED
        return self.request.max_records - self.acquired

    def add(self, first: int, last: int, delivery_count: int) -> None:
        """Record that the offsets are acquired."""
        self.acquired += last - first + 1
        previous = self.ranges[-1] if self.ranges else None
        if previous is not None and previous.last + 1 == first and previous.delivery_count == delivery_count:
            self.ranges[-1] = previous._replace(last=last)
        else:
            self.ranges.append(AcquiredRange(first, last, delivery_count))
