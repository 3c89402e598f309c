"""Captures an open log's state as a checkpoint. Called by `maintenance` and by `LogDirectory` on clean shutdown."""

from __future__ import annotations

from penstock.log.checkpoint import Checkpoint
from penstock.log.index import PendingEntries
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment

MIN_WRITTEN_ENTRIES = 8
"""Unwritten index entries of the active segment that are not worth two file writes."""


def capture_checkpoint(
    log: PartitionLog, segments: list[Segment] | None = None
) -> tuple[Checkpoint, list[tuple[Segment, PendingEntries]]]:
    """Return a checkpoint of the log (with `segments`, if given) and the index entries to write before it.

    Call it when the log's `state` includes everything appended. The caller flushes the log before it writes the
    checkpoint.
    """
    pending: list[tuple[Segment, PendingEntries]] = []
    for segment in [*log.unindexed, log.active]:
        if segment is None or segment.indexes is None:
            continue
        if not segment.sealed and segment.indexes.unwritten <= MIN_WRITTEN_ENTRIES:
            continue  # recovery scans so few batches faster than two files are written
        entries = segment.indexes.pop_unwritten()
        segment.record_written_indexes()
        if segment.sealed or not entries.empty:
            pending.append((segment, entries))
    log.unindexed.clear()
    log.sequence += 1
    rows = [s.to_row() for s in (log.segments if segments is None else segments)]
    checkpoint = Checkpoint(
        log.sequence,
        log.start_offset,
        log.end_offset,
        rows,
        log.epochs.entries(),
        log.state.snapshot() if log.end_offset else b"",
        log.compacted_until,
        log.gaps,
    )
    return checkpoint, pending
