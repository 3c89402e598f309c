"""Finds records by timestamp: the time index narrows the search to a few batches, whose records are then decoded.

The only reader in the log that decompresses batches. Runs in any thread, on a copy of the segment list, and opens its
own files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from penstock.log.index_files import load_indexes
from penstock.log.scan import BadBatch, ScannedBatch, scan_headers
from penstock.log.segment import Segment
from penstock.log.types import CorruptLog, LogError, LogTimestamp
from penstock.runtime.files import File, Files
from penstock.wire.batch import BatchHeader
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 32 << 20
"""Maximum size of a batch that a search decompresses, to bound the broker's memory."""
MAX_SCANNED_RECORDS = 1_000_000
"""Maximum records of a batch that a search decodes: decoding holds the GIL and delays the event loop."""

T = TypeVar("T")


class SearchedSegment(NamedTuple):
    """A segment with its size when the search began."""

    segment: Segment
    size_bytes: int
    end_offset: int


class SearchView(NamedTuple):
    """The segments to search. `start_offset` is the log's."""

    files: Files
    segments: list[SearchedSegment]
    start_offset: int


class LogSearch:
    """Searches a log whose segments may change meanwhile."""

    def __init__(self, files: Files, segments: list[Segment], start_offset: int) -> None:
        self.files, self.segments, self.start_offset = files, segments, start_offset

    def find_first(self, timestamp_ms: int, limit_offset: int) -> LogTimestamp | None:
        """Return the first record at or after a timestamp. Raises CorruptLog, LogError."""
        return self.run(lambda view: find_first_at_or_after(view, timestamp_ms, limit_offset))

    def find_largest(self, limit_offset: int) -> LogTimestamp | None:
        """Return the first record with the largest timestamp. Raises CorruptLog, LogError."""
        return self.run(lambda view: find_largest_timestamp(view, limit_offset))

    def run(self, find: Callable[[SearchView], T]) -> T:
        """Search the current segments; once more if compaction replaced one meanwhile."""
        segments = list(self.segments)
        try:
            return find(self.make_view(segments))
        except CorruptLog:
            if segments == self.segments:
                raise
        return find(self.make_view(list(self.segments)))

    def make_view(self, segments: list[Segment]) -> SearchView:
        """Return a view of the segments with their current sizes."""
        return SearchView(self.files, [SearchedSegment(s, s.size, s.end_offset) for s in segments], self.start_offset)


def find_first_at_or_after(view: SearchView, timestamp_ms: int, limit_offset: int) -> LogTimestamp | None:
    """Return the first record at or after a timestamp, below `limit_offset`. Raises CorruptLog, LogError."""
    for searched in view.segments:
        segment = searched.segment
        if segment.base_offset >= limit_offset:
            break
        if searched.end_offset <= view.start_offset or segment.max_timestamp_ms < timestamp_ms:
            continue
        with open_segment(view, segment) as file:
            if file is None:
                continue
            position = find_start_position(view, segment, timestamp_ms)
            for found in scan_batches(file, searched, position):
                if found.header.base_offset >= limit_offset:
                    return None
                if found.header.max_timestamp_ms >= timestamp_ms:
                    record = find_record(view, file, found, timestamp_ms)
                    if record is not None:
                        return record if record.offset < limit_offset else None
    return None


def find_largest_timestamp(view: SearchView, limit_offset: int) -> LogTimestamp | None:
    """Return the first record with the largest timestamp below `limit_offset`. Raises CorruptLog, LogError."""
    candidates = [s for s in view.segments if s.segment.base_offset < limit_offset and s.end_offset > view.start_offset]
    candidates.sort(key=lambda s: (-s.segment.max_timestamp_ms, s.segment.base_offset))
    best: LogTimestamp | None = None
    for searched in candidates:
        segment = searched.segment
        if segment.max_timestamp_ms < 0 or (best is not None and best.timestamp_ms >= segment.max_timestamp_ms):
            break
        found = find_largest_in_segment(view, searched, limit_offset)
        if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
            best = found
    return best


