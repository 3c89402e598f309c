"""When batches were written that somebody has not read yet: by offset, from their headers. Called by `partition_log`,
in any thread, for who tells how far groups are behind (metrics, admin clients).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.log.index_files import load_indexes
from penstock.log.search import LogSearch, SearchView, batches, opened
from penstock.log.types import CorruptLog, LogError


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
