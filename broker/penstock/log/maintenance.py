"""What is done to logs beside appending and reading: checkpoints, dropping old segments, truncating, deleting.

Called by `LogDir`. Each piece of work holds its log's lock, so that a log has one at a time; what may wait for the disk
runs in a small pool of threads. State of a log changes on the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from penstock.log import checkpoint as checkpoints
from penstock.log.capture import capture
from penstock.log.file_pool import FilePool
from penstock.log.flusher import Flusher
from penstock.log.index import PendingEntries
from penstock.log.index_files import IndexCache, write_indexes
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import DELETED, Segment
from penstock.log.space import NO_SPACE, PASSING, RESERVE_BYTES, RESERVE_NAME
from penstock.log.types import BatchState, LogDirFailed, LogFull
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

THREADS = 2
PINNED_RETRY_S = 1.0

T = TypeVar("T")

logger = get_logger(__name__)


class MaintenanceOwner(Protocol):
    """The log directory."""

    files: Files
    pool: FilePool
    indexes: IndexCache
    flusher: Flusher
    path: str
    failed: Exception | None

    def fail(self, error: Exception) -> None: ...

    def new_state(self) -> BatchState:
        """State that knows of no batch yet."""

    def note_dirty(self, log: PartitionLog) -> None: ...

    def forget(self, log: PartitionLog) -> None: ...


class LogMaintenance:
    """Background work on the logs of one directory."""

    def __init__(self, owner: MaintenanceOwner) -> None:
        self.owner = owner
        self.executor: ThreadPoolExecutor | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.timers: dict[asyncio.TimerHandle, Callable[[], Coroutine[Any, Any, Any]] | None] = {}
        """What is to begin later; None where the next start does it as well."""
        self.stopping = False

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs what may wait for the disk in a thread."""
        if self.executor is None:
            self.executor = ThreadPoolExecutor(THREADS, "penstock-disk")
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Starts a piece of work that nobody need wait for; an I/O error in it stops the log directory."""
        task = asyncio.get_running_loop().create_task(self.guard(work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def guard(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except (LogDirFailed, LogFull) as e:
            logger.warning("work on a log was given up", reason=str(e))
        except OSError as e:
            if e.errno in PASSING:
                logger.warning("work on a log was given up for now", reason=str(e))
            else:
                self.owner.fail(e)
        except Exception:
            logger.exception("work on a log failed")

    def later(self, delay_s: float, work: Callable[[], Coroutine[Any, Any, Any]], *, or_at_start: bool = False) -> None:
        """Starts a piece of work after a while, or when the directory is closed before, unless the next start does it
        as well."""
        if self.stopping:
            if not or_at_start:
                self.spawn(work())
            return

        def begin() -> None:
            del self.timers[timer]
            self.spawn(work())

        timer = asyncio.get_running_loop().call_later(delay_s, begin)
        self.timers[timer] = None if or_at_start else work

    async def stop(self) -> None:
        """Waits for what has begun, and does now what was to begin later."""
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
        """Makes recovery of a log begin at its present end."""
        async with lock_of(log):
            if log.created and not log.closed and log.failed is None:
                await self.write_checkpoint(log)

    async def write_checkpoint(self, log: PartitionLog, segments: list[Segment] | None = None) -> None:
        """The caller holds the log's lock; `segments` are those that it will have, if not its present ones.

        Raises LogFull, LogDirFailed, OSError.
        """
        captured, pending = capture(log, segments)
        log.uncheckpointed_bytes, log.dirty_since_ms = 0, None
        await log.flush()
        try:
            if log.progress.directory_unsynced:  # of a segment without records, so that no flush was needed
                await self.run(self.owner.files.sync_dir, log.directory)
            await self.run(self.store, log.directory, pending, captured)
        except OSError as e:
            if e.errno not in PASSING:
                raise
            self.note_dirty(log)
            raise LogFull(f"the checkpoint of {log.directory} cannot be written: {e}") from e
        log.checkpointed_offset, log.durable_start_offset = captured.end_offset, captured.start_offset
        for segment, _ in pending:
            if segment.sealed and segment.indexes is not None and segment is not log.active:
                self.owner.indexes.keep(segment, segment.indexes)
        await self.drop(log)

    def note_dirty(self, log: PartitionLog) -> None:
        """A checkpoint is wanting."""
        if log.dirty_since_ms is None:
            self.owner.note_dirty(log)

    def store(
        self, directory: str, pending: list[tuple[Segment, PendingEntries]], captured: checkpoints.Checkpoint
    ) -> None:
        """Index entries first, then the checkpoint that counts on them. In a thread."""
        files = self.owner.files
        try:
            for segment, entries in pending:
                write_indexes(files, segment, entries, sync=True)
            checkpoints.write(files, directory, captured)
        except OSError as e:
            reserve = f"{self.owner.path}/{RESERVE_NAME}"
            if e.errno not in NO_SPACE or not files.exists(reserve):
                raise
            files.remove(reserve)
            checkpoints.write(files, directory, captured)

    def keep_reserve(self) -> None:
        """Takes the space that a checkpoint will need on a full disk; tries again another time where there is none."""
        files, path = self.owner.files, f"{self.owner.path}/{RESERVE_NAME}"
        if files.exists(path):
            return
        try:
            files.write_atomic(path, bytes(RESERVE_BYTES))
        except OSError as e:
            if e.errno not in PASSING:
                raise

    # Dropping

    async def advance_start(self, log: PartitionLog) -> None:
        """Makes the log's start durable, and drops the segments that lie wholly below it."""
        async with lock_of(log):
            if log.closed or not log.created:
                return
            self.take_below_start(log)
            await self.write_checkpoint(log)

    def take_below_start(self, log: PartitionLog) -> None:
        segments = log.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].base_offset <= log.start_offset:
            count += 1
        dropped = segments[:count]
        if dropped:
            # they stay open and are synced with the rest until the checkpoint without them is written
            log.dropped += dropped
            del segments[:count]
            log.size_bytes -= sum(s.size for s in dropped)
            log.reader.forget_places()
            log.state.forget_before(log.start_offset)
        log.epochs.advance(log.start_offset)

    async def drop(self, log: PartitionLog) -> None:
        """Takes dropped segments, which no checkpoint names, out of the way; their bytes go after a while. What cannot
        be moved for now goes with the next checkpoint. The caller holds the log's lock."""
        segments = take_dropped(log)
        if not segments:
            return
        for segment in segments:
            self.owner.indexes.forget(segment)
        try:
            await self.run(self.mark_deleted, segments)
        except OSError as e:
            if e.errno not in PASSING:
                raise
            log.dropped += segments
            self.note_dirty(log)
            return
        self.later(log.config.file_delete_delay_ms / 1000, lambda: self.remove(segments))

    def mark_deleted(self, segments: list[Segment]) -> None:
        for segment in segments:
            for path in (segment.path, segment.index_path, segment.time_index_path):
                with contextlib.suppress(FileNotFoundError):
                    self.owner.files.rename(path, path + DELETED)

    async def remove(self, segments: list[Segment]) -> None:
        """Unlinks dropped segments; one that is just being sent waits, unless nothing will come later."""
        pinned = [s for s in segments if s.pins or s.unsynced]
        ready = [s for s in segments if not (s.pins or s.unsynced)]
        for segment in ready:
            self.owner.pool.close(segment)
        if pinned and self.stopping:
            ready = segments  # whoever has one open can go on
        elif pinned:
            self.later(PINNED_RETRY_S, lambda: self.remove(pinned))
        await self.run(self.unlink, ready)

    def unlink(self, segments: list[Segment]) -> None:
        for segment in segments:
            for path in (segment.path, segment.index_path, segment.time_index_path):
                with contextlib.suppress(FileNotFoundError):
                    self.owner.files.remove(path + DELETED)
        self.keep_reserve()

    def clear(self, segments: list[Segment]) -> None:
        """As above, those that were not even moved yet: after a clean end nothing tells of them. In a thread."""
        self.mark_deleted(segments)
        self.unlink(segments)

    def close_unpinned(self, segment: Segment) -> None:
        """Closes the file of a segment that nobody can find any more, now or when it has been sent."""
        if segment.pins or segment.unsynced:
            asyncio.get_running_loop().call_later(PINNED_RETRY_S, self.close_unpinned, segment)
        else:
            self.owner.pool.close(segment)

    # Ending

    async def close_log(self, log: PartitionLog) -> bytes | None:
        """Closes a log for good; its checkpoint, encoded, or None where nothing was ever written."""
        async with lock_of(log):
            if log.closed:
                return None
            captured = None
            await creation_over(log)
            if log.created and log.failed is None:
                await settle(log)
                captured, pending = capture(log)
                await self.run(self.store, log.directory, pending, captured)
                await creation_over(log)
                assert captured.end_offset == log.end_offset, f"{log.directory} was appended to while it was closed"
                await self.drop(log)
            self.release(log)
            return checkpoints.encode(captured) if captured is not None else None

    def release(self, log: PartitionLog) -> None:
        """Gives up the log's files, but for those that are just being sent."""
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
        """Removes a log's directory."""
        async with lock_of(log):
            if log.closed:
                return
            with contextlib.suppress(LogDirFailed):
                await settle(log)
            await creation_over(log)
            if log.failed is not None and self.owner.failed is None:  # it alone, perhaps while it was flushed
                await self.owner.flusher.leave_out(log)
            self.release(log)
            if log.created and self.owner.failed is None:
                await self.delete_directory(log.directory, number, log.config.file_delete_delay_ms)

    async def delete_directory(self, directory: str, number: int, delay_ms: int) -> None:
        doomed = f"{directory}.{number}{DELETED}"
        files = self.owner.files

        def rename() -> None:
            files.rename(directory, doomed)
            files.sync_dir(self.owner.path)

        async def remove() -> None:
            await self.run(files.remove_tree, doomed)

        await self.run(rename)
        self.later(delay_ms / 1000, remove, or_at_start=True)


def take_dropped(log: PartitionLog) -> list[Segment]:
    """What is to go now. A file whose name another segment of the log has by now went when that took it."""
    dropped, log.dropped = log.dropped, []
    taken = {s.base_offset for s in log.segments} if dropped else set()
    return [s for s in dropped if s.base_offset not in taken]


async def settle(log: PartitionLog) -> None:
    """Returns when nothing is unflushed, so that no sync is under way. Raises LogDirFailed."""
    while log.flushed_offset < log.end_offset:
        await log.flush()


async def creation_over(log: PartitionLog) -> None:
    """Returns when nothing is being made for the log: its directory is not to be moved or left meanwhile."""
    while log.creation is not None:
        await asyncio.wait([log.creation])


def lock_of(log: PartitionLog) -> asyncio.Lock:
    if log.maintenance is None:
        log.maintenance = asyncio.Lock()
    return log.maintenance
