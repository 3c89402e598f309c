"""The data directory of a broker: ownership, partitions, and the background work on their logs.

`node` creates it and calls `claim`, `recover` and `start`, in this order; `replica` opens logs. Recovery blocks and
runs before the broker serves; everything else runs on the event loop. Logs are opened on first use: until then, a
partition is one checkpoint in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Iterator
from random import Random
from typing import Any
from uuid import UUID

from penstock.config.topic import TopicConfig
from penstock.log import checkpoint as checkpoints
from penstock.log import opening
from penstock.log.capture import capture_checkpoint
from penstock.log.checkpoint import Key
from penstock.log.compaction.compactor import Compactor
from penstock.log.compaction.runner import CompactionRunner, ProcessRunner
from penstock.log.creation import LogCreations
from penstock.log.file_pool import DEFAULT_MAX_OPEN, FilePool
from penstock.log.flusher import Flusher
from penstock.log.index_files import IndexCache
from penstock.log.maintenance import LogMaintenance, pop_dropped
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import Retention
from penstock.log.truncation import truncate, truncate_fully
from penstock.log.types import BatchState, CorruptLog, LogBusy, LogDirFailed
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

CHECKPOINT_INTERVAL_S = 60.0
"""Interval of the check for logs to checkpoint."""
MIN_CHECKPOINT_BYTES = 1 << 20
"""Bytes after its last checkpoint from which a log is checkpointed; reading fewer again is cheaper."""
MAX_DIRTY_MS = 600_000
"""Maximum age of an append that is not covered by a checkpoint."""

logger = get_logger(__name__)


class LogDirectory:
    """The log directory. `was_unclean` is True if the previous broker process did not shut down cleanly.

    The constructor locks the directory. Raises DirectoryInUse, OSError.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        clock: Clock,
        broker_id: int,
        max_open_files: int = DEFAULT_MAX_OPEN,
        *,
        random: Random,
        new_id: Callable[[], UUID],
        retention_check_interval_ms: int = 1,
        on_failed: Callable[[Exception], None] | None = None,
        compaction: CompactionRunner | None = None,
        flusher: Callable[[Files, Callable[[Exception], None]], Flusher] = Flusher,
    ) -> None:
        self.files, self.path, self.clock = files, path.rstrip("/"), clock
        self.broker_id = broker_id
        self.random, self.new_id = random, new_id
        self.on_failed = on_failed
        self.pool = FilePool(files, max_open_files)
        self.indexes = IndexCache(files)
        self.flusher = flusher(files, self.fail)
        self.maintenance = LogMaintenance(self)
        self.retention = Retention(clock, self.start_dropping, retention_check_interval_ms)
        self.creations = LogCreations(self, self.maintenance)
        self.compactor = Compactor(self.maintenance, clock, compaction or ProcessRunner())
        self.new_state: Callable[[], BatchState]
        self.opened: opening.OpenedDirectory | None = None
        self.was_unclean = False
        self.recovered = False
        self.failed: Exception | None = None
        self.logs: dict[Key, PartitionLog] = {}
        self.stored: dict[Key, bytes] = {}
        """Encoded checkpoints of partitions that have data and are not open."""
        self.corrupt: dict[Key, CorruptLog] = {}
        """Partitions that cannot be opened, with the error."""
        self.torn_bytes: dict[Key, int] = {}
        """Bytes that recovery truncated, by partition."""
        self.topics: dict[UUID, set[int]] = {}
        """Partitions with data or an open log, by topic."""
        self.releasing: dict[Key, asyncio.Task[None]] = {}
        """Tasks that close logs while the broker runs; until they finish, the logs cannot be reopened."""
        self.dirty: dict[PartitionLog, None] = {}
        """Logs appended to since their last checkpoint."""
        self.checkpoint_timer: asyncio.TimerHandle | None = None
        self.deletions = 0
        self.closing = False
        self.pool.on_pressure = self.flush_dirty
        opening.lock_directory(files, self.path)

    @property
    def directory_id(self) -> UUID:
        """The directory's UUID, assigned once."""
        assert self.opened is not None, "the log directory was claimed"
        return self.opened.meta.directory_id

    def __iter__(self) -> Iterator[PartitionLog]:
        """Iterate over the open logs."""
        return iter(list(self.logs.values()))

    # Opening and closing

    def claim(self, cluster_id: str) -> None:
        """Check that the directory belongs to this broker and read its checkpoints. Raises WrongDirectory, OSError."""
        self.opened = opening.inspect_directory(self.files, self.path, cluster_id, self.broker_id, self.new_id)
        self.was_unclean = self.opened.was_unclean

    def recover(self, make_state: Callable[[], BatchState]) -> None:
        """Recover the partitions of a directory that was not shut down cleanly. Blocks.

        Partitions with damaged files are listed in `corrupt`. Raises OSError, RecoveryCancelled.
        """
        opened = self.opened
        assert opened is not None, "the log directory was claimed"
        opening.recover_all(self.files, self.path, opened, make_state, self.clock, self.flusher.sync_all)
        self.new_state = make_state
        self.stored, self.corrupt, self.torn_bytes = opened.checkpoints, opened.corrupt, opened.torn_bytes
        for topic_id, partition in [*self.stored, *self.corrupt]:
            self.topics.setdefault(topic_id, set()).add(partition)
        self.maintenance.allocate_reserve()
        self.recovered = True

    def cancel_recovery(self) -> None:
        """Stop `recover`, which runs in a thread. Do not close the directory before it returns."""
        assert self.opened is not None, "the log directory was claimed"
        self.opened.cancelled = True

    def start(self) -> None:
        """Start the flush worker and the timers on the running event loop."""
        assert self.recovered, "the log directory was recovered"
        self.flusher.start()
        self.retention.start()
        self.compactor.start()
        for name in self.files.list(self.path):
            if opening.is_deleted_partition(name):
                self.maintenance.spawn(self.maintenance.run(self.files.remove_tree, f"{self.path}/{name}"))

    async def close(self) -> None:
        """Shut down cleanly: flush all logs, write the checkpoint table and the clean-shutdown marker."""
        if self.closing:
            return
        self.closing = True
        if self.checkpoint_timer is not None:
            self.checkpoint_timer.cancel()
        self.retention.stop()
        self.creations.cancel_requests()
        await self.compactor.stop()
        await self.maintenance.stop()
        await self.creations.stop()
        if self.failed is None:
            for log in self.logs.values():
                if log.flushed_offset < log.end_offset:
                    self.flusher.request(log)
            await self.flusher.wait_idle()
        await self.flusher.stop()
        if self.failed is None and self.recovered:
            entries, unsynced, dropped = dict(self.stored), [], []
            for key, log in self.logs.items():
                if log.created and not log.closed:
                    if log.progress.directory_unsynced:  # a new segment without records
                        unsynced.append(log.directory)
                    checkpoint, pending = capture_checkpoint(log)
                    opening.write_pending(self.files, pending)
                    entries[key] = checkpoints.encode(checkpoint)
                    dropped += pop_dropped(log)
            run = asyncio.get_running_loop().run_in_executor
            if await run(None, opening.mark_clean, self.files, self.path, entries, unsynced) and dropped:
                await run(None, self.maintenance.delete_now, dropped)
        for log in self.logs.values():
            self.maintenance.release(log)
        self.files.unlock(f"{self.path}/{opening.LOCK_NAME}")

    def fail(self, error: Exception) -> None:
        """Stop the directory permanently: no more writes, and all waiters fail."""
        if self.failed is not None:
            return
        self.failed = error
        logger.error("log directory failed", path=self.path, error=str(error))
        self.flusher.reject_requests()
        for log in list(self.logs.values()):
            log.fail(error)
        if self.on_failed is not None:
            self.on_failed(error)

    # Logs

    def open_or_create(
        self, topic_id: UUID, topic_name: str, partition: int, config: TopicConfig, state: BatchState
    ) -> PartitionLog:
        """Return the log of a partition, and restore `state` as of its end. Reads the disk only if the log has data.

        Raises CorruptLog if the partition's files are damaged, LogBusy after `release`, LogDirFailed.
        """
        key = topic_id, partition
        if self.failed is not None:
            raise LogDirFailed(f"{self.path}: {self.failed}")
        if key in self.releasing:
            self.release(topic_id, partition)
            raise LogBusy(f'log "{topic_name}-{partition}" is being closed')
        if key in self.corrupt:
            raise self.corrupt[key]
        assert key not in self.logs, f"{topic_name}-{partition} is already open"
        data = self.stored.get(key)
        checkpoint = checkpoints.decode(data) if data is not None else None
        state.restore((checkpoint.snapshot or None) if checkpoint is not None else None)
        directory = f"{self.path}/{topic_id}-{partition}"
        log = PartitionLog(self, directory, topic_id, topic_name, partition, config, state, checkpoint)
        log.torn_bytes = self.torn_bytes.get(key, 0)
        self.stored.pop(key, None)
        self.logs[key] = log
        self.topics.setdefault(topic_id, set()).add(partition)
        if log.segments:
            self.retention.schedule(log)
            self.compactor.enqueue(log)
        return log

    def partition_bytes(self, topic_id: UUID, partition: int) -> int | None:
        """Return the size of a partition's log, 0 if it has no data, None if its files are damaged."""
        key = topic_id, partition
        if key in self.corrupt:
            return None
        log = self.logs.get(key)
        if log is not None:
            return log.size_bytes
        data = self.stored.get(key)
        return 0 if data is None else sum(row.size_bytes for row in checkpoints.decode(data).segments)

    def unopened(self) -> list[Key]:
        """Return the partitions with data whose log is not open. Retention ignores them until they are opened."""
        return list(self.stored)

    def release(self, topic_id: UUID, partition: int) -> None:
        """Close a partition's log and keep its data; no effect if it is not open.

        If closing fails, for example on a full disk, the next `open_or_create` tries again.
        """
        key = topic_id, partition
        log, task = self.logs.get(key), self.releasing.get(key)
        if log is None or self.closing or (task is not None and not task.done()):
            return
        task = self.releasing[key] = self.maintenance.spawn(self.close_log(log))
        task.add_done_callback(lambda _: self.finish_release(key))

    def finish_release(self, key: Key) -> None:
        """Allow a closed log to be reopened."""
        if key not in self.logs:
            self.releasing.pop(key, None)

    def delete_topic(self, topic_id: UUID) -> list[asyncio.Task[None]]:
        """Remove all partitions of a topic; the files are deleted after `file.delete.delay.ms`.

        Once the tasks complete, the directories have names that a restart recognises as deleted.
        """
        tasks = [self.delete_partition(topic_id, partition) for partition in list(self.topics.get(topic_id, ()))]
        self.topics.pop(topic_id, None)
        return tasks

    def delete_partition(self, topic_id: UUID, partition: int) -> asyncio.Task[None]:
        """Remove one partition that has data or an open log, like `delete_topic`."""
        key = topic_id, partition
        self.topics[topic_id].discard(partition)
        has_directory = key in self.corrupt or key in self.stored
        self.corrupt.pop(key, None)
        self.torn_bytes.pop(key, None)
        self.stored.pop(key, None)
        log = self.logs.pop(key, None)
        releasing = self.releasing.pop(key, None)
        self.deletions += 1
        if log is not None:
            self.dirty.pop(log, None)
            self.creations.forget(log)
            return self.maintenance.spawn(self.delete_open(log, releasing, self.deletions))
        if not has_directory:  # its log was closed before anything was written
            return self.maintenance.spawn(asyncio.sleep(0))
        directory = f"{self.path}/{topic_id}-{partition}"
        return self.maintenance.spawn(self.maintenance.delete_directory(directory, self.deletions, 0))

    async def delete_open(self, log: PartitionLog, releasing: asyncio.Task[None] | None, number: int) -> None:
        """Remove the directory of a log that was open or was being closed."""
        if releasing is not None:
            await asyncio.wait([releasing])
        if not log.closed:
            await self.maintenance.delete(log, number)
        elif log.created:
            delay_ms = log.config.file_delete_delay_ms
            await self.maintenance.delete_directory(log.directory, number, delay_ms)

    def quarantine_unknown(self, known: Container[Key]) -> list[str]:
        """Move partitions that are not in `known` to `quarantine/` and return their new paths. Blocks."""
        names = []
        for key in [*self.stored, *self.corrupt]:
            if key not in known:
                names.append(opening.quarantine(self.files, self.path, f"{key[0]}-{key[1]}"))
                self.stored.pop(key, None)
                self.corrupt.pop(key, None)
                self.topics[key[0]].discard(key[1])
        return names

    def quarantine_damaged(self, topic_id: UUID, partition: int) -> None:
        """Move a damaged partition to `quarantine/`, so that it is copied anew from a complete replica.

        Blocks briefly. Raises LogDirFailed.
        """
        key = topic_id, partition
        assert key in self.corrupt, f"partition {partition} of topic {topic_id} is not damaged"
        if self.failed is not None:
            raise LogDirFailed(f"{self.path}: {self.failed}")
        try:
            opening.quarantine(self.files, self.path, f"{topic_id}-{partition}")
        except OSError as e:
            self.fail(e)
            raise LogDirFailed(f"{self.path}: {e}") from e
        del self.corrupt[key]
        self.topics[topic_id].discard(partition)

    # The `LogHost` interface

    def request_flush(self, log: PartitionLog) -> None:
        """Add a log to the next flush round."""
        self.flusher.request(log)

    def mark_dirty(self, log: PartitionLog) -> None:
        """Schedule a checkpoint and retention for a log that was appended to."""
        log.dirty_since_ms = self.clock.boot_ms()
        self.dirty[log] = None
        if self.checkpoint_timer is None and not self.closing:
            self.checkpoint_timer = asyncio.get_running_loop().call_later(
                CHECKPOINT_INTERVAL_S, self.checkpoint_dirty_logs
            )
        if log not in self.retention.due:
            self.retention.schedule(log)

    def on_created(self, log: PartitionLog) -> None:
        """Queue the description of a new partition directory."""
        if not self.closing:
            self.creations.queue_description(log)

    def create_files(self, log: PartitionLog) -> asyncio.Future[None] | None:
        """Create a log's directory and first segment in a thread; None while closing."""
        return None if self.closing else self.creations.request(log)

    def on_rolled(self, log: PartitionLog) -> None:
        """Schedule retention and compaction after a segment was sealed or settings changed."""
        self.retention.schedule(log)
        self.compactor.enqueue(log)
        if log.uncheckpointed_bytes >= MIN_CHECKPOINT_BYTES:
            self.start_checkpoint(log)

    def forget(self, log: PartitionLog) -> None:
        """Drop all references to a log that is closed or deleted."""
        self.dirty.pop(log, None)
        self.retention.forget(log)
        self.compactor.forget(log)

    def flush_dirty(self) -> None:
        """Flush all unflushed logs, so that their files can be closed."""
        if not self.flusher.running and not self.flusher.requested:
            for log in self.dirty:
                if log.flushed_offset < log.end_offset:
                    self.flusher.request(log)

    def start_checkpoint(self, log: PartitionLog) -> None:
        """Checkpoint a dirty log in the background."""
        if log in self.dirty and not self.closing:
            del self.dirty[log]
            log.uncheckpointed_bytes = 0
            self.maintenance.spawn(self.maintenance.checkpoint(log))

    def checkpoint_dirty_logs(self) -> None:
        """Checkpoint logs with enough or old enough appends; runs only while there are dirty logs."""
        self.checkpoint_timer = None
        if self.failed is not None or self.closing:
            return
        old_ms = self.clock.boot_ms() - MAX_DIRTY_MS
        for log in list(self.dirty):
            since_ms = log.dirty_since_ms
            if since_ms is None or log.closed:
                del self.dirty[log]
            elif log.uncheckpointed_bytes >= MIN_CHECKPOINT_BYTES or since_ms <= old_ms:
                self.start_checkpoint(log)
        if self.dirty:
            self.checkpoint_timer = asyncio.get_running_loop().call_later(
                CHECKPOINT_INTERVAL_S, self.checkpoint_dirty_logs
            )

    def start_dropping(self, log: PartitionLog) -> None:
        """Drop the segments below a log's start in the background."""
        if not self.closing:
            self.maintenance.spawn(self.maintenance.advance_start(log))

    async def advance_start(self, log: PartitionLog) -> None:
        """Make a log's start offset durable and drop the segments below it."""
        await self.run_log_work(self.maintenance.advance_start(log))

    async def truncate(self, log: PartitionLog, offset: int) -> None:
        """Remove a log's batches at or after `offset`."""
        await self.run_log_work(truncate(self.maintenance, log, offset))

    async def truncate_fully_and_start_at(self, log: PartitionLog, offset: int) -> None:
        """Empty a log, which then starts at `offset`."""
        await self.run_log_work(truncate_fully(self.maintenance, log, offset))

    async def run_log_work(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that a log requested. Transient errors arrive as LogFull; other OSErrors stop the directory."""
        try:
            await work
        except OSError as e:
            self.fail(e)
            raise LogDirFailed(f"{self.path}: {e}") from e

    async def delete(self, log: PartitionLog) -> None:
        """Delete a log and its directory."""
        key = log.topic_id, log.partition
        self.logs.pop(key, None)
        self.dirty.pop(log, None)
        self.topics.get(log.topic_id, set()).discard(log.partition)
        self.deletions += 1
        await self.maintenance.delete(log, self.deletions)

    async def close_log(self, log: PartitionLog) -> None:
        """Close a log and keep its checkpoint in memory."""
        key = log.topic_id, log.partition
        data = await self.maintenance.close_log(log)
        self.dirty.pop(log, None)
        if self.logs.get(key) is log:
            del self.logs[key]
            if data is not None:
                self.stored[key] = data