def find_largest_in_segment(view: SearchView, searched: SearchedSegment, limit_offset: int) -> LogTimestamp | None:
    """Return the first record of a segment with its largest timestamp. Raises CorruptLog, LogError."""
    segment = searched.segment
    with open_segment(view, segment) as file:
        if file is None:
            return None
        top: ScannedBatch | None = None
        whole = searched.end_offset <= limit_offset and segment.base_offset >= view.start_offset
        position = find_start_position(view, segment, segment.max_timestamp_ms) if whole else 0
        for found in scan_batches(file, searched, position):
            if found.header.base_offset >= limit_offset:
                break
            if found.header.last_offset < view.start_offset:
                continue
            if top is None or found.header.max_timestamp_ms > top.header.max_timestamp_ms:
                top = found
        return find_record(view, file, top, top.header.max_timestamp_ms) if top is not None else None


def batches_between(
    view: SearchView, from_offset: int, end_offset: int
) -> Iterator[tuple[File, int, BatchHeader, str]]:
    """Yield (file, position, header, path) of the batches with offsets in a range."""
    for searched in segments_from(view, from_offset):
        segment = searched.segment
        if segment.base_offset >= end_offset:
            return
        if searched.end_offset <= from_offset or not searched.size_bytes:
            continue
        with open_segment(view, segment) as file:
            if file is None:
                continue
            position = find_offset_position(view, segment, from_offset)
            for found, header, _ in scan_batches(file, searched, position):
                if header.last_offset < from_offset:
                    continue
                if header.base_offset >= end_offset:
                    return
                yield file, found, header, segment.path


def segments_from(view: SearchView, from_offset: int) -> list[SearchedSegment]:
    """Return the segments from the one with an offset."""
    index = bisect_right(view.segments, from_offset, key=lambda searched: searched.segment.base_offset) - 1
    return view.segments[max(index, 0) :]


@contextmanager
def open_segment(view: SearchView, segment: Segment) -> Iterator[File | None]:
    """Open a segment's file for this search; None if retention has just deleted it. Raises CorruptLog, LogError."""
    try:
        file = view.files.open(segment.path, read_only=True)
    except FileNotFoundError:
        yield None
        return
    except OSError as e:
        raise LogError(f'cannot read "{segment.path}": {e}') from e
    try:
        if segment.sealed and file.size() != segment.size:
            raise CorruptLog(f'"{segment.path}" has {file.size()} bytes, expected {segment.size}; restore it')
        yield file
    except OSError as e:
        raise LogError(f'cannot read "{segment.path}": {e}') from e
    finally:
        file.close()


def find_start_position(view: SearchView, segment: Segment, timestamp_ms: int) -> int:
    """Return a position before which every timestamp is smaller."""
    indexes = segment.indexes or load_indexes(view.files, segment)
    return indexes.offsets.floor(indexes.times.floor(timestamp_ms))


def find_offset_position(view: SearchView, segment: Segment, offset: int) -> int:
    """Return a position before which every offset is smaller."""
    indexes = segment.indexes or load_indexes(view.files, segment)
    return indexes.offsets.floor(max(offset - segment.base_offset, 0))


def scan_batches(file: File, searched: SearchedSegment, position: int) -> Iterator[ScannedBatch]:
    """Yield a segment's batch headers from `position`. Raises CorruptLog."""
    try:
        yield from scan_headers(file, position, searched.size_bytes)
    except BadBatch as e:
        raise CorruptLog(f"{searched.segment.path}: {e}") from e


def find_record(view: SearchView, file: File, found: ScannedBatch, timestamp_ms: int) -> LogTimestamp | None:
    """Return a batch's first readable record at or after a timestamp.

    For a batch that is too large to decode, or whose records are invalid under a matching CRC, return its first offset,
    so that a consumer that starts there misses no record.
    """
    header: BatchHeader = found.header
    try:
        if header.size_bytes > MAX_DECOMPRESSED_BYTES or header.record_count > MAX_SCANNED_RECORDS:
            raise MalformedMessage("the batch is too large")
        batch = memoryview(file.read_at(found.position, header.size_bytes))
        for record in iterate_records(batch, header, MAX_DECOMPRESSED_BYTES):
            if record.timestamp_ms >= timestamp_ms and record.offset >= view.start_offset:
                return LogTimestamp(record.offset, record.timestamp_ms, header.leader_epoch)
    except MalformedMessage:
        offset = max(header.base_offset, view.start_offset)
        return LogTimestamp(offset, header.max_timestamp_ms, header.leader_epoch)
    return None
