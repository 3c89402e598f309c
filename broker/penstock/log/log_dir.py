"""The data directory of a broker: whose it is, which partitions it has, and what is done to them.

Made by `node`, which claims it, recovers it and starts it, in this order; `replica` asks it for logs. Recovery blocks
and comes before the broker serves; all else runs on the loop. Logs are opened when somebody first asks for them: until
then a partition is one checkpoint in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Iterator
from typing import Any
from uuid import UUID

from penstock.config.values import TopicConfig
from penstock.log import checkpoint as checkpoints
from penstock.log import opening
from penstock.log.capture import capture
from penstock.log.checkpoint import Key
from penstock.log.compaction.compactor import Compactor
from penstock.log.compaction.runner import CompactionRunner, ProcessRunner
from penstock.log.creation import LogCreations
from penstock.log.file_pool import DEFAULT_MAX_OPEN, FilePool
from penstock.log.flusher import Flusher
from penstock.log.index_files import IndexCache
from penstock.log.maintenance import LogMaintenance, take_dropped
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import Retention
from penstock.log.truncation import restart, truncate
from penstock.log.types import BatchState, CorruptLog, LogBusy, LogDirFailed
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

SWEEP_S = 60.0
SWEEP_BYTES = 1 << 20
"""With less than that behind its checkpoint, reading a log again is cheaper than a checkpoint a minute."""
SWEEP_AGE_MS = 600_000
"""A log that was appended to is checkpointed at the latest after that time, however little came."""

logger = get_logger(__name__)


class LogDirectory:
    """See the module. `was_unclean` tells that the broker did not shut down cleanly before.

    Making one takes the directory's lock; raises DirectoryInUse, OSError.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        clock: Clock,
        broker_id: int,
        max_open_files: int = DEFAULT_MAX_OPEN,
        *,
        retention_delay_ms: int = 0,
        on_failed: Callable[[Exception], None] | None = None,
        compaction: CompactionRunner | None = None,
        flusher: Callable[[Files, Callable[[Exception], None]], Flusher] = Flusher,
    ) -> None:
        self.files, self.path, self.clock = files, path.rstrip("/"), clock
        self.broker_id = broker_id
        self.on_failed = on_failed
        self.pool = FilePool(files, max_open_files)
        self.indexes = IndexCache(files)
        self.flusher = flusher(files, self.fail)
        self.maintenance = LogMaintenance(self)
        self.retention = Retention(clock, self.drop_old, retention_delay_ms)
        self.creations = LogCreations(self, self.maintenance)
        self.compactor = Compactor(self.maintenance, clock, compaction or ProcessRunner())
        self.new_state: Callable[[], BatchState]
        self.found: opening.OpenedLog | None = None
        self.was_unclean = False
        self.recovered = False
        self.failed: Exception | None = None
        self.logs: dict[Key, PartitionLog] = {}
        self.stored: dict[Key, bytes] = {}
        """The checkpoints of partitions that have data and are not open."""
        self.corrupt: dict[Key, CorruptLog] = {}
        """Partitions that cannot be opened, and why."""
        self.torn_bytes: dict[Key, int] = {}
        """What recovery cut off, by partition."""
        self.topics: dict[UUID, set[int]] = {}
        """The partitions with data or an open log, by topic."""
        self.releasing: dict[Key, asyncio.Task[None]] = {}
        """Logs that are to be closed while the broker runs: until they are, they cannot be opened again."""
        self.dirty: dict[PartitionLog, None] = {}
        self.sweep_timer: asyncio.TimerHandle | None = None
        self.deletions = 0
        self.closing = False
        self.pool.on_pressure = self.flush_dirty
        opening.lock_directory(files, self.path)

    @property
    def directory_id(self) -> UUID:
        """Stays with the directory for good."""
        assert self.found is not None, "the log directory was claimed"
        return self.found.meta.directory_id

    def __iter__(self) -> Iterator[PartitionLog]:
        """The open logs."""
        return iter(list(self.logs.values()))

    # Opening and closing

    def claim(self, cluster_id: str) -> None:
        """Sees whose the directory is, and how it was left. Raises WrongDirectory, OSError."""
        self.found = opening.look(self.files, self.path, cluster_id, self.broker_id)
        self.was_unclean = self.found.was_unclean

    def recover(self, make_state: Callable[[], BatchState]) -> None:
        """Recovers the partitions of a directory that was not shut down cleanly; next to nothing where it was. Blocks.

        Raises OSError, RecoveryGivenUp. Partitions whose files are damaged are listed in `corrupt`.
        """
        found = self.found
        assert found is not None, "the log directory was claimed"
        opening.recover_all(self.files, self.path, found, make_state, self.clock)
        self.new_state = make_state
        self.stored, self.corrupt, self.torn_bytes = found.checkpoints, found.corrupt, found.torn_bytes
        for topic_id, partition in [*self.stored, *self.corrupt]:
            self.topics.setdefault(topic_id, set()).add(partition)
        self.maintenance.keep_reserve()
        self.recovered = True

    def give_up_recovery(self) -> None:
        """Has `recover` end early, which runs in a thread. The directory is not to be closed before it has returned."""
        assert self.found is not None, "the log directory was claimed"
        self.found.given_up = True

    def start(self) -> None:
        """Starts the flush worker and the timers, on the running event loop."""
        assert self.recovered, "the log directory was recovered"
        self.flusher.start()
        self.retention.start()
        self.compactor.start()
        for name in self.files.list(self.path):
            if opening.is_doomed(name):
                self.maintenance.spawn(self.maintenance.run(self.files.remove_tree, f"{self.path}/{name}"))

    async def close(self) -> None:
        """Shuts down cleanly: everything on disk, one file with all checkpoints, and a mark that says so."""
        if self.closing:
            return
        self.closing = True
        if self.sweep_timer is not None:
            self.sweep_timer.cancel()
        self.retention.stop()
        self.creations.give_up()
        await self.compactor.stop()
        await self.maintenance.stop()
        await self.creations.stop()
        if self.failed is None:
            for log in self.logs.values():
                if log.flushed_offset < log.end_offset:
                    self.flusher.request(log)
            await self.flusher.idle()
        await self.flusher.stop()
        if self.failed is None and self.recovered:
            entries, unsynced, dropped = dict(self.stored), [], []
            for key, log in self.logs.items():
                if log.created and not log.closed:
                    if log.progress.directory_unsynced:  # of a segment without records
                        unsynced.append(log.directory)
                    captured, pending = capture(log)
                    opening.write_pending(self.files, pending)
                    entries[key] = checkpoints.encode(captured)
                    dropped += take_dropped(log)
            run = asyncio.get_running_loop().run_in_executor
            if await run(None, opening.mark_clean, self.files, self.path, entries, unsynced) and dropped:
                await run(None, self.maintenance.clear, dropped)
        for log in self.logs.values():
            self.maintenance.release(log)
        self.files.unlock(f"{self.path}/{opening.LOCK_NAME}")

    def fail(self, error: Exception) -> None:
        """Stops the directory for good: nothing is written any more, and whoever waits is told."""
        if self.failed is not None:
            return
        self.failed = error
        logger.error("the log directory has failed and stops", path=self.path, error=str(error))
        self.flusher.stop_for_good()
        for log in list(self.logs.values()):
            log.fail(error)
        if self.on_failed is not None:
            self.on_failed(error)

    # Logs

    def open_or_create(
        self, topic_id: UUID, topic_name: str, partition: int, config: TopicConfig, state: BatchState
    ) -> PartitionLog:
        """The log of a partition, with `state` as of its end. Touches the disk only for what has data.

        Raises CorruptLog where the partition's files are damaged, LogBusy after `release`, LogDirFailed.
        """
        key = topic_id, partition
        if self.failed is not None:
            raise LogDirFailed(f"{self.path}: {self.failed}")
        if key in self.releasing:
            self.release(topic_id, partition)
            raise LogBusy(f"{topic_name}-{partition} is being closed")
        if key in self.corrupt:
            raise self.corrupt[key]
        assert key not in self.logs, f"{topic_name}-{partition} is open already"
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
            self.retention.note(log)
            self.compactor.note(log)
        return log

    def partition_bytes(self, topic_id: UUID, partition: int) -> int | None:
        """The size of a partition's log, 0 where it has no data; None where its files are damaged."""
        key = topic_id, partition
        if key in self.corrupt:
            return None
        log = self.logs.get(key)
        if log is not None:
            return log.size_bytes
        data = self.stored.get(key)
        return 0 if data is None else sum(row.size_bytes for row in checkpoints.decode(data).segments)

    def unopened(self) -> list[Key]:
        """Partitions with data that nobody has asked for. Their retention begins when they are opened."""
        return list(self.stored)

    def release(self, topic_id: UUID, partition: int) -> None:
        """Has a partition's log closed that nobody is to use for now; its data stays. Nothing where it is not open.

        Where that fails, as on a full disk, it is tried again when somebody asks for the log.
        """
        key = topic_id, partition
        log, task = self.logs.get(key), self.releasing.get(key)
        if log is None or self.closing or (task is not None and not task.done()):
            return
        task = self.releasing[key] = self.maintenance.spawn(self.close_log(log))
        task.add_done_callback(lambda _: self.released(key))

    def released(self, key: Key) -> None:
        if key not in self.logs:
            self.releasing.pop(key, None)

    def delete_topic(self, topic_id: UUID) -> list[asyncio.Task[None]]:
        """Removes all partitions of a topic; their files go after file.delete.delay.ms.

        When the tasks are done their directories have names that a restart takes for deleted.
        """
        tasks = [self.delete_partition(topic_id, partition) for partition in list(self.topics.get(topic_id, ()))]
        self.topics.pop(topic_id, None)
        return tasks

    def delete_partition(self, topic_id: UUID, partition: int) -> asyncio.Task[None]:
        """As above, one partition that has data or an open log."""
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
        """Removes the directory of a log that was open, or was just being closed."""
        if releasing is not None:
            await asyncio.wait([releasing])
        if not log.closed:
            await self.maintenance.delete(log, number)
        elif log.created:
            delay_ms = log.config.file_delete_delay_ms
            await self.maintenance.delete_directory(log.directory, number, delay_ms)

    def quarantine_unknown(self, known: Container[Key]) -> list[str]:
        """Moves directories of partitions that nobody knows to `quarantine/`; returns their names. Blocks."""
        names = []
        for key in [*self.stored, *self.corrupt]:
            if key not in known:
                names.append(opening.quarantine(self.files, self.path, f"{key[0]}-{key[1]}"))
                self.stored.pop(key, None)
                self.corrupt.pop(key, None)
                self.topics[key[0]].discard(key[1])
        return names

    def put_damaged_aside(self, topic_id: UUID, partition: int) -> None:
        """Moves a partition whose files are damaged to `quarantine/`: it begins anew, as another replica has all of it.

        Blocks for a moment. Raises LogDirFailed.
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

    # What logs ask for: see `partition_log.Host`

    def request_flush(self, log: PartitionLog) -> None:
        self.flusher.request(log)

    def note_dirty(self, log: PartitionLog) -> None:
        log.dirty_since_ms = self.clock.boot_ms()
        self.dirty[log] = None
        if self.sweep_timer is None and not self.closing:
            self.sweep_timer = asyncio.get_running_loop().call_later(SWEEP_S, self.sweep)
        if log not in self.retention.due:
            self.retention.note(log)

    def note_created(self, log: PartitionLog) -> None:
        if not self.closing:
            self.creations.describe(log)

    def create(self, log: PartitionLog) -> asyncio.Future[None] | None:
        return None if self.closing else self.creations.request(log)

    def note_rolled(self, log: PartitionLog) -> None:
        self.retention.note(log)
        self.compactor.note(log)
        if log.uncheckpointed_bytes >= SWEEP_BYTES:
            self.checkpoint_soon(log)

    def forget(self, log: PartitionLog) -> None:
        """Drop what refers to a log that is closed or deleted."""
        self.dirty.pop(log, None)
        self.retention.forget(log)
        self.compactor.forget(log)

    def flush_dirty(self) -> None:
        """Has all logs flushed that hold files open only because they are not."""
        if not self.flusher.running and not self.flusher.requested:
            for log in self.dirty:
                if log.flushed_offset < log.end_offset:
                    self.flusher.request(log)

    def checkpoint_soon(self, log: PartitionLog) -> None:
        if log in self.dirty and not self.closing:
            del self.dirty[log]
            log.uncheckpointed_bytes = 0
            self.maintenance.spawn(self.maintenance.checkpoint(log))

    def sweep(self) -> None:
        """Checkpoints logs that were appended to; runs only while there are some."""
        self.sweep_timer = None
        if self.failed is not None or self.closing:
            return
        old_ms = self.clock.boot_ms() - SWEEP_AGE_MS
        for log in list(self.dirty):
            since_ms = log.dirty_since_ms
            if since_ms is None or log.closed:
                del self.dirty[log]
            elif log.uncheckpointed_bytes >= SWEEP_BYTES or since_ms <= old_ms:
                self.checkpoint_soon(log)
        if self.dirty:
            self.sweep_timer = asyncio.get_running_loop().call_later(SWEEP_S, self.sweep)

    def drop_old(self, log: PartitionLog) -> None:
        if not self.closing:
            self.maintenance.spawn(self.maintenance.advance_start(log))

    async def advance_start(self, log: PartitionLog) -> None:
        await self.work_on(self.maintenance.advance_start(log))

    async def truncate(self, log: PartitionLog, offset: int) -> None:
        await self.work_on(truncate(self.maintenance, log, offset))

    async def start_over(self, log: PartitionLog, offset: int) -> None:
        await self.work_on(restart(self.maintenance, log, offset))

    async def work_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what a log asked for. What passes is a LogFull by now; other errors may leave things half done."""
        try:
            await work
        except OSError as e:
            self.fail(e)
            raise LogDirFailed(f"{self.path}: {e}") from e

    async def delete(self, log: PartitionLog) -> None:
        key = log.topic_id, log.partition
        self.logs.pop(key, None)
        self.dirty.pop(log, None)
        self.topics.get(log.topic_id, set()).discard(log.partition)
        self.deletions += 1
        await self.maintenance.delete(log, self.deletions)

    async def close_log(self, log: PartitionLog) -> None:
        key = log.topic_id, log.partition
        data = await self.maintenance.close_log(log)
        self.dirty.pop(log, None)
        if self.logs.get(key) is log:
            del self.logs[key]
            if data is not None:
                self.stored[key] = data
