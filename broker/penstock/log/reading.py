"""Finds segment and position for an offset, and returns runs of whole batches. Runs once per partition of each Fetch.

Consumers mostly continue where they stopped, so the locations where reads ended are cached; other reads cost a
bisection and one small read.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from penstock.log.file_pool import FilePool
from penstock.log.index_files import IndexCache
from penstock.log.scan import BadBatch, scan_headers
from penstock.log.segment import Segment
from penstock.log.types import CorruptLog, LogSlice

MAX_CACHED_LOCATIONS = 32
"""Enough for the replicas and some consumer groups; each costs about 180 bytes per partition that is read."""
BASE_OFFSET = attrgetter("base_offset")

BatchLocation = tuple[Segment, int]


class LogReader:
    """The segments of a log in order, with cached batch locations."""

    __slots__ = ("indexes", "locations", "pool", "segments")

    def __init__(self, pool: FilePool, indexes: IndexCache, segments: list[Segment]) -> None:
        self.pool, self.indexes, self.segments = pool, indexes, segments
        self.locations: dict[int, BatchLocation] = {}
        """By offset, the location of the first batch at or after it."""

    def cache_location(self, offset: int, segment: Segment, position: int) -> None:
        """Cache the location of `offset`, evicting the oldest entry."""
        locations = self.locations
        if offset not in locations and len(locations) >= MAX_CACHED_LOCATIONS:
            del locations[next(iter(locations))]
        locations[offset] = segment, position

    def move_location(self, read_offset: int, next_offset: int, position: int) -> None:
        """Cache where the batch of `next_offset` starts, for a reader that has used less than its read from
        `read_offset` returned. Call it in the turn of the event loop that reads."""
        self.locations.pop(read_offset, None)
        at = bisect_right(self.segments, next_offset - 1, key=BASE_OFFSET) - 1
        if at >= 0 and position <= self.segments[at].size:
            self.cache_location(next_offset, self.segments[at], position)

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool) -> LogSlice | None:
        """Return whole batches of one segment, from the one that contains `offset` up to `limit_offset`.

        `offset` lies within the log. Raises CorruptLog and OSError.
        """
        location = self.locations.get(offset) or self.locate(offset)
        while location is not None and location[1] >= location[0].size:
            location = self.next_segment(location[0])
        if location is None:
            return None
        segment, position = location
        end = self.find_end(segment, limit_offset)
        available = end - position
        if available <= 0:
            return None
        next_offset = min(limit_offset, segment.end_offset)
        if available > max_bytes:
            end, next_offset = self.limit_size(segment, position, max_bytes, end, next_offset)
            if end == position:
                if not at_least_one:
                    return None
                end, next_offset = self.limit_size(segment, position, -1, end, next_offset)
        file = segment.file or self.pool.open(segment)
        segment.recently_used = True
        self.cache_location(next_offset, segment, end)
        segment.pins += 1
        return LogSlice(file, position, end - position, segment.unpin, next_offset)

    def locate(self, offset: int) -> BatchLocation | None:
        """Return the location of the batch that contains `offset`, or of the next one if compaction removed it.

        None past the last batch. Raises CorruptLog, OSError.
        """
        segments = self.segments
        at = max(bisect_right(segments, offset, key=BASE_OFFSET) - 1, 0)
        while at < len(segments):
            segment = segments[at]
            if offset < segment.end_offset and segment.size:
                return segment, self.find_position(segment, offset)
            at += 1
        return None

    def find_position(self, segment: Segment, offset: int) -> int:
        """Return the position of the first batch whose last offset is at least `offset`, else the segment's size."""
        if offset <= segment.base_offset:
            return 0
        start = self.indexes.get(segment).offsets.floor(offset - segment.base_offset)
        file = segment.file or self.pool.open(segment)
        try:
            for position, header, _ in scan_headers(file, start, segment.size):
                if header.last_offset >= offset:
                    return position
        except BadBatch as e:
            raise CorruptLog(f"{segment.path}: {e}") from e
        return segment.size

    def next_segment(self, segment: Segment) -> BatchLocation | None:
        """Return the start of the next segment."""
        at = bisect_right(self.segments, segment.base_offset, key=BASE_OFFSET)
        return (self.segments[at], 0) if at < len(self.segments) else None

    def find_end(self, segment: Segment, limit_offset: int) -> int:
        """Return the position of `limit_offset`, up to which a reader may read."""
        if limit_offset >= segment.end_offset:
            return segment.size
        if limit_offset <= segment.base_offset:
            return 0
        location = self.locations.get(limit_offset)
        if location is not None and location[0] is segment:
            return location[1]
        position = self.find_position(segment, limit_offset)
        self.cache_location(limit_offset, segment, position)
        return position

    def limit_size(self, segment: Segment, position: int, max_bytes: int, end: int, end_offset: int) -> tuple[int, int]:
        """Return (end position, next offset) of the batches from `position` that fit; of one batch if `max_bytes` < 0.

        Ends at the last indexed batch that fits. If there is none, scans batch headers up to the next entry.
        """
        indexed = self.indexes.get(segment).offsets.last_between(position, position + max_bytes)
        if indexed is not None:
            relative_offset, at = indexed
            return at, segment.base_offset + relative_offset
        file = segment.file or self.pool.open(segment)
        reached, next_offset = position, end_offset
        try:
            for at, header, _ in scan_headers(file, position, segment.size):
                batch_end = at + header.size_bytes
                if batch_end - position > max_bytes >= 0:
                    break
                reached, next_offset = batch_end, header.last_offset + 1
                if max_bytes < 0:
                    break
        except BadBatch as e:
            raise CorruptLog(f"{segment.path}: {e}") from e
        return reached, next_offset

    def clear_locations(self) -> None:
        """Clear the cached locations after segments were truncated, dropped or replaced."""
        self.locations.clear()
