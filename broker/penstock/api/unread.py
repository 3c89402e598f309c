"""How long the first record has waited that a group has not read, for admin clients: our own fields of ListOffsets.

As the metrics tell it (`http.lag`), it is the age of the batch which holds that record, by its largest timestamp and
the leader's clock. Only headers are read, in threads, for many partitions at a time. Used by `log_queries`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.log.index_files import load_indexes
from penstock.log.search import LogSearch, SearchView, batches, opened
from penstock.log.types import CorruptLog, LogError
from penstock.replica.leader import Leader

ALL_READ, UNKNOWN = 0, -1
MAX_OFFSETS = 10_000
"""Offsets of one request; what is asked beyond is answered as unknown."""
READ_TOGETHER = 256
"""Offsets that one thread looks up before others get it."""


@dataclass(slots=True)
class Wanted:
    """Offsets of one log whose batches are to be looked at, and where in the answer their ages stand."""

    search: LogSearch
    offsets: list[int]
    places: list[int]
    ages_ms: list[int]


@dataclass(slots=True)
class Unread:
    """What one request asks: `take` for each partition, `read_waiting` in a thread where it `is_due` and at the end."""

    now_ms: Callable[[], int]
    taken: int = 0
    waiting: list[Wanted] = field(default_factory=list)
    waiting_offsets: int = 0

    def take(self, partition: Leader, offsets: Sequence[int]) -> list[int]:
        """The ages of a partition's offsets; those that must be looked up are filled in by `read_waiting`."""
        ages_ms = [UNKNOWN] * len(offsets)
        if not offsets:
            return ages_ms
        log, end, allowed = partition.log, partition.high_watermark, MAX_OFFSETS - self.taken
        self.taken += len(offsets)
        wanted = Wanted(LogSearch(log.host.files, log.segments, log.start_offset), [], [], ages_ms)
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
            for place, time_ms in zip(wanted.places, batch_times(wanted.search, wanted.offsets), strict=True):
                if time_ms is not None and time_ms >= 0:
                    wanted.ages_ms[place] = max(now_ms - time_ms, 0)


def batch_times(search: LogSearch, offsets: Sequence[int]) -> list[int | None]:
    """The largest timestamp, in ms since 1970, of the batch that holds each offset, or of the next where compaction
    took it; None where that cannot be read."""
    times: list[int | None] = []
    for offset in offsets:
        segments = list(search.segments)
        try:
            times.append(batch_time(search.view_of(segments), offset))
        except CorruptLog:
            if segments == search.segments:
                times.append(None)
            else:  # compaction has replaced one meanwhile
                times.append(batch_time_if_readable(search, offset))
        except LogError:
            times.append(None)
    return times


def batch_time_if_readable(search: LogSearch, offset: int) -> int | None:
    try:
        return batch_time(search.view_of(list(search.segments)), offset)
    except LogError:
        return None


def batch_time(view: SearchView, offset: int) -> int | None:
    """Raises CorruptLog, LogError."""
    index = bisect_right(view.segments, offset, key=lambda searched: searched.segment.base_offset) - 1
    for searched in view.segments[max(index, 0) :]:
        if searched.end_offset <= offset or not searched.size_bytes:
            continue
        segment = searched.segment
        with opened(view, segment) as file:
            if file is None:
                continue
            indexes = segment.indexes or load_indexes(view.files, segment)
            position = indexes.offsets.floor(max(offset - segment.base_offset, 0))
            for found in batches(file, searched, position):
                if found.header.last_offset >= offset:
                    return found.header.max_timestamp_ms
    return None
