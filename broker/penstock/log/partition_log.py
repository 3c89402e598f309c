"""One partition's log: appends, reads, and what it tells everybody about itself. Runs on the event loop.

`replica` appends and reads; `LogDir` makes logs, and is their `Host`: it flushes them, checkpoints them, drops their
old segments. Only searches by time may be called in another thread.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import NoReturn
from uuid import UUID

from penstock.config.values import FOREVER, TopicConfig
from penstock.log.batch_times import batch_times
from penstock.log.checkpoint import Checkpoint
from penstock.log.epochs import EpochHistory
from penstock.log.flush_progress import FlushProgress
from penstock.log.flusher import FlushWork
from penstock.log.host import Host
from penstock.log.index import Indexes
from penstock.log.index_files import load_indexes
from penstock.log.reading import LogReader
from penstock.log.search import LogSearch
from penstock.log.segment import WIDE_GAP, Segment
from penstock.log.space import NO_SPACE, PASSING
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
"""Bytes appended after which a log is checkpointed: recovery reads at most about this much of it."""


class PartitionLog:
    """See the module. Offsets: `start_offset` is the first that readers may ask for, `end_offset` the next to be
    assigned; all below `flushed_offset` is on disk, and a crash does not bring back what is below
    `durable_start_offset`."""

    __slots__ = (
        "active", "checkpointed_offset", "closed", "compacted_until", "config", "created", "creation", "cuts",
        "directory", "dirty_since_ms", "dropped", "durable_start_offset", "end_offset", "epochs", "failed",
        "flush_requested", "flushed_offset", "gaps", "host", "latest_epoch", "maintenance", "max_age_ms", "on_failed",
        "on_flushed", "on_start_moved", "partition", "progress", "reader", "refusal", "retention_limit",
        "segments", "sequence", "size_bytes", "start_offset", "state", "topic_id", "topic_name",
        "torn_bytes", "uncheckpointed_bytes", "unflushed_records", "unindexed",
    )  # fmt: skip

    def __init__(
        self,
        host: Host[PartitionLog],
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
        self.end_offset = self.flushed_offset = self.checkpointed_offset = checkpoint.end_offset
        rows = checkpoint.segments
        self.segments = [Segment.from_row(directory, row, sealed=row is not rows[-1]) for row in rows]
        self.active: Segment | None = self.segments[-1] if rows else None
        self.dropped: list[Segment] = []
        """Segments that are none any more, and whose files go when a checkpoint without them is on disk."""
        self.size_bytes = sum(row.size_bytes for row in rows)
        self.cuts = 0
        """Counts truncations: a flush that began before one says nothing of what came after it."""
        self.epochs = EpochHistory(checkpoint.epochs)
        self.latest_epoch = self.epochs.latest
        self.compacted_until = checkpoint.compacted_until
        self.gaps = checkpoint.gaps
        self.reader = LogReader(host.pool, host.indexes, self.segments)
        self.failed: Exception | None = None
        self.closed = False
        self.creation: asyncio.Future[None] | None = None
        """Done when what the first append needs has been made, or could not be; None where nothing is being made."""
        self.refusal: Exception | None = None
        """Why the last creation came to nothing; the next append is refused for it."""
        self.torn_bytes = 0
        """Bytes behind the last sound batch that opening cut off."""
        self.on_flushed: Callable[[PartitionLog], None] = ignore
        self.on_failed: Callable[[PartitionLog], None] = ignore
        self.on_start_moved: Callable[[PartitionLog], None] = ignore
        self.retention_limit: Callable[[], int] = self.flushed_end
        """The offset below which segments may be dropped: the high watermark, as far as this log knows it."""
        self.progress = FlushProgress(directory)
        self.unindexed: list[Segment] = []
        """Sealed segments whose indexes have not been written yet."""
        self.flush_requested = False
        self.unflushed_records = self.uncheckpointed_bytes = 0
        self.dirty_since_ms: int | None = None
        self.maintenance: asyncio.Lock | None = None
        self.take_config(config)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.directory} {self.start_offset}..{self.end_offset}>"

    def flushed_end(self) -> int:
        return self.flushed_offset

    def take_config(self, config: TopicConfig) -> None:
        self.config = config
        jitter_ms = config.segment_jitter_ms
        shortened = random.randrange(jitter_ms) if jitter_ms > 0 else 0  # noqa: S311
        self.max_age_ms = max(config.segment_ms - shortened, 1)
        if config.cleanup_compact:
            self.max_age_ms = min(self.max_age_ms, config.max_compaction_lag_ms)

    def reconfigure(self, config: TopicConfig) -> None:
        """Takes new settings of the topic."""
        self.take_config(config)
        self.host.note_rolled(self)
        if self.unflushed_records:
            self.note_unflushed()

    # Appending

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int) -> None:
        """Appends a batch that was validated and stamped with `end_offset`, or more after `permit_gaps`.

        Raises LogFull (nothing of it was kept), LogDirFailed.
        """
        if self.failed is not None:
            self.check_usable()
        base_offset, size = header.base_offset, len(batch)
        if base_offset != self.end_offset:
            assert base_offset > self.end_offset, (
                f"offset {base_offset} is behind {self.end_offset} in {self.directory}"
            )
            assert self.gaps, (
                f"offset {base_offset} is not {self.end_offset} in {self.directory}, which may have no gaps"
            )
        end_offset = base_offset + header.last_offset_delta + 1
        active = self.active
        if active is None or active.must_end(size, end_offset, header.max_timestamp_ms, self.config, self.max_age_ms):
            end = self.end_offset
            active = self.roll(base_offset if base_offset - end > WIDE_GAP else end)
        file = active.file
        if file is None or active.indexes is None:
            file = self.open_active(active)
        try:
            file.append(batch)
        except OSError as e:
            self.append_failed(active, file, e)
        position, timestamp_ms = active.size, header.max_timestamp_ms
        if position >= active.indexed_until or timestamp_ms > active.max_timestamp_ms:
            active.note(position, base_offset, timestamp_ms, self.config.index_interval_bytes)
        active.size = position + size
        active.touched = active.unsynced = True
        active.end_offset = self.end_offset = end_offset
        self.size_bytes += size
        if leader_epoch > self.latest_epoch:
            self.epochs.assign(leader_epoch, base_offset)
            self.latest_epoch = leader_epoch
        self.uncheckpointed_bytes += size
        if self.dirty_since_ms is None:
            self.host.note_dirty(self)
        elif self.uncheckpointed_bytes >= CHECKPOINT_BYTES:
            self.host.checkpoint_soon(self)
        self.unflushed_records += header.record_count
        if not self.flush_requested:
            self.note_unflushed()

    def prepare(self) -> asyncio.Future[None] | None:
        """Has made, off the event loop, what a log without a segment needs for its first append; None where there is
        nothing to wait for. An append that was not prepared makes everything itself: right, but other files that are
        being synced may hold the loop up. Wait with `asyncio.wait`, which does not cancel it for others."""
        if self.active is not None or self.closed or self.failed is not None:
            return None
        if self.creation is None:
            self.refusal = None
            self.creation = self.host.create(self)
        return self.creation

    async def prepared(self) -> None:
        """As above. Raises LogFull, LogDirFailed."""
        made = self.prepare()
        if made is not None:
            await asyncio.wait([made])
        self.check_usable()
        self.check_refusal()

    def check_refusal(self) -> None:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise LogFull(f"{self.directory} cannot be made: {refusal}") from refusal

    def begin(self, segment: Segment) -> None:
        """Takes over a first segment whose file was made."""
        assert not self.segments, f"{self.directory} has a segment"
        self.progress.directory_unsynced = True
        self.segments.append(segment)
        self.active = segment

    def roll(self, base_offset: int) -> Segment:
        """Begins a new segment. What must be synced for it to count is left to the flusher."""
        if self.refusal is not None:
            self.check_refusal()
        segment = Segment(self.directory, base_offset)
        segment.indexes = Indexes()
        old = self.active
        try:
            if not self.created:
                self.host.files.make_dir(self.directory)
                self.note_directory()
            if old is not None and old.indexes is None:
                old.indexes = load_indexes(self.host.files, old)
            self.host.pool.open(segment, create=True)
        except OSError as e:
            if e.errno in PASSING:
                raise LogFull(f"a new segment cannot be made in {self.directory}: {e}") from e
            self.stop(e)
        except CorruptLog as e:
            self.stop_alone(e)
        if old is not None:
            old.seal(self.host.clock.wall_ms())
            self.unindexed.append(old)
            if old.unsynced:
                self.progress.sealed.append(old)
        self.progress.directory_unsynced = True
        self.segments.append(segment)
        self.active = segment
        if old is not None:
            self.host.note_rolled(self)
        return segment

    def note_directory(self) -> None:
        """The log has a directory, whose name need not be on disk yet."""
        self.created = self.progress.parent_unsynced = True
        self.host.note_created(self)

    def open_active(self, active: Segment) -> File:
        """The active segment's file, with the indexes that appends go on with."""
        try:
            if active.indexes is None:
                active.indexes = load_indexes(self.host.files, active)
            return self.host.pool.open(active)
        except OSError as e:
            if e.errno in PASSING:
                raise LogFull(f"{self.directory} cannot be opened: {e}") from e
            self.stop(e)
        except CorruptLog as e:
            self.stop_alone(e)

    def append_failed(self, active: Segment, file: File, error: OSError) -> NoReturn:
        """Takes back what was written of a batch."""
        if error.errno in NO_SPACE:
            try:
                file.truncate(active.size)
            except OSError as e:
                self.stop(e)
            raise LogFull(f"no space is left in {self.directory}: delete data or add space") from error
        self.stop(error)

    def stop(self, error: OSError) -> NoReturn:
        self.host.fail(error)
        raise LogDirFailed(f"{self.directory}: {error}") from error

    def stop_alone(self, error: CorruptLog) -> NoReturn:
        """Takes this log alone out of use: the other logs of the directory are none the worse for it."""
        self.fail(error)
        raise LogDirFailed(str(error)) from error

    # Flushing

    def note_unflushed(self) -> None:
        config = self.config
        if self.unflushed_records >= config.flush_messages:
            self.host.request_flush(self)
        elif config.flush_ms != FOREVER and self.progress.timer is None:
            loop = asyncio.get_running_loop()
            self.progress.timer = loop.call_later(config.flush_ms / 1000, self.on_flush_timer)

    def on_flush_timer(self) -> None:
        self.progress.timer = None
        if self.unflushed_records and not self.closed:
            self.host.request_flush(self)

    def begin_flush(self) -> FlushWork:
        """See `flusher.Flushable`."""
        self.flush_requested = False
        self.unflushed_records = 0
        progress, active = self.progress, self.active
        if progress.timer is not None:
            progress.cancel_timer()
        position = active.size if active is not None else 0
        files, directories = progress.files(active), progress.directories()
        return FlushWork(self, self.end_offset, active, position, len(progress.sealed), files, directories, self.cuts)

    def end_flush(self, work: FlushWork) -> None:
        """See `flusher.Flushable`."""
        if work.cuts != self.cuts:
            return
        progress, active = self.progress, self.active
        progress.synced(work.sealed, active, work.position, active is not work.active, bool(work.directories))
        if self.reader.places and active is not None and active is work.active:
            self.reader.remember(work.end_offset, active, work.position)
        if work.end_offset > self.flushed_offset:
            self.flushed_offset = work.end_offset
        if progress.waiters:
            progress.settle(self.flushed_offset, None)
        self.on_flushed(self)

    async def flush(self) -> None:
        """Returns when all that was appended so far is on disk; raises LogDirFailed."""
        self.check_usable()
        if self.flushed_offset < self.end_offset:
            done = self.progress.wait(self.end_offset)
            self.host.request_flush(self)
            await done

    def fail(self, error: Exception) -> None:
        """The log directory has stopped: nothing can be appended any more, and no flush will ever end."""
        if self.failed is None:
            self.failed = error
            self.progress.settle(self.flushed_offset, error)
            self.on_failed(self)

    def check_usable(self) -> None:
        if self.failed is not None:
            raise LogDirFailed(f"{self.directory}: {self.failed}")

    # Reading

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool) -> LogSlice | None:
        """Whole batches from the one that holds `offset`, of at most `max_bytes`, below `limit_offset`; None for none.

        With `at_least_one` the first batch may be larger. The caller releases the slice.
        Raises OffsetOutOfRange, CorruptLog, LogDirFailed.
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not between {self.start_offset} and {end_offset} in {self.directory}"
            )
        if limit_offset > end_offset:
            limit_offset = end_offset
        if offset >= limit_offset or self.closed:
            return None
        try:
            return self.reader.read(offset, max_bytes, limit_offset, at_least_one)
        except OSError as e:
            raise LogDirFailed(f"{self.directory} cannot be read: {e}") from e

    # Searching: in any thread, as it may wait for the disk

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> LogTimestamp | None:
        """The first record below `limit_offset` whose timestamp is at least that. Raises CorruptLog, LogError."""
        return self.searched().first(timestamp_ms, limit_offset)

    def offset_of_max_timestamp(self, limit_offset: int) -> LogTimestamp | None:
        """The first record that has the largest timestamp below `limit_offset` (KIP-734). As above."""
        return self.searched().largest(limit_offset)

    def batch_times(self, offsets: Sequence[int]) -> list[int | None]:
        """By offset, the largest timestamp, in ms since 1970, of the batch that holds it; None where unknown."""
        return batch_times(self.searched(), offsets)

    def searched(self) -> LogSearch:
        return LogSearch(self.host.files, self.segments, self.start_offset)

    # Epochs

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(largest epoch up to `epoch` that wrote, first offset of the next one or the log's end); (-1, -1) unknown."""
        return self.epochs.end_offset(epoch, self.end_offset)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch that wrote `offset`, or wrote last if nobody did; -1 where the log never had records."""
        return self.epochs.at(offset)

    # Cutting

    async def delete_records_before(self, offset: int) -> None:
        """Moves the start of the log to `offset`, durably. Raises OffsetOutOfRange, LogDirFailed."""
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is past the end, {self.end_offset}, of {self.directory}")
        self.check_usable()
        if offset <= self.durable_start_offset:
            return
        self.move_start(offset)
        await self.host.advance_start(self)

    def move_start(self, offset: int) -> None:
        """Readers find nothing below `offset` from now on; on disk that is when `durable_start_offset` says so.
        Retention, or somebody else's call, may have moved it further."""
        if offset > self.start_offset:
            self.start_offset = offset
            self.on_start_moved(self)

    async def permit_gaps(self) -> None:
        """From now on batches may leave out offsets, which recovery else takes for damage: for who follows a leader
        whose log was compacted. Returns when the permission is on disk."""
        if not self.gaps:
            if not self.created:
                await self.prepared()
            self.gaps = True
            await self.host.advance_start(self)

    async def truncate_to(self, offset: int) -> None:
        """Removes all batches that hold `offset` or later ones, durably. Raises LogError, LogDirFailed."""
        if offset >= self.end_offset:
            return
        await self.host.truncate(self, max(offset, 0))

    async def start_over(self, offset: int) -> None:
        """Removes everything, durably: the log is empty then, and begins at `offset`. Raises LogError, LogDirFailed."""
        self.check_usable()
        if not self.created:
            await self.prepared()
        await self.host.start_over(self, offset)

    def detach(self) -> None:
        """Drop the references to the role that used this log: neither may keep the other alive."""
        self.on_flushed = self.on_failed = self.on_start_moved = ignore
        self.retention_limit = nothing

    async def close(self) -> None:
        """Flushes, writes a checkpoint and gives the files back; the log cannot be used any more."""
        await self.host.close_log(self)

    async def delete(self) -> None:
        """Removes the partition's directory, its files after file.delete.delay.ms."""
        await self.host.delete(self)


def ignore(log: PartitionLog) -> None:
    """Listens to nothing."""


def nothing() -> int:
    """The retention limit of a closed log."""
    return 0
