"""Reads the timestamps of batches by offset, for consumer lag in time (metrics, admin clients).

`partition_log` calls it, in any thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.log.search import LogSearch, SearchView, find_offset_position, open_segment, scan_batches
from penstock.log.types import CorruptLog, LogError

NO_RECORDS = -2
"""In place of a time: only control batches follow the offset. Many clients commit the offset after the last record that
they received, so that the marker of a transaction, or records that are scheduled for later, remain behind it."""
MAX_SKIPPED_BATCHES = 1_000
"""Control batches that one lookup passes over."""


def batch_times(search: LogSearch, offsets: Sequence[int]) -> list[int | None]:
    """Return by offset the largest timestamp (ms since 1970) of the first batch with records that ends at or after it.

    NO_RECORDS if there is none, None if it cannot be read.
    """
    times: list[int | None] = []
    for offset in offsets:
        segments = list(search.segments)
        try:
            times.append(batch_time(search.make_view(segments), offset))
        except CorruptLog:
            if segments == search.segments:
                times.append(None)
            else:  # compaction replaced a segment meanwhile
                times.append(batch_time_if_readable(search, offset))
        except LogError:
            times.append(None)
    return times


def batch_time_if_readable(search: LogSearch, offset: int) -> int | None:
    """Return the timestamp for an offset, None if it cannot be read."""
    try:
        return batch_time(search.make_view(list(search.segments)), offset)
    except LogError:
        return None


def batch_time(view: SearchView, offset: int) -> int | None:
    """Return the timestamp for an offset, None past the last batch. Raises CorruptLog, LogError."""
    skipped = 0
    index = bisect_right(view.segments, offset, key=lambda searched: searched.segment.base_offset) - 1
    for searched in view.segments[max(index, 0) :]:
        if searched.end_offset <= offset or not searched.size_bytes:
            continue
        segment = searched.segment
        with open_segment(view, segment) as file:
            if file is None:
                continue
            position = find_offset_position(view, segment, offset)
            for found in scan_batches(file, searched, position):
                header = found.header
                if header.last_offset >= offset:
                    if not header.is_control or skipped == MAX_SKIPPED_BATCHES:
                        return header.max_timestamp_ms
                    skipped += 1
    return NO_RECORDS if skipped else None


def unread_age_ms(time_ms: int | None, now_ms: int, delay_ms: int) -> int | None:
    """Return the age of an unread batch, by the result of `batch_times`; None if unknown.

    Records count from when they became visible, `delay_ms` after their time.
    """
    if time_ms == NO_RECORDS:
        return 0
    return None if time_ms is None or time_ms < 0 else max(now_ms - time_ms - delay_ms, 0)
