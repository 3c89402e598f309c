"""Finds where records lie in a log: segment and position for an offset, and runs of whole batches for readers.

Used on the event loop for each partition of each Fetch. Consumers mostly go on where they stopped, so the places where
reads ended are remembered; other reads cost a bisection and one small read.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from penstock.log.file_pool import FilePool
from penstock.log.index_files import IndexCache
from penstock.log.scan import BadBatch, walk
from penstock.log.segment import Segment
from penstock.log.types import CorruptLog, LogSlice

MAX_PLACES = 32
"""Enough for the replicas and some groups of consumers; each costs about 180 bytes, in every partition that is read."""
BASE_OFFSET = attrgetter("base_offset")

Place = tuple[Segment, int]


class LogReader:
    """The segments of a log in order, and what is known of places in them."""

    __slots__ = ("indexes", "places", "pool", "segments")

    def __init__(self, pool: FilePool, indexes: IndexCache, segments: list[Segment]) -> None:
        self.pool, self.indexes, self.segments = pool, indexes, segments
        self.places: dict[int, Place] = {}
        """Where the first batch at or behind an offset begins, for some offsets."""

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Notes that what comes at `offset` begins at `position`."""
        places = self.places
        if offset not in places and len(places) >= MAX_PLACES:
            del places[next(iter(places))]
        places[offset] = segment, position

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool) -> LogSlice | None:
        """Whole batches of one segment from the one that holds `offset`, up to the one that begins at `limit_offset`.

        `offset` lies within the log. Raises CorruptLog and OSError.
        """
        place = self.places.get(offset) or self.locate(offset)
        while place is not None and place[1] >= place[0].size:
            place = self.after(place[0])
        if place is None:
            return None
        segment, position = place
        end = self.end_of(segment, limit_offset)
        available = end - position
        if available <= 0:
            return None
        next_offset = min(limit_offset, segment.end_offset)
        if available > max_bytes:
            end, next_offset = self.cut(segment, position, max_bytes, end, next_offset)
            if end == position:
                if not at_least_one:
                    return None
                end, next_offset = self.cut(segment, position, -1, end, next_offset)
        file = segment.file or self.pool.open(segment)
        segment.touched = True
        self.remember(next_offset, segment, end)
        segment.pins += 1
        return LogSlice(file, position, end - position, segment.unpin, next_offset)

    def locate(self, offset: int) -> Place | None:
        """The batch that holds `offset`, or the next one where it fell to compaction; None past the last."""
        segments = self.segments
        at = max(bisect_right(segments, offset, key=BASE_OFFSET) - 1, 0)
        while at < len(segments):
            segment = segments[at]
            if offset < segment.end_offset and segment.size:
                return segment, self.position_of(segment, offset)
            at += 1
        return None

    def position_of(self, segment: Segment, offset: int) -> int:
        """Where the first batch whose last offset is at least `offset` begins; the segment's size where none is."""
        if offset <= segment.base_offset:
            return 0
        start = self.indexes.get(segment).offsets.floor(offset - segment.base_offset)
        file = segment.file or self.pool.open(segment)
        try:
            for position, header, _ in walk(file, start, segment.size):
                if header.last_offset >= offset:
                    return position
        except BadBatch as e:
            raise CorruptLog(f"{segment.path}: {e}") from e
        return segment.size

    def after(self, segment: Segment) -> Place | None:
        """The beginning of the next segment."""
        at = bisect_right(self.segments, segment.base_offset, key=BASE_OFFSET)
        return (self.segments[at], 0) if at < len(self.segments) else None

    def end_of(self, segment: Segment, limit_offset: int) -> int:
        """The position up to which readers that may see what is below `limit_offset` may read."""
        if limit_offset >= segment.end_offset:
            return segment.size
        if limit_offset <= segment.base_offset:
            return 0
        place = self.places.get(limit_offset)
        if place is not None and place[0] is segment:
            return place[1]
        position = self.position_of(segment, limit_offset)
        self.remember(limit_offset, segment, position)
        return position

    def cut(self, segment: Segment, position: int, max_bytes: int, end: int, end_offset: int) -> tuple[int, int]:
        """(end, offset after it) of the batches from `position` that fit; one batch where `max_bytes` is negative.

        Cuts at the last indexed batch that fits. Where none does, goes from batch to batch, which are few then.
        """
        indexed = self.indexes.get(segment).offsets.last_between(position, position + max_bytes)
        if indexed is not None:
            relative_offset, at = indexed
            return at, segment.base_offset + relative_offset
        file = segment.file or self.pool.open(segment)
        reached, next_offset = position, end_offset
        try:
            for at, header, _ in walk(file, position, segment.size):
                behind = at + header.size_bytes
                if behind - position > max_bytes >= 0:
                    break
                reached, next_offset = behind, header.last_offset + 1
                if max_bytes < 0:
                    break
        except BadBatch as e:
            raise CorruptLog(f"{segment.path}: {e}") from e
        return reached, next_offset

    def forget_places(self) -> None:
        """To be called when segments were cut, dropped or replaced."""
        self.places.clear()
