"""One segment of a log: a file of batches, its two indexes and its metadata.

The last segment of a log is active: it is appended to, and its indexes are in memory. The others are sealed: a
`SegmentRow` in the checkpoint describes them, and their indexes are loaded on demand.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.config.topic import TopicConfig
from penstock.log.file_pool import PooledFile
from penstock.log.index import MAX_ENTRIES, Indexes

MAX_RELATIVE_OFFSET = (1 << 31) - 1
MAX_NAME_GAP = 1 << 30
"""Missing offsets (after compaction) beyond which a new segment is named for the next batch, not for the previous end.
"""
MAX_POSITION = (1 << 31) - 1
LOG, INDEX, TIME_INDEX = ".log", ".index", ".timeindex"
DELETED = ".deleted"


class SegmentRow(NamedTuple):
    """A segment's entry in a checkpoint. Sizes in bytes, timestamps in ms, -1 for none."""

    base_offset: int
    size_bytes: int
    end_offset: int
    """Offset after the last record."""
    first_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    """Base offset of the batch with the largest timestamp."""
    aged_ms: int
    """Time from which its age counts: the largest timestamp, or when it was sealed if no record has one."""
    offset_entries: int
    offset_crc: int
    time_entries: int
    time_crc: int


class Segment(PooledFile):
    """A segment's file and metadata."""

    __slots__ = (
        "aged_ms",
        "base_offset",
        "end_offset",
        "first_timestamp_ms",
        "indexed_until",
        "indexes",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offset_crc",
        "offset_entries",
        "sealed",
        "time_crc",
        "time_entries",
    )

    def __init__(self, directory: str, base_offset: int) -> None:
        super().__init__(f"{directory}/{base_offset:020d}{LOG}", 0)
        self.base_offset = self.end_offset = base_offset
        self.first_timestamp_ms = self.max_timestamp_ms = -1
        self.max_timestamp_offset = base_offset
        self.aged_ms = -1
        self.sealed = False
        self.indexes: Indexes | None = None
        self.indexed_until = 0
        """Position up to which batches need no index entry."""
        self.offset_entries = self.offset_crc = self.time_entries = self.time_crc = 0

    def __repr__(self) -> str:
        return f"<Segment {self.path} {self.size} bytes, offsets {self.base_offset}..{self.end_offset}>"

    @classmethod
    def from_row(cls, directory: str, row: SegmentRow, sealed: bool) -> Segment:
        """Restore a segment from its checkpoint entry."""
        segment = cls(directory, row.base_offset)
        segment.size, segment.end_offset = row.size_bytes, row.end_offset
        segment.first_timestamp_ms, segment.max_timestamp_ms = row.first_timestamp_ms, row.max_timestamp_ms
        segment.max_timestamp_offset, segment.aged_ms = row.max_timestamp_offset, row.aged_ms
        segment.offset_entries, segment.offset_crc = row.offset_entries, row.offset_crc
        segment.time_entries, segment.time_crc = row.time_entries, row.time_crc
        segment.sealed = sealed
        segment.indexed_until = row.size_bytes
        return segment

    def to_row(self) -> SegmentRow:
        """Return the segment's checkpoint entry."""
        return SegmentRow(
            self.base_offset,
            self.size,
            self.end_offset,
            self.first_timestamp_ms,
            self.max_timestamp_ms,
            self.max_timestamp_offset,
            self.aged_ms if self.max_timestamp_ms < 0 else self.max_timestamp_ms,
            self.offset_entries,
            self.offset_crc,
            self.time_entries,
            self.time_crc,
        )

    @property
    def index_path(self) -> str:
        """Path of the offset index."""
        return self.path.removesuffix(LOG) + INDEX

    @property
    def time_index_path(self) -> str:
        """Path of the time index."""
        return self.path.removesuffix(LOG) + TIME_INDEX

    def add_batch(self, position: int, base_offset: int, max_timestamp_ms: int, index_interval_bytes: int) -> None:
        """Record the next batch in timestamps and indexes; the caller updates `size` and `end_offset`."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = base_offset
            if self.first_timestamp_ms < 0:
                self.first_timestamp_ms = max_timestamp_ms
        if position >= self.indexed_until:
            indexes = self.indexes
            if indexes is None:
                indexes = self.indexes = Indexes()
            base = self.base_offset
            indexes.add(base_offset - base, position, self.max_timestamp_ms, self.max_timestamp_offset - base)
            self.indexed_until = position + max(index_interval_bytes, 1)

    def must_roll(self, size: int, end_offset: int, timestamp_ms: int, config: TopicConfig, max_age_ms: int) -> bool:
        """Return whether a batch of `size` bytes, up to `end_offset`, must go to a new segment."""
        position = self.size
        if position == 0:
            return end_offset - 1 - self.base_offset > MAX_RELATIVE_OFFSET
        end = position + size
        indexes = self.indexes
        return (
            end > config.segment_bytes
            or end > MAX_POSITION
            or end_offset - 1 - self.base_offset > MAX_RELATIVE_OFFSET
            or (timestamp_ms - self.first_timestamp_ms > max_age_ms and self.first_timestamp_ms >= 0)
            or (indexes is not None and len(indexes.offsets.positions) >= MAX_ENTRIES)
        )

    def seal(self, now_ms: int) -> None:
        """Mark the segment read-only and add the last time index entry."""
        assert not self.sealed, f"{self} is sealed already"
        if self.indexes is None:
            self.indexes = Indexes()
        if self.max_timestamp_ms >= 0:
            self.indexes.add_time(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        self.aged_ms = self.max_timestamp_ms if self.max_timestamp_ms >= 0 else now_ms
        self.sealed = True

    def record_written_indexes(self) -> None:
        """Copy the size and CRC of the index files to the fields that the checkpoint stores."""
        indexes = self.indexes
        assert indexes is not None, f"{self} has written indexes, so they are in memory"
        self.offset_entries, self.offset_crc = indexes.offset_written, indexes.offset_crc
        self.time_entries, self.time_crc = indexes.time_written, indexes.time_crc


def parse_base_offset(name: str) -> int | None:
    """Return the base offset in the name of a segment or index file, None for other files."""
    stem, suffix = os.path.splitext(name)
    if suffix in (LOG, INDEX, TIME_INDEX) and len(stem) == 20 and stem.isascii() and stem.isdigit():
        offset = int(stem)
        return offset if offset < 1 << 63 else None
    return None
