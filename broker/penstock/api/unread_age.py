"""How long the first record has waited that a group has not read, for admin clients: our own fields of ListOffsets.

As the metrics tell it (`http.lag`), it is the age of the batch which holds that record, by its largest timestamp and
the leader's clock. Only headers are read, in threads, for many partitions at a time. Used by `log_queries`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.log.partition_log import PartitionLog
from penstock.replica.leader import Leader

ALL_READ, UNKNOWN = 0, -1
MAX_OFFSETS = 10_000
"""Offsets of one request; what is asked beyond is answered as unknown."""
READ_TOGETHER = 256
"""Offsets that one thread looks up before others get it."""


@dataclass(slots=True)
class WantedAge:
    """Offsets of one log whose batches are to be looked at, and where in the answer their ages stand."""

    log: PartitionLog
    offsets: list[int]
    places: list[int]
    ages_ms: list[int]


@dataclass(slots=True)
class UnreadAgeQuery:
    """What one request asks: `take` for each partition, `read_waiting` in a thread where it `is_due` and at the end."""

    now_ms: Callable[[], int]
    taken: int = 0
    waiting: list[WantedAge] = field(default_factory=list)
    waiting_offsets: int = 0

    def take(self, partition: Leader, offsets: Sequence[int]) -> list[int]:
        """The ages of a partition's offsets; those that must be looked up are filled in by `read_waiting`."""
        ages_ms = [UNKNOWN] * len(offsets)
        if not offsets:
            return ages_ms
        log, end, allowed = partition.log, partition.high_watermark, MAX_OFFSETS - self.taken
        self.taken += len(offsets)
        wanted = WantedAge(log, [], [], ages_ms)
        for place, offset in enumerate(offsets[: max(allowed, 0)]):
            if offset < 0:
                continue
            if max(offset, log.start_offset) >= end:
                ages_ms[place] = ALL_READ
            else:
                wanted.offsets.append(max(offset, log.start_offset))
                wanted.places.append(place)
        if wanted.offsets:
            self.waiting.append(wanted)
            self.waiting_offsets += len(wanted.offsets)
        return ages_ms

    @property
    def is_due(self) -> bool:
        return self.waiting_offsets >= READ_TOGETHER

    def read_waiting(self) -> None:
        """Fills in what waits. May wait for the disk: in a thread."""
        waiting, self.waiting, self.waiting_offsets = self.waiting, [], 0
        for wanted in waiting:
            now_ms = self.now_ms()
            for place, time_ms in zip(wanted.places, wanted.log.batch_times(wanted.offsets), strict=True):
                if time_ms is not None and time_ms >= 0:
                    wanted.ages_ms[place] = max(now_ms - time_ms, 0)
