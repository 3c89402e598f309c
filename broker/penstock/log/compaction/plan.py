"""Decides when a log is compacted and which segments. Does no I/O."""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.compaction.job import CompactionSource
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment

HIGH_WATERMARK_RETRY_MS = 10_000
"""Delay before segments are checked again that not all replicas have yet."""


class CompactionPlan(NamedTuple):
    """The segments to process, and the offset up to which they were compacted before."""

    segments: list[Segment]
    dirty_offset: int

    @property
    def sources(self) -> list[CompactionSource]:
        """The segments, for the worker's job."""
        return [CompactionSource(s.base_offset, s.size, s.end_offset) for s in self.segments]


class CompactionDecision(NamedTuple):
    """A plan to run now, or the wall time (ms) of the next check, or neither."""

    plan: CompactionPlan | None = None
    retry_ms: int | None = None


def plan_compaction(log: PartitionLog, now_ms: int) -> CompactionDecision:
    """Decide whether to compact a log: its sealed segments below the limit, old enough and dirty enough."""
    config = log.config
    if not config.cleanup_compact or log.closed or log.failed is not None:
        return CompactionDecision()
    limit_offset = min(log.retention_limit(), log.flushed_offset)
    retry_ms: int | None = None
    ready: list[Segment] = []
    for segment in log.segments[:-1]:
        if segment.end_offset > limit_offset:
            retry_ms = now_ms + HIGH_WATERMARK_RETRY_MS
            break
        newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.aged_ms
        if config.min_compaction_lag_ms and newest_ms + config.min_compaction_lag_ms > now_ms:
            retry_ms = newest_ms + config.min_compaction_lag_ms
            break
        ready.append(segment)
    dirty = [s for s in ready if s.end_offset > log.compacted_until and s.size]
    if not dirty:
        return CompactionDecision(None, retry_ms)
    total = sum(s.size for s in ready)
    plan = CompactionPlan(ready, max(log.compacted_until, log.start_offset))
    if sum(s.size for s in dirty) > config.min_cleanable_dirty_ratio * total:
        return CompactionDecision(plan)
    first_ms = min(s.first_timestamp_ms if s.first_timestamp_ms >= 0 else s.aged_ms for s in dirty)
    if now_ms - first_ms >= config.max_compaction_lag_ms:
        return CompactionDecision(plan)
    overdue_ms = first_ms + config.max_compaction_lag_ms
    return CompactionDecision(None, overdue_ms if retry_ms is None else min(retry_ms, overdue_ms))
