"""The age of the first record that a group has not read, for admin clients: Penstock's own fields of ListOffsets.

As in the metrics (`http.lag`), it is the age of the batch that holds the record, by its largest timestamp and the
leader's clock; for a topic with delayed delivery, the time since it became visible. Only batch headers are read, in
threads, for many partitions at a time. Used by `log_queries`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.log.batch_times import unread_age_ms
from penstock.log.partition_log import PartitionLog
from penstock.replica.leader import Leader

ALL_READ, UNKNOWN = 0, -1
MAX_OFFSETS = 10_000
"""Offsets per request; further ones get UNKNOWN."""
READ_BATCH_OFFSETS = 256
"""Offsets that one thread looks up before the next one starts."""


@dataclass(slots=True)
class PendingAges:
    """Offsets of one log to look up, and the positions of their ages in the response."""

    log: PartitionLog
    offsets: list[int]
    positions: list[int]
    ages_ms: list[int]
    delay_ms: int
    """Time for which the topic's records wait before they can be read."""


@dataclass(slots=True)
class UnreadAgeQuery:
    """One request's query: call `add` per partition, and `read_pending` in a thread if `is_due` and at the end."""

    now_ms: Callable[[], int]
    requested: int = 0
    pending_ages: list[PendingAges] = field(default_factory=list)
    pending_offsets: int = 0

    def add(self, partition: Leader, offsets: Sequence[int]) -> list[int]:
        """Return the ages for a partition's offsets; `read_pending` fills in those that need a lookup."""
        ages_ms = [UNKNOWN] * len(offsets)
        if not offsets:
            return ages_ms
        log, end, allowed = partition.log, partition.visible_offset, MAX_OFFSETS - self.requested
        self.requested += len(offsets)
        pending = PendingAges(log, [], [], ages_ms, partition.config.delivery_delay_ms)
        for position, offset in enumerate(offsets[: max(allowed, 0)]):
            if offset < 0:
                continue
            if max(offset, log.start_offset) >= end:
                ages_ms[position] = ALL_READ
            else:
                pending.offsets.append(max(offset, log.start_offset))
                pending.positions.append(position)
        if pending.offsets:
            self.pending_ages.append(pending)
            self.pending_offsets += len(pending.offsets)
        return ages_ms

    @property
    def is_due(self) -> bool:
        """Whether enough offsets are pending for a lookup."""
        return self.pending_offsets >= READ_BATCH_OFFSETS

    def read_pending(self) -> None:
        """Fill in the pending ages. Reads from disk: call it in a thread."""
        pending_ages, self.pending_ages, self.pending_offsets = self.pending_ages, [], 0
        for pending in pending_ages:
            now_ms = self.now_ms()
            for position, time_ms in zip(pending.positions, pending.log.batch_times(pending.offsets), strict=True):
                age_ms = unread_age_ms(time_ms, now_ms, pending.delay_ms)
                if age_ms is not None:
                    pending.ages_ms[position] = age_ms
