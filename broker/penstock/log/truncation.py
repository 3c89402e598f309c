"""Cuts a log back to an offset, as a follower does whose log has parted from its leader's. Called by `LogDir`.

A checkpoint that vouches for no more than what stays comes first, so that a crash in the middle finds either the old
end or the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from penstock.log import checkpoint as checkpoints
from penstock.log.epochs import EpochHistory
from penstock.log.index import Indexes
from penstock.log.maintenance import LogMaintenance, MaintenanceOwner, creation_over, lock_of, take_dropped
from penstock.log.partition_log import PartitionLog
from penstock.log.scan import BadBatch, walk
from penstock.log.segment import Segment, SegmentRow
from penstock.log.space import PASSING, patiently, sync_directory
from penstock.log.types import BatchState, CorruptLog, LogFull
from penstock.runtime.files import Files

PINNED_POLL_S = 0.01
PINNED_WAIT_S = 10.0
"""After that what stays is copied: who sends from the old file may take as long as it will."""
COPY_BYTES = 1 << 20


async def truncate(maintenance: LogMaintenance, log: PartitionLog, offset: int) -> None:
    """Removes all batches that hold `offset` or later ones. Nobody may append meanwhile.

    Raises LogFull, and then the log is as it was; CorruptLog, LogDirFailed, OSError.
    """
    async with lock_of(log):
        await log.flush()
        if not log.segments or offset < log.segments[0].base_offset:
            await start_over(maintenance, log, offset)
            return
        with nothing_done(log):
            place = log.reader.locate(offset)
        if log.closed or place is None:
            return
        segment, position = place
        work = Truncation(maintenance.owner, log, segment, position, offset)
        try:
            with nothing_done(log):
                await maintenance.run(work.prepare)
                await unpinned(log.segments[log.segments.index(segment) :])  # readers that came meanwhile, too
                if segment.pins:
                    await maintenance.run(work.copy)
        except LogFull:
            # The checkpoint may be there: it vouches for less than there is, which is no harm.
            log.durable_start_offset = min(log.durable_start_offset, work.end_offset)
            maintenance.note_dirty(log)
            raise
        later = log.segments[log.segments.index(segment) + 1 :]  # retention may have rolled the log
        forget(maintenance, log, segment, later)
        work.take_over()
        await maintenance.run(work.cut, later)
        log.checkpointed_offset = log.end_offset


async def restart(maintenance: LogMaintenance, log: PartitionLog, offset: int) -> None:
    """Empties a log, whose next batch is to have `offset`. Nobody may append meanwhile. Raises as above."""
    async with lock_of(log):
        await creation_over(log)
        await log.flush()
        if not log.closed:
            await start_over(maintenance, log, offset)


async def start_over(maintenance: LogMaintenance, log: PartitionLog, offset: int) -> None:
    """Empties a log that is to end before its first segment: what comes next has `offset`. Raises as above."""
    owner = maintenance.owner
    log.sequence += 1
    compacted_until = min(log.compacted_until, offset)
    emptied = checkpoints.Checkpoint(log.sequence, offset, offset, [], [], b"", compacted_until, log.gaps)
    with nothing_done(log):
        await maintenance.run(maintenance.store, log.directory, [], emptied)
    await unpinned(log.segments)
    gone = [*take_dropped(log), *log.segments]
    log.reader.forget_places()
    for one in gone:
        owner.indexes.forget(one)
        maintenance.close_unpinned(one)
    log.segments.clear()
    log.unindexed.clear()
    log.active, log.size_bytes = None, 0
    log.start_offset = log.end_offset = log.flushed_offset = offset
    log.checkpointed_offset = log.durable_start_offset = offset
    log.cuts += 1
    log.uncheckpointed_bytes, log.dirty_since_ms = 0, None
    log.epochs.truncate(0)
    log.latest_epoch, log.compacted_until = -1, compacted_until
    log.state.restore(None)
    await maintenance.run(remove_segments, owner.files, log.directory, gone)


@contextlib.contextmanager
def nothing_done(log: PartitionLog) -> Iterator[None]:
    """Around what leaves the log as it is where it fails: errors that pass are LogFull then."""
    try:
        yield
    except OSError as e:
        if e.errno not in PASSING:
            raise
        raise LogFull(f"{log.directory} cannot be cut for now: {e}") from e


async def unpinned(segments: Sequence[Segment]) -> None:
    """Waits for those who send from segments; not for long, as one of them may have stopped reading."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PINNED_WAIT_S
    while any(s.pins for s in segments) and loop.time() < until_s:  # noqa: ASYNC110 - readers are many, cuts rare
        await asyncio.sleep(PINNED_POLL_S)


