"""One segment of a log: a file of batches, its two indexes, and what the rest of the log needs to know of it.

The last segment of a log is active: it is appended to, and its indexes are in memory. The others are sealed: they are
described by a `SegmentRow` in the checkpoint, and their indexes are read when somebody searches them.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.config.values import TopicConfig
from penstock.log.file_pool import Pooled
from penstock.log.index import MAX_ENTRIES, Indexes

MAX_RELATIVE_OFFSET = (1 << 31) - 1
WIDE_GAP = 1 << 30
"""Offsets that may be missing (to compaction) before a segment that is not named for the end of the one before it."""
MAX_POSITION = (1 << 31) - 1
LOG, INDEX, TIME_INDEX = ".log", ".index", ".timeindex"
DELETED = ".deleted"


class SegmentRow(NamedTuple):
    """What a checkpoint says of a segment. Sizes in bytes, times in ms, -1 for none."""

    base_offset: int
    size_bytes: int
    end_offset: int
    """The offset after its last record."""
    first_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    """The base offset of the batch that has the largest timestamp."""
    aged_ms: int
    """The time by which its age counts: the largest timestamp, or when it was sealed if no record has one."""
    offset_entries: int
    offset_crc: int
    time_entries: int
    time_crc: int


class Segment(Pooled):
    """A segment's file and state."""

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
        """The position up to which batches need no index entry of their own."""
        self.offset_entries = self.offset_crc = self.time_entries = self.time_crc = 0

    def __repr__(self) -> str:
        return f"<Segment {self.path} {self.size} bytes, offsets {self.base_offset}..{self.end_offset}>"

    @classmethod
    def from_row(cls, directory: str, row: SegmentRow, sealed: bool) -> Segment:
        segment = cls(directory, row.base_offset)
        segment.size, segment.end_offset = row.size_bytes, row.end_offset
        segment.first_timestamp_ms, segment.max_timestamp_ms = row.first_timestamp_ms, row.max_timestamp_ms
        segment.max_timestamp_offset, segment.aged_ms = row.max_timestamp_offset, row.aged_ms
        segment.offset_entries, segment.offset_crc = row.offset_entries, row.offset_crc
        segment.time_entries, segment.time_crc = row.time_entries, row.time_crc
        segment.sealed = sealed
        segment.indexed_until = row.size_bytes
        return segment

    def row(self) -> SegmentRow:
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
        return self.path.removesuffix(LOG) + INDEX

    @property
    def time_index_path(self) -> str:
        return self.path.removesuffix(LOG) + TIME_INDEX

    def note(self, position: int, base_offset: int, max_timestamp_ms: int, index_interval_bytes: int) -> None:
        """Takes in the next batch, at `position`; `size` and `end_offset` are the caller's to move."""
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

    def must_end(self, size: int, end_offset: int, timestamp_ms: int, config: TopicConfig, max_age_ms: int) -> bool:
        """Whether a batch of `size` bytes, up to `end_offset`, belongs into another segment."""
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
        """No batch will follow; the time index gets its last entry."""
        if self.indexes is None:
            self.indexes = Indexes()
        if self.max_timestamp_ms >= 0:
            self.indexes.note_time(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        self.aged_ms = self.max_timestamp_ms if self.max_timestamp_ms >= 0 else now_ms
        self.sealed = True

    def note_written_indexes(self) -> None:
        """Copies what the index files now hold to where the checkpoint takes it from."""
        indexes = self.indexes
        assert indexes is not None
        self.offset_entries, self.offset_crc = indexes.offset_written, indexes.offset_crc
        self.time_entries, self.time_crc = indexes.time_written, indexes.time_crc


def parse_base_offset(name: str) -> int | None:
    """The base offset that a file of a segment has for its name; None for other files."""
    stem, suffix = os.path.splitext(name)
    if suffix in (LOG, INDEX, TIME_INDEX) and len(stem) == 20 and stem.isascii() and stem.isdigit():
        offset = int(stem)
        return offset if offset < 1 << 63 else None
    return None
