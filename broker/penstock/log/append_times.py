"""Reads the append times of batches from their headers, for topics with delayed delivery (`delivery.delay.ms`).

`replica.delayed_delivery` calls it in a thread, because an index or an old batch may come from disk.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.search import (
    LogSearch,
    SearchView,
    batches_between,
    find_start_position,
    open_segment,
    scan_batches,
)


class BatchTime(NamedTuple):
    """A batch's largest timestamp, in ms since 1970, and its size."""

    base_offset: int
    time_ms: int
    size_bytes: int


class BatchTimes(NamedTuple):
    """The times of consecutive batches up to `end_offset`."""

    batches: list[BatchTime]
    end_offset: int


def read_times(search: LogSearch, from_offset: int, end_offset: int, max_batches: int) -> BatchTimes:
    """Return the times of up to `max_batches` batches with records in a range. Raises CorruptLog, LogError."""
    return search.run(lambda view: times_between(view, from_offset, end_offset, max_batches))


def find_first_newer(search: LogSearch, time_ms: int, end_offset: int) -> int:
    """Return the start of the first batch that is newer than `time_ms`, else `end_offset`.

    Costs a search in the time index and the headers of a few batches. Raises CorruptLog, LogError.
    """
    return search.run(lambda view: first_newer(view, time_ms, end_offset))


def times_between(view: SearchView, from_offset: int, end_offset: int, max_batches: int) -> BatchTimes:
    """Return the same as `read_times`."""
    batches: list[BatchTime] = []
    for _, _, header, _ in batches_between(view, from_offset, end_offset):
        if len(batches) == max_batches:
            return BatchTimes(batches, header.base_offset)
        start = max(header.base_offset, from_offset)
        batches.append(BatchTime(start, header.max_timestamp_ms, header.size_bytes))
    return BatchTimes(batches, end_offset)


def first_newer(view: SearchView, time_ms: int, end_offset: int) -> int:
    """Return the same as `find_first_newer`."""
    for searched in view.segments:
        segment = searched.segment
        if segment.base_offset >= end_offset:
            break
        if searched.end_offset <= view.start_offset or segment.max_timestamp_ms <= time_ms:
            continue
        with open_segment(view, segment) as file:
            if file is None:
                continue
            position = find_start_position(view, segment, time_ms + 1)
            for _, header, _ in scan_batches(file, searched, position):
                if header.base_offset >= end_offset:
                    return end_offset
                if header.max_timestamp_ms > time_ms and header.last_offset >= view.start_offset:
                    return max(header.base_offset, view.start_offset)
    return end_offset
