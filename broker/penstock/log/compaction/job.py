"""The messages between the broker and the compaction worker: one JSON line each."""

from __future__ import annotations

import msgspec

from penstock.log.segment import SegmentRow


class CompactionSource(msgspec.Struct, frozen=True, array_like=True):
    """A segment to clean."""

    base_offset: int
    size_bytes: int
    end_offset: int


class CompactionJob(msgspec.Struct, frozen=True):
    """A compaction pass for the worker to run."""

    name: str
    """Distinguishes the files of this job from those of others."""
    directory: str
    sources: list[CompactionSource]
    dirty_offset: int
    """Offset below which the log was compacted before: every record there is the last of its key."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    max_keys: int


class CompactionResult(msgspec.Struct, frozen=True):
    """The result of a job; `error` if it failed."""

    name: str
    sources: list[int] = []
    """Base offsets of the segments that `rows` replace; empty if they stay unchanged."""
    rows: list[SegmentRow] = []
    """The new segments, whose files carry the job's name."""
    compacted_until: int = 0
    """Offset below which all records were processed."""
    kept_records: int = 0
    dropped_records: int = 0
    error: str | None = None
