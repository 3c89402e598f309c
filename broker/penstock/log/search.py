"""Finds records by time: the time index narrows it to a few batches, whose records are then looked at.

The one place in the log that decompresses for a reader. Runs in any thread: it is given a view of the segments as they
were, and opens files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.log.index_files import load_indexes
from penstock.log.scan import BadBatch, ScannedBatch, walk
from penstock.log.segment import Segment
from penstock.log.types import CorruptLog, LogError, LogTimestamp
from penstock.runtime.files import File, Files
from penstock.wire.batch import BatchHeader
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 32 << 20
"""The most that a batch may grow to for a search: this is the broker's memory."""
MAX_LOOKED_AT = 1_000_000
"""The most records of a batch that a search goes through: each takes the interpreter from the event loop."""


class SearchedSegment(NamedTuple):
    """A segment, and how far it reached when the search began."""

    segment: Segment
    size_bytes: int
    end_offset: int


class SearchView(NamedTuple):
    """What a search goes through. `start_offset` is the log's."""

    files: Files
    segments: list[SearchedSegment]
    start_offset: int


class LogSearch:
    """Searches in a log whose segments may change meanwhile."""

    def __init__(self, files: Files, segments: list[Segment], start_offset: int) -> None:
        self.files, self.segments, self.start_offset = files, segments, start_offset

    def first(self, timestamp_ms: int, limit_offset: int) -> LogTimestamp | None:
        return self.run(lambda view: first_at_or_after(view, timestamp_ms, limit_offset))

    def largest(self, limit_offset: int) -> LogTimestamp | None:
        return self.run(lambda view: with_largest_timestamp(view, limit_offset))

    def run(self, find: Callable[[SearchView], LogTimestamp | None]) -> LogTimestamp | None:
        """Searches the segments as they are; once more where compaction replaced one meanwhile."""
        segments = list(self.segments)
        try:
            return find(self.view_of(segments))
        except CorruptLog:
            if segments == self.segments:
                raise
        return find(self.view_of(list(self.segments)))

    def view_of(self, segments: list[Segment]) -> SearchView:
        return SearchView(self.files, [SearchedSegment(s, s.size, s.end_offset) for s in segments], self.start_offset)


def first_at_or_after(view: SearchView, timestamp_ms: int, limit_offset: int) -> LogTimestamp | None:
    """The first record at or after a time, below `limit_offset`. Raises CorruptLog, LogError."""
    for searched in view.segments:
        segment = searched.segment
        if segment.base_offset >= limit_offset:
            break
        if searched.end_offset <= view.start_offset or segment.max_timestamp_ms < timestamp_ms:
            continue
        with opened(view, segment) as file:
            if file is None:
                continue
            position = place_before(view, segment, timestamp_ms)
            for found in batches(file, searched, position):
                if found.header.base_offset >= limit_offset:
                    return None
                if found.header.max_timestamp_ms >= timestamp_ms:
                    record = record_at_or_after(view, file, found, timestamp_ms)
                    if record is not None:
                        return record if record.offset < limit_offset else None
    return None


def with_largest_timestamp(view: SearchView, limit_offset: int) -> LogTimestamp | None:
    """The first record that has the largest timestamp of all below `limit_offset`. Raises CorruptLog, LogError."""
    candidates = [s for s in view.segments if s.segment.base_offset < limit_offset and s.end_offset > view.start_offset]
    candidates.sort(key=lambda s: (-s.segment.max_timestamp_ms, s.segment.base_offset))
    best: LogTimestamp | None = None
    for searched in candidates:
        segment = searched.segment
        if segment.max_timestamp_ms < 0 or (best is not None and best.timestamp_ms >= segment.max_timestamp_ms):
            break
        found = largest_in(view, searched, limit_offset)
        if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
            best = found
    return best


def largest_in(view: SearchView, searched: SearchedSegment, limit_offset: int) -> LogTimestamp | None:
    segment = searched.segment
    with opened(view, segment) as file:
        if file is None:
            return None
        top: ScannedBatch | None = None
        whole = searched.end_offset <= limit_offset and segment.base_offset >= view.start_offset
        position = place_before(view, segment, segment.max_timestamp_ms) if whole else 0
        for found in batches(file, searched, position):
            if found.header.base_offset >= limit_offset:
                break
            if found.header.last_offset < view.start_offset:
                continue
            if top is None or found.header.max_timestamp_ms > top.header.max_timestamp_ms:
                top = found
        return record_at_or_after(view, file, top, top.header.max_timestamp_ms) if top is not None else None


@contextmanager
def opened(view: SearchView, segment: Segment) -> Iterator[File | None]:
    """The segment's file, for this search alone; None where retention has just taken it."""
    try:
        file = view.files.open(segment.path, read_only=True)
    except FileNotFoundError:
        yield None
        return
    except OSError as e:
        raise LogError(f"{segment.path} cannot be read: {e}") from e
    try:
        if segment.sealed and file.size() != segment.size:
            raise CorruptLog(f"{segment.path} has {file.size()} bytes where {segment.size} were written")
        yield file
    except OSError as e:
        raise LogError(f"{segment.path} cannot be read: {e}") from e
    finally:
        file.close()


def place_before(view: SearchView, segment: Segment, timestamp_ms: int) -> int:
    """A position before which every timestamp is smaller."""
    indexes = segment.indexes or load_indexes(view.files, segment)
    return indexes.offsets.floor(indexes.times.floor(timestamp_ms))


def batches(file: File, searched: SearchedSegment, position: int) -> Iterator[ScannedBatch]:
    try:
        yield from walk(file, position, searched.size_bytes)
    except BadBatch as e:
        raise CorruptLog(f"{searched.segment.path}: {e}") from e


def record_at_or_after(view: SearchView, file: File, found: ScannedBatch, timestamp_ms: int) -> LogTimestamp | None:
    """The first record of a batch at or after a time, which readers may ask for.

    A batch that is too large to be opened here is answered as a whole, by its first offset, so that nobody who reads on
    from there misses a record; also one whose bytes are no records, which a producer may have sent under a right CRC.
    """
    header: BatchHeader = found.header
    try:
        if header.size_bytes > MAX_DECOMPRESSED_BYTES or header.record_count > MAX_LOOKED_AT:
            raise MalformedMessage("the batch is too large")
        batch = memoryview(file.read_at(found.position, header.size_bytes))
        for record in iterate_records(batch, header, MAX_DECOMPRESSED_BYTES):
            if record.timestamp_ms >= timestamp_ms and record.offset >= view.start_offset:
                return LogTimestamp(record.offset, record.timestamp_ms, header.leader_epoch)
    except MalformedMessage:
        offset = max(header.base_offset, view.start_offset)
        return LogTimestamp(offset, header.max_timestamp_ms, header.leader_epoch)
    return None
