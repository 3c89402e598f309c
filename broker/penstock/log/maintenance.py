"""Background work on logs: checkpoints, dropping old segments, closing and deleting. Called by `LogDirectory`.

Each operation holds its log's lock, so a log has one at a time. Blocking calls run in a small thread pool. The state of
a log changes on the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from penstock.log import checkpoint as checkpoints
from penstock.log.capture import capture_checkpoint
from penstock.log.file_pool import FilePool
from penstock.log.flusher import Flusher
from penstock.log.index import PendingEntries
from penstock.log.index_files import IndexCache, write_indexes
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import DELETED, Segment
from penstock.log.transient_errors import NO_SPACE, RESERVE_BYTES, RESERVE_NAME, TRANSIENT_ERRORS
from penstock.log.types import BatchState, LogDirFailed, LogFull
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report

THREADS = 2
PINNED_RETRY_S = 1.0
"""Delay before files that readers still send from are checked again."""

T = TypeVar("T")

logger = get_logger(__name__)


class MaintenanceOwner(Protocol):
    """The log directory, as `LogMaintenance` uses it."""

    files: Files
    pool: FilePool
    indexes: IndexCache
    flusher: Flusher
    path: str
    failed: Exception | None

    def fail(self, error: Exception) -> None:
        """Stop the whole log directory."""

    def new_state(self) -> BatchState:
        """Return an empty state."""

    def mark_dirty(self, log: PartitionLog) -> None:
        """Schedule a checkpoint of the log."""

    def forget(self, log: PartitionLog) -> None:
        """Drop all references to a closed log."""


class LogMaintenance:
    """Background work on the logs of one directory."""

    def __init__(self, owner: MaintenanceOwner) -> None:
        self.owner = owner
        self.executor: ThreadPoolExecutor | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.timers: dict[asyncio.TimerHandle, Callable[[], Coroutine[Any, Any, Any]] | None] = {}
        """Delayed work; None if the next broker start does it too."""
        self.stopping = False

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking function in the thread pool."""
        if self.executor is None:
            self.executor = ThreadPoolExecutor(THREADS, "penstock-disk")
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Start background work; an I/O error in it stops the log directory."""
        task = asyncio.get_running_loop().create_task(self.guard(work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def guard(self, work: Coroutine[Any, Any, Any]) -> None:
        """Await work and handle its errors."""
        try:
            await work
        except (LogDirFailed, LogFull) as e:
            logger.warning("log maintenance aborted", reason=str(e))
        except OSError as e:
            if e.errno in TRANSIENT_ERRORS:
                logger.warning("log maintenance aborted, will be retried", reason=str(e))
            else:
                self.owner.fail(e)
        except Exception as e:
            report("log maintenance failed", e)

    def run_later(
        self, delay_s: float, work: Callable[[], Coroutine[Any, Any, Any]], *, or_at_start: bool = False
    ) -> None:
        """Start work after a delay, or on close, unless `or_at_start`: the next broker start then does it."""
        if self.stopping:
            if not or_at_start:
                self.spawn(work())
            return

        def start() -> None:
            del self.timers[timer]
            self.spawn(work())

        timer = asyncio.get_running_loop().call_later(delay_s, start)
        self.timers[timer] = None if or_at_start else work

    async def stop(self) -> None:
        """Run delayed work now and wait for all work to finish."""
        self.stopping = True
        timers, self.timers = self.timers, {}
        for timer, work in timers.items():
            timer.cancel()
            if work is not None and self.owner.failed is None:
                self.spawn(work())
        while self.tasks:
            await asyncio.wait(list(self.tasks))
        executor, self.executor = self.executor, None
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)

    # Checkpoints

    async def checkpoint(self, log: PartitionLog) -> None:
        """Checkpoint a log, so that recovery starts at its current end."""
        async with maintenance_lock(log):
            if log.created and not log.closed and log.failed is None:
                await self.write_checkpoint(log)

    async def write_checkpoint(self, log: PartitionLog, segments: list[Segment] | None = None) -> None:
        """Flush the log and write its checkpoint (with `segments`, if given). The caller holds the log's lock.

        Raises LogFull, LogDirFailed, OSError.
        """
        checkpoint, pending = capture_checkpoint(log, segments)
        log.uncheckpointed_bytes, log.dirty_since_ms = 0, None
        await log.flush()
        assert checkpoint.end_offset <= log.flushed_offset, (
            f"a checkpoint up to {checkpoint.end_offset} of {log}, flushed up to {log.flushed_offset}"
        )
        try:
            if log.progress.directory_unsynced:  # a new segment without records needs no flush
                await self.run(self.owner.files.sync_dir, log.directory)
            await self.run(self.store_checkpoint, log.directory, pending, checkpoint)
        except OSError as e:
            if e.errno not in TRANSIENT_ERRORS:
                raise
            self.mark_dirty(log)
            raise LogFull(f'cannot write the checkpoint of "{log.directory}": {e}') from e
        log.durable_start_offset = checkpoint.start_offset
        for segment, _ in pending:
            if segment.sealed and segment.indexes is not None and segment is not log.active:
                self.owner.indexes.put(segment, segment.indexes)
        await self.delete_dropped(log)

    def mark_dirty(self, log: PartitionLog) -> None:
        """Schedule another checkpoint."""
        if log.dirty_since_ms is None:
            self.owner.mark_dirty(log)

    def store_checkpoint(
        self, directory: str, pending: list[tuple[Segment, PendingEntries]], checkpoint: checkpoints.Checkpoint
    ) -> None:
        """Write the index entries, then the checkpoint that relies on them. Runs in a thread."""
        files = self.owner.files
        try:
            for segment, entries in pending:
                write_indexes(files, segment, entries, sync=True)
            checkpoints.write(files, directory, checkpoint)
        except OSError as e:
            reserve = f"{self.owner.path}/{RESERVE_NAME}"
            if e.errno not in NO_SPACE or not files.exists(reserve):
                raise
            files.remove(reserve)
            checkpoints.write(files, directory, checkpoint)

    def allocate_reserve(self) -> None:
        """Allocate the space that a checkpoint needs on a full disk; without space, retry later."""
        files, path = self.owner.files, f"{self.owner.path}/{RESERVE_NAME}"
        if files.exists(path):
            return
        try:
            files.write_atomic(path, bytes(RESERVE_BYTES))
        except OSError as e:
            if e.errno not in TRANSIENT_ERRORS:
                raise

    # Dropping

    async def advance_start(self, log: PartitionLog) -> None:
        """Make the log's start offset durable and drop the segments that lie entirely below it."""
        async with maintenance_lock(log):
            if log.closed or not log.created:
                return
            self.drop_below_start(log)
            await self.write_checkpoint(log)

    def drop_below_start(self, log: PartitionLog) -> None:
        """Remove the segments below the start offset from the log; their files stay until a checkpoint."""
        segments = log.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].base_offset <= log.start_offset:
            count += 1
        dropped = segments[:count]
        if dropped:
            assert log.active not in dropped, f"{log} would lose its active segment"
            # They stay open, and are synced, until the checkpoint without them is written.
            log.dropped += dropped
            del segments[:count]
            log.size_bytes -= sum(s.size for s in dropped)
            log.reader.clear_locations()
            log.state.forget_before(log.start_offset)
        log.epochs.advance(log.start_offset)

    async def delete_dropped(self, log: PartitionLog) -> None:
        """Rename dropped segments, which no checkpoint names, and delete them after `file.delete.delay.ms`.

        If renaming fails, the next checkpoint retries. The caller holds the log's lock.
        """
        segments = pop_dropped(log)
        if not segments:
            return
        for segment in segments:
            self.owner.indexes.forget(segment)
        try:
            await self.run(self.mark_deleted, segments)
        except OSError as e:
            if e.errno not in TRANSIENT_ERRORS:
                raise
            log.dropped += segments
            self.mark_dirty(log)
            return
        self.run_later(log.config.file_delete_delay_ms / 1000, lambda: self.delete_segments(segments))

    def mark_deleted(self, segments: list[Segment]) -> None:
        """Rename segment files to `.deleted`. Runs in a thread."""
        for segment in segments:
            for path in (segment.path, segment.index_path, segment.time_index_path):
                with contextlib.suppress(FileNotFoundError):
                    self.owner.files.rename(path, path + DELETED)

    async def delete_segments(self, segments: list[Segment]) -> None:
        """Delete dropped segments; pinned ones are retried later, unless the directory is closing."""
        pinned = [s for s in segments if s.pins or s.unsynced]
        ready = [s for s in segments if not (s.pins or s.unsynced)]
        for segment in ready:
            self.owner.pool.close(segment)
        if pinned and self.stopping:
            ready = segments  # unlinked files stay readable through open descriptors
        elif pinned:
            self.run_later(PINNED_RETRY_S, lambda: self.delete_segments(pinned))
        await self.run(self.unlink, ready)

    def unlink(self, segments: list[Segment]) -> None:
        """Delete renamed segment files. Runs in a thread."""
        for segment in segments:
            for path in (segment.path, segment.index_path, segment.time_index_path):
                with contextlib.suppress(FileNotFoundError):
                    self.owner.files.remove(path + DELETED)
        self.allocate_reserve()

    def delete_now(self, segments: list[Segment]) -> None:
        """Delete dropped segments that were not renamed yet, since no later start would find them. Runs in a thread."""
        self.mark_deleted(segments)
        self.unlink(segments)

    def close_when_unpinned(self, segment: Segment) -> None:
        """Close the file of a removed segment, once no reader sends from it."""
        if segment.pins or segment.unsynced:
            asyncio.get_running_loop().call_later(PINNED_RETRY_S, self.close_when_unpinned, segment)
        else:
            self.owner.pool.close(segment)

    # Ending

    async def close_log(self, log: PartitionLog) -> bytes | None:
        """Close a log permanently and return its encoded checkpoint, None if nothing was ever written."""
        async with maintenance_lock(log):
            if log.closed:
                return None
            checkpoint = None
            await wait_for_creation(log)
            if log.created and log.failed is None:
                await wait_until_flushed(log)
                checkpoint, pending = capture_checkpoint(log)
                await self.run(self.store_checkpoint, log.directory, pending, checkpoint)
                await wait_for_creation(log)
                assert checkpoint.end_offset == log.end_offset, f"{log.directory} was appended to while being closed"
                await self.delete_dropped(log)
            self.release(log)
            return checkpoints.encode(checkpoint) if checkpoint is not None else None

    def release(self, log: PartitionLog) -> None:
        """Close the log's files, except those that readers still send from."""
        log.closed = True
        log.progress.cancel_timer()
        log.detach()
        self.owner.forget(log)
        for segment in [*log.segments, *log.dropped]:
            self.owner.indexes.forget(segment)
            segment.unsynced = False
            if not segment.pins:
                self.owner.pool.close(segment)

    async def delete(self, log: PartitionLog, number: int) -> None:
        """Delete a log and its directory."""
        async with maintenance_lock(log):
            if log.closed:
                return
            with contextlib.suppress(LogDirFailed):
                await wait_until_flushed(log)
            await wait_for_creation(log)
            if log.failed is not None and self.owner.failed is None:  # only this log failed, maybe during a flush
                await self.owner.flusher.remove_failed_log(log)
            self.release(log)
            if log.created and self.owner.failed is None:
                await self.delete_directory(log.directory, number, log.config.file_delete_delay_ms)

    async def delete_directory(self, directory: str, number: int, delay_ms: int) -> None:
        """Rename a partition's directory and delete it after `delay_ms`."""
        renamed = f"{directory}.{number}{DELETED}"
        files = self.owner.files

        def rename() -> None:
            files.rename(directory, renamed)
            files.sync_dir(self.owner.path)

        async def remove() -> None:
            await self.run(files.remove_tree, renamed)

        await self.run(rename)
        self.run_later(delay_ms / 1000, remove, or_at_start=True)


def pop_dropped(log: PartitionLog) -> list[Segment]:
    """Return and clear the dropped segments, except those whose file name another segment took over."""
    dropped, log.dropped = log.dropped, []
    taken = {s.base_offset for s in log.segments} if dropped else set()
    return [s for s in dropped if s.base_offset not in taken]


async def wait_until_flushed(log: PartitionLog) -> None:
    """Return when nothing is unflushed, so that no sync is running. Raises LogDirFailed."""
    while log.flushed_offset < log.end_offset:
        await log.flush()


async def wait_for_creation(log: PartitionLog) -> None:
    """Return when no creation is pending: the directory must not be moved or closed meanwhile."""
    while log.creation is not None:
        await asyncio.wait([log.creation])


def maintenance_lock(log: PartitionLog) -> asyncio.Lock:
    """Return the log's maintenance lock."""
    if log.maintenance is None:
        log.maintenance = asyncio.Lock()
    return log.maintenance
