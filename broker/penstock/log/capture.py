"""Describes an open log for a checkpoint. Called by `maintenance` and, at a clean shutdown, by `LogDir`."""

from __future__ import annotations

from penstock.log.checkpoint import Checkpoint
from penstock.log.index import PendingEntries
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment

FEW_ENTRIES = 8


def capture(
    log: PartitionLog, segments: list[Segment] | None = None
) -> tuple[Checkpoint, list[tuple[Segment, PendingEntries]]]:
    """The log as of now, or as it will be with `segments`; and index entries to be written before that counts.

    To be called where everything appended has also reached the log's `state`. The caller sees to it that all is
    flushed.
    """
    pending: list[tuple[Segment, PendingEntries]] = []
    for segment in [*log.unindexed, log.active]:
        if segment is None or segment.indexes is None:
            continue
        if not segment.sealed and segment.indexes.unwritten <= FEW_ENTRIES:
            continue  # scanning over so little costs less than writing two files
        entries = segment.indexes.take_unwritten()
        segment.note_written_indexes()
        if segment.sealed or not entries.empty:
            pending.append((segment, entries))
    log.unindexed.clear()
    log.sequence += 1
    rows = [s.row() for s in (log.segments if segments is None else segments)]
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
