"""Cuts a log back to an offset, as a follower does whose log has parted from its leader's. Called by `LogDir`.

A checkpoint that vouches for no more than what stays comes first, so that a crash in the middle finds either the old
end or the new one.
"""

from __future__ import annotations

import asyncio

from penstock.log import checkpoint as checkpoints
from penstock.log.index import Indexes
from penstock.log.maintenance import Maintenance, creation_over, lock_of
from penstock.log.partition_log import PartitionLog
from penstock.log.scan import BadBatch, walk
from penstock.log.segment import Segment, SegmentRow
from penstock.log.types import BatchState, CorruptLog
from penstock.runtime.files import Files

PINNED_POLL_S = 0.01


async def truncate(maintenance: Maintenance, log: PartitionLog, offset: int) -> None:
    """Removes all batches that hold `offset` or later ones. Nobody may append meanwhile.

    Raises CorruptLog, LogDirFailed, OSError.
    """
    async with lock_of(log):
        await log.flush()
        if not log.segments or offset < log.segments[0].base_offset:
            await start_over(maintenance, log, offset)
            return
        place = log.reader.locate(offset)
        if log.closed or place is None:
            return
        segment, position = place
        later = log.segments[log.segments.index(segment) + 1 :]
        while any(s.pins for s in [segment, *later]):  # noqa: ASYNC110 - readers are many, truncations rare
            await asyncio.sleep(PINNED_POLL_S)
        work = Truncation(maintenance.owner.files, log, segment, position, offset)
        await maintenance.run(work.prepare)
        forget(maintenance, log, segment, later)
        work.take_over()
        await maintenance.run(work.cut, later)
        log.checkpointed_offset = log.end_offset


async def restart(maintenance: Maintenance, log: PartitionLog, offset: int) -> None:
    """Empties a log, whose next batch is to have `offset`. Nobody may append meanwhile. Raises as above."""
    async with lock_of(log):
        await creation_over(log)
        await log.flush()
        if not log.closed:
            await start_over(maintenance, log, offset)


async def start_over(maintenance: Maintenance, log: PartitionLog, offset: int) -> None:
    """Empties a log that is to end before its first segment: what comes next has `offset`."""
    gone, files = list(log.segments), maintenance.owner.files
    while any(s.pins for s in gone):  # noqa: ASYNC110 - as above
        await asyncio.sleep(PINNED_POLL_S)
    log.reader.forget_places()
    for one in gone:
        maintenance.owner.indexes.forget(one)
        maintenance.owner.pool.close(one)
    log.segments.clear()
    log.unindexed.clear()
    log.active, log.size_bytes = None, 0
    log.start_offset = log.end_offset = log.flushed_offset = log.checkpointed_offset = offset
    log.epochs.truncate(0)
    log.latest_epoch, log.compacted_until = -1, min(log.compacted_until, offset)
    log.state.restore(None)
    await maintenance.write_checkpoint(log)
    await maintenance.run(remove_segments, files, log.directory, gone)


def remove_segments(files: Files, directory: str, segments: list[Segment]) -> None:
    """Newest first, so that no crash leaves a hole. In a thread."""
    for segment in reversed(segments):
        for path in (segment.path, segment.index_path, segment.time_index_path):
            if files.exists(path):
                files.remove(path)
    files.sync_dir(directory)


def forget(maintenance: Maintenance, log: PartitionLog, segment: Segment, later: list[Segment]) -> None:
    """Lets go of what was known of the part that goes."""
    log.reader.forget_places()
    for one in [segment, *later]:
        maintenance.owner.indexes.forget(one)
        maintenance.owner.pool.close(one)
    log.unindexed[:] = [s for s in log.unindexed if s is not segment and s not in later]
    del log.segments[len(log.segments) - len(later) :]


