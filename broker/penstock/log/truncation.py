"""Truncates a log to an offset, as a follower does after its log diverged from the leader's. Called by `LogDirectory`.

The checkpoint of the shortened log is written first, so that after a crash the log ends at either the old or the new
end offset.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from penstock.log import checkpoint as checkpoints
from penstock.log.epochs import EpochHistory
from penstock.log.index import Indexes
from penstock.log.maintenance import LogMaintenance, MaintenanceOwner, maintenance_lock, pop_dropped, wait_for_creation
from penstock.log.partition_log import PartitionLog
from penstock.log.scan import BadBatch, scan_headers
from penstock.log.segment import Segment, SegmentRow
from penstock.log.transient_errors import TRANSIENT_ERRORS, sync_directory, wait_for_descriptor
from penstock.log.types import BatchState, CorruptLog, LogFull
from penstock.runtime.files import Files

PINNED_POLL_S = 0.01
PINNED_WAIT_S = 10.0
"""Maximum wait for readers that send from the segment; after that the kept part is copied to a new file."""
COPY_BYTES = 1 << 20


async def truncate(maintenance: LogMaintenance, log: PartitionLog, offset: int) -> None:
    """Remove all batches with offsets at or after `offset`. The caller prevents appends.

    Raises LogFull, which leaves the log unchanged; CorruptLog, LogDirFailed, OSError.
    """
    async with maintenance_lock(log):
        await log.flush()
        if not log.segments or offset < log.segments[0].base_offset:
            await empty_log(maintenance, log, offset)
            return
        with keep_log_on_failure(log):
            location = log.reader.locate(offset)
        if log.closed or location is None:
            return
        segment, position = location
        truncation = Truncation(maintenance.owner, log, segment, position, offset)
        try:
            with keep_log_on_failure(log):
                await maintenance.run(truncation.prepare)
                await wait_until_unpinned(
                    log.segments[log.segments.index(segment) :]
                )  # readers that came meanwhile, too
                if segment.pins:
                    await maintenance.run(truncation.copy_kept)
        except LogFull:
            # The checkpoint may have been written: it covers less than the log has, which is safe.
            log.durable_start_offset = min(log.durable_start_offset, truncation.end_offset)
            maintenance.mark_dirty(log)
            raise
        later = log.segments[log.segments.index(segment) + 1 :]  # retention may have rolled the log
        detach_segments(maintenance, log, segment, later)
        truncation.install()
        await maintenance.run(truncation.truncate_files, later)


async def truncate_fully(maintenance: LogMaintenance, log: PartitionLog, offset: int) -> None:
    """Remove all batches; the next batch gets `offset`. The caller prevents appends.

    Raises LogFull, which leaves the log unchanged; LogDirFailed, OSError.
    """
    async with maintenance_lock(log):
        await wait_for_creation(log)
        await log.flush()
        if not log.closed:
            await empty_log(maintenance, log, offset)


async def empty_log(maintenance: LogMaintenance, log: PartitionLog, offset: int) -> None:
    """Empty a log whose next batch gets `offset`. The caller holds the log's lock.

    Raises LogFull, which leaves the log unchanged; LogDirFailed, OSError.
    """
    assert offset >= 0, f"{log} cannot start at offset {offset}"
    owner = maintenance.owner
    log.sequence += 1
    compacted_until = min(log.compacted_until, offset)
    emptied = checkpoints.Checkpoint(log.sequence, offset, offset, [], [], b"", compacted_until, log.gaps)
    with keep_log_on_failure(log):
        await maintenance.run(maintenance.store_checkpoint, log.directory, [], emptied)
    await wait_until_unpinned(log.segments)
    removed = [*pop_dropped(log), *log.segments]
    log.reader.clear_locations()
    for one in removed:
        owner.indexes.forget(one)
        maintenance.close_when_unpinned(one)
    log.segments.clear()
    log.unindexed.clear()
    log.active, log.size_bytes = None, 0
    log.start_offset = log.end_offset = log.flushed_offset = log.durable_start_offset = offset
    log.truncations += 1
    log.uncheckpointed_bytes, log.dirty_since_ms = 0, None
    log.epochs.truncate(0)
    log.latest_epoch, log.compacted_until = -1, compacted_until
    log.state.restore(None)
    await maintenance.run(remove_segments, owner.files, log.directory, removed)


@contextlib.contextmanager
def keep_log_on_failure(log: PartitionLog) -> Iterator[None]:
    """Convert transient OSErrors to LogFull, around steps that leave the log unchanged if they fail."""
    try:
        yield
    except OSError as e:
        if e.errno not in TRANSIENT_ERRORS:
            raise
        raise LogFull(f'cannot truncate "{log.directory}" now: {e}') from e


async def wait_until_unpinned(segments: Sequence[Segment]) -> None:
    """Wait until no reader sends from the segments, at most `PINNED_WAIT_S`: a reader may have stalled."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PINNED_WAIT_S
    while any(s.pins for s in segments) and loop.time() < until_s:  # noqa: ASYNC110 - readers are many, cuts rare
        await asyncio.sleep(PINNED_POLL_S)