def remove_segments(files: Files, directory: str, segments: list[Segment]) -> None:
    """Newest first, so that no crash leaves a hole. In a thread."""
    for segment in reversed(segments):
        for path in (segment.path, segment.index_path, segment.time_index_path):
            if files.exists(path):
                files.remove(path)
    sync_directory(files, directory)


def forget(maintenance: LogMaintenance, log: PartitionLog, segment: Segment, later: list[Segment]) -> None:
    """Lets go of what was known of the part that goes."""
    log.reader.forget_places()
    for one in [segment, *later]:
        maintenance.owner.indexes.forget(one)
        maintenance.close_unpinned(one)
    log.unindexed[:] = [s for s in log.unindexed if s is not segment and s not in later]
    del log.segments[len(log.segments) - len(later) :]


class Truncation:
    """One cut: what the segment will be like, and the state as of its new end. The log knows nothing of it before
    `take_over`."""

    def __init__(
        self, owner: MaintenanceOwner, log: PartitionLog, segment: Segment, position: int, offset: int
    ) -> None:
        self.files, self.log, self.segment, self.position, self.offset = owner.files, log, segment, position, offset
        self.kept = Segment(log.directory, segment.base_offset)
        self.kept.indexes = Indexes()
        self.end_offset = offset
        self.epochs = EpochHistory(log.epochs.entries())
        self.state: BatchState = owner.new_state()
        self.snapshot = b""
        self.copied: str | None = None
        log.sequence += 1  # also of an attempt that fails: no two checkpoints are to have the same
        self.sequence = log.sequence

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
        self.epochs.truncate(self.end_offset)
        self.replay()
        self.snapshot = self.state.snapshot() if self.end_offset else b""
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
        captured = checkpoints.Checkpoint(
            self.sequence,
            min(log.start_offset, self.end_offset),
            self.end_offset,
            rows,
            self.epochs.entries(),
            self.snapshot,
            min(log.compacted_until, self.end_offset),
            log.gaps,
        )
        checkpoints.write(self.files, log.directory, captured)

    def copy(self) -> None:
        """Writes what stays to a new file, for the old one is still being sent. In a thread."""
        target = f"{self.kept.path}.tmp"
        try:
            copy_head(self.files, self.segment.path, target, self.kept.size)
        except OSError:
            with contextlib.suppress(OSError):
                self.files.remove(target)
            raise
        self.copied = target

    def take_over(self) -> None:
        """Makes the shortened segment the active one. On the event loop."""
        log, kept = self.log, self.kept
        log.segments[-1] = kept
        log.active = kept
        log.end_offset = log.flushed_offset = self.end_offset
        log.cuts += 1
        log.start_offset = min(log.start_offset, self.end_offset)
        log.durable_start_offset = min(log.durable_start_offset, self.end_offset)
        log.size_bytes = sum(s.size for s in log.segments)
        log.epochs, log.latest_epoch = self.epochs, self.epochs.latest
        log.state.restore(self.snapshot or None)
        log.compacted_until = min(log.compacted_until, self.end_offset)

    def cut(self, later: list[Segment]) -> None:
        """Removes the bytes, now that there is no way back. In a thread."""
        remove_segments(self.files, self.log.directory, later)
        if self.copied is not None:
            self.files.rename(self.copied, self.kept.path)
            sync_directory(self.files, self.log.directory)
            return
        file = patiently(self.files.open, self.kept.path)
        try:
            file.truncate(self.kept.size)
            file.sync()
        finally:
            file.close()


def copy_head(files: Files, path: str, target: str, size_bytes: int) -> None:
    """Copies the beginning of a file, durably but for its name."""
    source = files.open(path, read_only=True)
    try:
        copy = files.open(target, create=True)
        try:
            copy.truncate(0)
            for position in range(0, size_bytes, COPY_BYTES):
                copy.append(source.read_at(position, min(COPY_BYTES, size_bytes - position)))
            copy.sync()
        finally:
            copy.close()
    finally:
        source.close()
