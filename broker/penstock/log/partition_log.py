"""The log of one partition: appends, reads and notifications. Runs on the event loop.

`replica` appends and reads. `LogDirectory` creates logs and implements `LogHost`: it flushes and checkpoints logs and
drops their old segments. Only searches by timestamp may run in other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn
from uuid import UUID

from penstock.config.topic import FOREVER, TopicConfig
from penstock.log.batch_times import batch_times
from penstock.log.checkpoint import Checkpoint
from penstock.log.epochs import EpochHistory
from penstock.log.flush_progress import FlushProgress
from penstock.log.flusher import FlushWork
from penstock.log.host import LogHost
from penstock.log.index import Indexes
from penstock.log.index_files import load_indexes
from penstock.log.reading import LogReader
from penstock.log.search import LogSearch
from penstock.log.segment import MAX_NAME_GAP, Segment
from penstock.log.transient_errors import NO_SPACE, TRANSIENT_ERRORS
from penstock.log.types import (
    BatchState,
    CorruptLog,
    LogDirFailed,
    LogFull,
    LogSlice,
    LogTimestamp,
    OffsetOutOfRange,
)
from penstock.runtime.files import File
from penstock.wire.batch import BatchHeader

CHECKPOINT_BYTES = 64 << 20
"""Bytes appended after which a log is checkpointed; bounds what recovery reads of it."""


class PartitionLog:
    """A partition's log. `start_offset` is the first readable offset, `end_offset` the next to be assigned.

    All records below `flushed_offset` are on disk; a crash does not bring back records below `durable_start_offset`.
    """

    __slots__ = (
        "active", "closed", "compacted_until", "config", "created", "creation", "creation_error",
        "directory", "dirty_since_ms", "dropped", "durable_start_offset", "end_offset", "epochs", "failed",
        "flush_requested", "flushed_offset", "gaps", "host", "latest_epoch", "maintenance", "max_age_ms", "on_failed",
        "on_flushed", "on_start_moved", "partition", "progress", "reader", "retention_limit", "segments", "sequence",
        "size_bytes", "start_offset", "state", "topic_id", "topic_name", "torn_bytes", "truncations",
        "uncheckpointed_bytes", "unflushed_records", "unindexed",
    )  # fmt: skip

    def __init__(
        self,
        host: LogHost[PartitionLog],
        directory: str,
        topic_id: UUID,
        topic_name: str,
        partition: int,
        config: TopicConfig,
        state: BatchState,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.host, self.directory = host, directory
        self.topic_id, self.topic_name, self.partition = topic_id, topic_name, partition
        self.state = state
        self.created = checkpoint is not None
        if checkpoint is None:
            checkpoint = Checkpoint(0, 0, 0, [], [], b"")
        self.sequence = checkpoint.sequence
        self.start_offset = self.durable_start_offset = checkpoint.start_offset
        self.end_offset = self.flushed_offset = checkpoint.end_offset
        rows = checkpoint.segments
        self.segments = [Segment.from_row(directory, row, sealed=row is not rows[-1]) for row in rows]
        self.active: Segment | None = self.segments[-1] if rows else None
        self.dropped: list[Segment] = []
        """Segments removed from the log; their files are deleted after a checkpoint without them."""
        self.size_bytes = sum(row.size_bytes for row in rows)
        self.truncations = 0
        """Number of truncations: a flush that started before one says nothing about the log after it."""
        self.epochs = EpochHistory(checkpoint.epochs)
        self.latest_epoch = self.epochs.latest
        self.compacted_until = checkpoint.compacted_until
        self.gaps = checkpoint.gaps
        self.reader = LogReader(host.pool, host.indexes, self.segments)
        self.failed: Exception | None = None
        self.closed = False
        self.creation: asyncio.Future[None] | None = None
        """Completes when the files for the first append exist or their creation failed; None if not requested."""
        self.creation_error: Exception | None = None
        """Why the last creation failed; raised by the next append."""
        self.torn_bytes = 0
        """Bytes after the last valid batch that recovery truncated."""
        self.on_flushed: Callable[[PartitionLog], None] = ignore_event
        self.on_failed: Callable[[PartitionLog], None] = ignore_event
        self.on_start_moved: Callable[[PartitionLog], None] = ignore_event
        self.retention_limit: Callable[[], int] = self.default_retention_limit
        """Offset below which segments may be dropped: the high watermark as known to this log."""
        self.progress = FlushProgress(directory)
        self.unindexed: list[Segment] = []
        """Sealed segments whose indexes have not been written yet."""
        self.flush_requested = False
        self.unflushed_records = self.uncheckpointed_bytes = 0
        self.dirty_since_ms: int | None = None
        self.maintenance: asyncio.Lock | None = None
        self.apply_config(config)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.directory} {self.start_offset}..{self.end_offset}>"

    def default_retention_limit(self) -> int:
        """Return `flushed_offset`, the default retention limit."""
        return self.flushed_offset

    def apply_config(self, config: TopicConfig) -> None:
        """Store the topic's settings and the segment age with its random jitter."""
        self.config = config
        jitter_ms = config.segment_jitter_ms
        shortened = self.host.random.randrange(jitter_ms) if jitter_ms > 0 else 0
        self.max_age_ms = max(config.segment_ms - shortened, 1)
        if config.cleanup_compact:
            self.max_age_ms = min(self.max_age_ms, config.max_compaction_lag_ms)

    def reconfigure(self, config: TopicConfig) -> None:
        """Apply new settings of the topic."""
        self.apply_config(config)
        self.host.on_rolled(self)
        if self.unflushed_records:
            self.schedule_flush()

    # Appending

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int) -> None:
        """Append a validated batch whose base offset is `end_offset`, or higher after `permit_gaps`.

        Raises LogFull (nothing of the batch was kept), LogDirFailed.
        """
        if self.failed is not None:
            self.check_usable()
        base_offset, size = header.base_offset, len(batch)
        if base_offset != self.end_offset:
            assert base_offset > self.end_offset, (
                f"offset {base_offset} is behind {self.end_offset} in {self.directory}"
            )
            assert self.gaps, (
                f"offset {base_offset} is not {self.end_offset} in {self.directory}, where gaps are not permitted"
            )
        end_offset = base_offset + header.last_offset_delta + 1
        assert end_offset > base_offset, f"the batch at {base_offset} of {self.directory} ends at {end_offset}"
        active = self.active
        if active is None or active.must_roll(size, end_offset, header.max_timestamp_ms, self.config, self.max_age_ms):
            end = self.end_offset
            active = self.roll(base_offset if base_offset - end > MAX_NAME_GAP else end)
        file = active.file
        if file is None or active.indexes is None:
            file = self.open_active(active)
        try:
            file.append(batch)
        except OSError as e:
            self.append_failed(active, file, e)
        position, timestamp_ms = active.size, header.max_timestamp_ms
        if position >= active.indexed_until or timestamp_ms > active.max_timestamp_ms:
            active.add_batch(position, base_offset, timestamp_ms, self.config.index_interval_bytes)
        active.size = position + size
        active.recently_used = active.unsynced = True
        active.end_offset = self.end_offset = end_offset
        self.size_bytes += size
        if leader_epoch > self.latest_epoch:
            self.epochs.assign(leader_epoch, base_offset)
            self.latest_epoch = leader_epoch
        self.uncheckpointed_bytes += size
        if self.dirty_since_ms is None:
            self.host.mark_dirty(self)
        elif self.uncheckpointed_bytes >= CHECKPOINT_BYTES:
            self.host.start_checkpoint(self)
        self.unflushed_records += header.record_count
        if not self.flush_requested:
            self.schedule_flush()

    def prepare(self) -> asyncio.Future[None] | None:
        """Create, off the event loop, the files that the first append needs; return a future, None if not needed.

        Without it the append creates the files itself, which can block the loop while other files are being synced.
        Wait with `asyncio.wait`, which does not cancel the future for other waiters.
        """
        if self.active is not None or self.closed or self.failed is not None:
            return None
        if self.creation is None:
            self.creation_error = None
            self.creation = self.host.create_files(self)
        return self.creation

    async def ensure_prepared(self) -> None:
        """Wait until the files for the first append exist. Raises LogFull, LogDirFailed."""
        creation = self.prepare()
        if creation is not None:
            await asyncio.wait([creation])
        self.check_usable()
        self.raise_creation_error()

    def raise_creation_error(self) -> None:
        """Raise LogFull if the last creation failed."""
        creation_error, self.creation_error = self.creation_error, None
        if creation_error is not None:
            raise LogFull(f'cannot create "{self.directory}": {creation_error}') from creation_error

    def add_first_segment(self, segment: Segment) -> None:
        """Add the first segment, whose file was created."""
        assert not self.segments, f"{self.directory} already has a segment"
        self.progress.directory_unsynced = True
        self.segments.append(segment)
        self.active = segment

    def roll(self, base_offset: int) -> Segment:
        """Start a new segment; the flusher syncs it. Raises LogFull, LogDirFailed."""
        if self.creation_error is not None:
            self.raise_creation_error()
        segment = Segment(self.directory, base_offset)
        segment.indexes = Indexes()
        old = self.active
        assert old is (self.segments[-1] if self.segments else None), f"{old} is not the last segment of {self}"
        try:
            if not self.created:
                self.host.files.make_dir(self.directory)
                self.mark_created()
            if old is not None and old.indexes is None:
                old.indexes = load_indexes(self.host.files, old)
            self.host.pool.open(segment, create=True)
        except OSError as e:
            if e.errno in TRANSIENT_ERRORS:
                raise LogFull(f'cannot create a segment in "{self.directory}": {e}') from e
            self.fail_directory(e)
        except CorruptLog as e:
            self.fail_log(e)
        if old is not None:
            old.seal(self.host.clock.wall_ms())
            self.unindexed.append(old)
            if old.unsynced:
                self.progress.sealed.append(old)
        self.progress.directory_unsynced = True
        self.segments.append(segment)
        self.active = segment
        if old is not None:
            self.host.on_rolled(self)
        return segment

    def mark_created(self) -> None:
        """Record that the log's directory exists; its name may not be synced yet."""
        self.created = self.progress.parent_unsynced = True
        self.host.on_created(self)

    def open_active(self, active: Segment) -> File:
        """Return the active segment's file, with its indexes loaded for appends."""
        try:
            if active.indexes is None:
                active.indexes = load_indexes(self.host.files, active)
            return self.host.pool.open(active)
        except OSError as e:
            if e.errno in TRANSIENT_ERRORS:
                raise LogFull(f'cannot open "{self.directory}": {e}') from e
            self.fail_directory(e)
        except CorruptLog as e:
            self.fail_log(e)

    def append_failed(self, active: Segment, file: File, error: OSError) -> NoReturn:
        """Undo a partial write on a full disk, else stop the directory. Raises LogFull, LogDirFailed."""
        if error.errno in NO_SPACE:
            try:
                file.truncate(active.size)
            except OSError as e:
                self.fail_directory(e)
            raise LogFull(f'no space left in "{self.directory}"; delete data or add space') from error
        self.fail_directory(error)

    def fail_directory(self, error: OSError) -> NoReturn:
        """Stop the whole log directory and raise LogDirFailed."""
        self.host.fail(error)
        raise LogDirFailed(f"{self.directory}: {error}") from error

    def fail_log(self, error: CorruptLog) -> NoReturn:
        """Stop this log only and raise LogDirFailed; other logs of the directory continue."""
        self.fail(error)
        raise LogDirFailed(str(error)) from error

    # Flushing

    def schedule_flush(self) -> None:
        """Request a flush, or start the flush timer, as `flush.messages` and `flush.ms` demand."""
        config = self.config
        if self.unflushed_records >= config.flush_messages:
            self.host.request_flush(self)
        elif config.flush_ms != FOREVER and self.progress.timer is None:
            loop = asyncio.get_running_loop()
            self.progress.timer = loop.call_later(config.flush_ms / 1000, self.on_flush_timer)

    def on_flush_timer(self) -> None:
        """Request a flush after `flush.ms`."""
        self.progress.timer = None
        if self.unflushed_records and not self.closed:
            self.host.request_flush(self)

    def start_flush(self) -> FlushWork:
        """Implement `Flushable`: return what was written and not synced yet."""
        self.flush_requested = False
        self.unflushed_records = 0
        progress, active = self.progress, self.active
        if progress.timer is not None:
            progress.cancel_timer()
        position = active.size if active is not None else 0
        files, directories = progress.files(active), progress.directories()
        return FlushWork(
            self, self.end_offset, active, position, len(progress.sealed), files, directories, self.truncations
        )

    def complete_flush(self, work: FlushWork) -> None:
        """Implement `Flushable`: advance `flushed_offset` and notify waiters."""
        if work.truncations != self.truncations:
            return
        assert work.end_offset <= self.end_offset, f"flushed up to {work.end_offset}, past the end of {self}"
        progress, active = self.progress, self.active
        progress.mark_synced(work.sealed, active, work.position, active is not work.active, bool(work.directories))
        if self.reader.locations and active is not None and active is work.active:
            self.reader.cache_location(work.end_offset, active, work.position)
        if work.end_offset > self.flushed_offset:
            self.flushed_offset = work.end_offset
        if progress.waiters:
            progress.complete_waiters(self.flushed_offset, None)
        self.on_flushed(self)

    async def flush(self) -> None:
        """Return when everything appended so far is on disk. Raises LogDirFailed."""
        self.check_usable()
        if self.flushed_offset < self.end_offset:
            done = self.progress.wait_for_flush(self.end_offset)
            self.host.request_flush(self)
            await done

    def fail(self, error: Exception) -> None:
        """Stop the log permanently: appends are refused and pending flushes fail."""
        if self.failed is None:
            self.failed = error
            self.progress.complete_waiters(self.flushed_offset, error)
            self.on_failed(self)

    def check_usable(self) -> None:
        """Raise LogDirFailed if the log has failed."""
        if self.failed is not None:
            raise LogDirFailed(f"{self.directory}: {self.failed}")

    # Reading

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool) -> LogSlice | None:
        """Return whole batches from the one that contains `offset`, below `limit_offset`; None if there are none.

        The slice has at most `max_bytes`; with `at_least_one`, its first batch may be larger. The caller releases the
        slice. Raises OffsetOutOfRange, CorruptLog, LogDirFailed.
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise OffsetOutOfRange(
                f'offset {offset} is out of range {self.start_offset} to {end_offset} in "{self.directory}"'
            )
        if limit_offset > end_offset:
            limit_offset = end_offset
        if offset >= limit_offset or self.closed:
            return None
        try:
            return self.reader.read(offset, max_bytes, limit_offset, at_least_one)
        except OSError as e:
            raise LogDirFailed(f'cannot read "{self.directory}": {e}') from e

    # Searches: in any thread, as they read the disk

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> LogTimestamp | None:
        """Return the first record below `limit_offset` at or after a timestamp. Raises CorruptLog, LogError."""
        return self.new_search().find_first(timestamp_ms, limit_offset)

    def offset_of_max_timestamp(self, limit_offset: int) -> LogTimestamp | None:
        """Return the first record with the largest timestamp below `limit_offset` (KIP-734).

        Raises CorruptLog, LogError.
        """
        return self.new_search().find_largest(limit_offset)

    def batch_times(self, offsets: Sequence[int]) -> list[int | None]:
        """Return by offset the largest timestamp (ms since 1970) of its batch; None if unknown."""
        return batch_times(self.new_search(), offsets)

    def new_search(self) -> LogSearch:
        """Return a search over the current segments."""
        return LogSearch(self.host.files, self.segments, self.start_offset)

    # Epochs

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch up to `epoch`, its end offset); (-1, -1) if unknown (KIP-101)."""
        return self.epochs.end_offset(epoch, self.end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch at `offset`, the latest epoch past the end; -1 if the log never had records."""
        return self.epochs.epoch_at(offset)

    # Truncation

    async def delete_records_before(self, offset: int) -> None:
        """Move the log's start to `offset`, durably. Raises OffsetOutOfRange, LogDirFailed."""
        if offset > self.end_offset:
            raise OffsetOutOfRange(f'offset {offset} is past the end offset {self.end_offset} of "{self.directory}"')
        self.check_usable()
        if offset <= self.durable_start_offset:
            return
        self.move_start(offset)
        await self.host.advance_start(self)

    def move_start(self, offset: int) -> None:
        """Move the start offset for readers; `durable_start_offset` follows once it is on disk.

        No effect if retention or another caller has already moved it further.
        """
        if offset > self.start_offset:
            self.start_offset = offset
            self.on_start_moved(self)

    async def permit_gaps(self) -> None:
        """Allow batches to skip offsets, for the follower of a compacted log; recovery otherwise treats gaps as damage.

        Returns when the permission is on disk.
        """
        if not self.gaps:
            if not self.created:
                await self.ensure_prepared()
            self.gaps = True
            await self.host.advance_start(self)

    async def truncate_to(self, offset: int) -> None:
        """Remove all batches with offsets at or after `offset`, durably. Raises LogError, LogDirFailed."""
        if offset >= self.end_offset:
            return
        await self.host.truncate(self, max(offset, 0))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all batches durably; the log then starts at `offset`. Raises LogError, LogDirFailed."""
        self.check_usable()
        if not self.created:
            await self.ensure_prepared()
        await self.host.truncate_fully_and_start_at(self, offset)

    def detach(self) -> None:
        """Drop the callbacks of the role that used this log, so that neither keeps the other alive."""
        self.on_flushed = self.on_failed = self.on_start_moved = ignore_event
        self.retention_limit = no_retention_limit

    async def close(self) -> None:
        """Flush, write a checkpoint and close the files."""
        await self.host.close_log(self)

    async def delete(self) -> None:
        """Remove the partition's directory; files are deleted after `file.delete.delay.ms`."""
        await self.host.delete(self)


def ignore_event(log: PartitionLog) -> None:
    """Ignore a notification."""


def no_retention_limit() -> int:
    """Return the retention limit of a closed log."""
    return 0