def remove_segments(files: Files, directory: str, segments: list[Segment]) -> None:
    """Delete segment files, newest first, so that a crash leaves no hole. Runs in a thread."""
    for segment in reversed(segments):
        for path in (segment.path, segment.index_path, segment.time_index_path):
            if files.exists(path):
                files.remove(path)
    sync_directory(files, directory)


def detach_segments(maintenance: LogMaintenance, log: PartitionLog, segment: Segment, later: list[Segment]) -> None:
    """Drop locations, indexes and open files of the segments that are truncated or removed."""
    log.reader.clear_locations()
    for one in [segment, *later]:
        maintenance.owner.indexes.forget(one)
        maintenance.close_when_unpinned(one)
    log.unindexed[:] = [s for s in log.unindexed if s is not segment and s not in later]
    del log.segments[len(log.segments) - len(later) :]


class Truncation:
    """One truncation: the shortened segment, and the state as of the new end. `install` applies it to the log."""

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
        self.copied_path: str | None = None
        log.sequence += 1  # also for an attempt that fails: sequences are unique
        self.sequence = log.sequence

    def prepare(self) -> None:
        """Read the kept part of the segment, replay the state and write the checkpoint. Runs in a thread."""
        kept = self.kept
        interval = self.log.config.index_interval_bytes
        file = self.files.open(self.segment.path, read_only=True)
        try:
            for position, header, _ in scan_headers(file, 0, self.position, kept.base_offset):
                kept.add_batch(position, header.base_offset, header.max_timestamp_ms, interval)
                kept.size = position + header.size_bytes
                kept.end_offset = header.last_offset + 1
            if self.position < self.segment.size:
                first_removed = next(iter(scan_headers(file, self.position, self.segment.size, kept.end_offset)))
                self.end_offset = min(self.offset, first_removed.header.base_offset)
        except BadBatch as e:
            raise CorruptLog(f"{self.segment.path}: {e}") from e
        finally:
            file.close()
        kept.end_offset = self.end_offset
        self.epochs.truncate(self.end_offset)
        self.replay()
        self.snapshot = self.state.snapshot() if self.end_offset else b""
        self.write_checkpoint()

    def replay(self) -> None:
        """Restore the state as of the new end, from the last checkpoint if it is early enough.

        Otherwise the log is replayed from its first segment; state that only dropped segments contained is lost then.
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
            start = start_position if first is not None and base_offset == first.base_offset else 0
            self.replay_segment(segment, start, size, start_offset)

    def replay_segment(self, segment: Segment, position: int, size: int, start_offset: int) -> None:
        """Replay a segment's batches from `position` up to `size`. Raises CorruptLog."""
        file = self.files.open(segment.path, read_only=True)
        try:
            for at, header, _ in scan_headers(file, position, size, start_offset if position else 0):
                if header.is_control:
                    self.state.replay_control(header, file.read_at(at, header.size_bytes))
                else:
                    self.state.replay(header)
        except (BadBatch, ValueError) as e:
            raise CorruptLog(f"{segment.path}: {e}") from e
        finally:
            file.close()

    def write_checkpoint(self) -> None:
        """Write the checkpoint of the shortened log; its index files are written later and rebuilt if missing."""
        log = self.log
        rows: list[SegmentRow] = [s.to_row() for s in log.segments if s.base_offset < self.segment.base_offset]
        rows.append(self.kept.to_row())
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

    def copy_kept(self) -> None:
        """Copy the kept part to a new file, because readers still send from the old one. Runs in a thread."""
        target = f"{self.kept.path}.tmp"
        try:
            copy_head(self.files, self.segment.path, target, self.kept.size)
        except OSError:
            with contextlib.suppress(OSError):
                self.files.remove(target)
            raise
        self.copied_path = target

    def install(self) -> None:
        """Make the shortened segment the log's active one. Runs on the event loop."""
        log, kept = self.log, self.kept
        assert log.segments[-1] is self.segment, f"{self.segment} is not the last segment of {log}"
        assert kept.base_offset <= self.end_offset <= min(self.offset, log.end_offset), (
            f"{log} truncated to {self.offset} would end at {self.end_offset}"
        )
        log.segments[-1] = kept
        log.active = kept
        log.end_offset = log.flushed_offset = self.end_offset
        log.truncations += 1
        log.start_offset = min(log.start_offset, self.end_offset)
        log.durable_start_offset = min(log.durable_start_offset, self.end_offset)
        log.size_bytes = sum(s.size for s in log.segments)
        log.epochs, log.latest_epoch = self.epochs, self.epochs.latest
        log.state.restore(self.snapshot or None)
        log.compacted_until = min(log.compacted_until, self.end_offset)

    def truncate_files(self, later: list[Segment]) -> None:
        """Remove the truncated bytes and later segments. Runs in a thread."""
        remove_segments(self.files, self.log.directory, later)
        if self.copied_path is not None:
            self.files.rename(self.copied_path, self.kept.path)
            sync_directory(self.files, self.log.directory)
            return
        file = wait_for_descriptor(self.files.open, self.kept.path)
        try:
            file.truncate(self.kept.size)
            file.sync()
        finally:
            file.close()


def copy_head(files: Files, path: str, target: str, size_bytes: int) -> None:
    """Copy the first `size_bytes` of a file and sync the copy, but not its directory."""
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
