"""Reads the timestamps of batches by offset, for consumer lag in time (metrics, admin clients).

`partition_log` calls it, in any thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.log.search import LogSearch, SearchView, find_offset_position, open_segment, scan_batches
from penstock.log.types import CorruptLog, LogError


def batch_times(search: LogSearch, offsets: Sequence[int]) -> list[int | None]:
    """Return by offset the largest timestamp (ms since 1970) of the batch that holds it, or of the next batch if
    compaction removed it.

    None if the batch cannot be read.
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
                if found.header.last_offset >= offset:
                    return found.header.max_timestamp_ms
    return None