class Truncation:
    """One cut: what the segment will be like, and the state as of its new end."""

    def __init__(self, files: Files, log: PartitionLog, segment: Segment, position: int, offset: int) -> None:
        self.files, self.log, self.segment, self.position, self.offset = files, log, segment, position, offset
        self.kept = Segment(log.directory, segment.base_offset)
        self.kept.indexes = Indexes()
        self.end_offset = offset
        self.state: BatchState = log.state

    def prepare(self) -> None:
        """Reads what stays of the segment and replays the state up to there. In a thread."""
        kept = self.kept
        interval = self.log.config.index_interval_bytes
        file = self.files.open(self.segment.path, read_only=True)
        try:
            for position, header, _ in walk(file, 0, self.position, kept.base_offset):
                kept.note(position, header.base_offset, header.max_timestamp_ms, interval)
                kept.size = position + header.size_bytes
                kept.end_offset = header.last_offset + 1
            if self.position < self.segment.size:
                first_cut = next(iter(walk(file, self.position, self.segment.size)))
                self.end_offset = min(self.offset, first_cut.header.base_offset)
        except BadBatch as e:
            raise CorruptLog(f"{self.segment.path}: {e}") from e
        finally:
            file.close()
        kept.end_offset = self.end_offset
        self.replay()
        self.vouch()

    def replay(self) -> None:
        """Brings the state to the new end, from the last checkpoint where that is early enough.

        Where it is not, the log is replayed from its first segment: what only dropped segments told is forgotten then.
        """
        start_offset, start_position, first = 0, 0, None
        snapshot: bytes | None = None
        try:
            stored = checkpoints.decode(self.files.read(f"{self.log.directory}/{checkpoints.FILE_NAME}"))
        except (FileNotFoundError, checkpoints.DamagedCheckpoint):
            stored = None
        if stored is not None and stored.end_offset <= self.end_offset and stored.segments:
            snapshot = stored.snapshot or None
            start_offset, first = stored.end_offset, stored.segments[-1]
            start_position = first.size_bytes
        self.state.restore(snapshot)
        for segment in self.log.segments:
            base_offset = segment.base_offset
            if base_offset >= self.end_offset or (first is not None and base_offset < first.base_offset):
                continue
            size = self.position if segment is self.segment else segment.size
            begin = start_position if first is not None and base_offset == first.base_offset else 0
            self.replay_segment(segment, begin, size, start_offset)

    def replay_segment(self, segment: Segment, position: int, size: int, start_offset: int) -> None:
        file = self.files.open(segment.path, read_only=True)
        try:
            for at, header, _ in walk(file, position, size, start_offset if position else 0):
                if header.is_control:
                    self.state.replay_control(header, file.read_at(at, header.size_bytes))
                else:
                    self.state.replay(header)
        except (BadBatch, ValueError) as e:
            raise CorruptLog(f"{segment.path}: {e}") from e
        finally:
            file.close()

    def vouch(self) -> None:
        """Writes the checkpoint of the log as it will be; index files come later and may then be found wanting."""
        log = self.log
        rows: list[SegmentRow] = [s.row() for s in log.segments if s.base_offset < self.segment.base_offset]
        rows.append(self.kept.row())
        log.epochs.truncate(self.end_offset)
        log.sequence += 1
        captured = checkpoints.Checkpoint(
            log.sequence,
            min(log.start_offset, self.end_offset),
            self.end_offset,
            rows,
            log.epochs.entries(),
            self.state.snapshot() if self.end_offset else b"",
            min(log.compacted_until, self.end_offset),
            log.gaps,
        )
        self.files.write_atomic(f"{log.directory}/{checkpoints.FILE_NAME}", checkpoints.encode(captured))

    def take_over(self) -> None:
        """Makes the shortened segment the active one. On the event loop."""
        log, kept = self.log, self.kept
        log.segments[-1] = kept
        log.active = kept
        log.end_offset = log.flushed_offset = self.end_offset
        log.start_offset = min(log.start_offset, self.end_offset)
        log.durable_start_offset = min(log.durable_start_offset, self.end_offset)
        log.size_bytes = sum(s.size for s in log.segments)
        log.latest_epoch = log.epochs.latest
        log.compacted_until = min(log.compacted_until, self.end_offset)

    def cut(self, later: list[Segment]) -> None:
        """Removes the bytes. In a thread."""
        remove_segments(self.files, self.log.directory, later)
        file = self.files.open(self.kept.path)
        try:
            file.truncate(self.kept.size)
            file.sync()
        finally:
            file.close()
