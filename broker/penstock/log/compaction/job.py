"""What the broker asks of the worker that compacts, and what it answers: one JSON line each."""

from __future__ import annotations

import msgspec

from penstock.log.segment import SegmentRow


class CompactionSource(msgspec.Struct, frozen=True, array_like=True):
    """A segment to clean, as the broker knows it."""

    base_offset: int
    size_bytes: int
    end_offset: int


class CompactionJob(msgspec.Struct, frozen=True):
    """What the worker is to do; everything that it needs to know."""

    name: str
    """Tells this job's files from those of others."""
    directory: str
    sources: list[CompactionSource]
    dirty_offset: int
    """Below it every record is the last of its key, as far as that was known."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    max_keys: int


class CompactionResult(msgspec.Struct, frozen=True):
    """What the worker did; `error` where it could not."""

    name: str
    sources: list[int] = []
    """The base offsets of the segments that `rows` replace; none where they may stay as they are."""
    rows: list[SegmentRow] = []
    """The new segments, whose files have the job's name."""
    compacted_until: int = 0
    """Offsets below it have been taken into account."""
    kept_records: int = 0
    dropped_records: int = 0
    error: str | None = None
