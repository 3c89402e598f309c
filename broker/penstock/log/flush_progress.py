"""Tracks a log's unsynced files and the callers that wait for a flush. Part of `PartitionLog`; does no I/O."""

from __future__ import annotations

import asyncio

from penstock.log.segment import Segment
from penstock.log.types import LogDirFailed
from penstock.runtime.files import File


class FlushProgress:
    """A log's unsynced files and directories, and its flush waiters."""

    __slots__ = ("directory", "directory_unsynced", "parent_unsynced", "sealed", "timer", "waiters")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.sealed: list[Segment] = []
        """Sealed segments that have not been synced, oldest first."""
        self.directory_unsynced = self.parent_unsynced = False
        self.timer: asyncio.TimerHandle | None = None
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        """(offset, future) of callers that wait until all records below the offset are on disk."""

    def files(self, active: Segment | None) -> list[File]:
        """Return the open files whose bytes may be in memory only."""
        files = []
        for segment in [*self.sealed, active]:
            if segment is not None and segment.unsynced:
                assert segment.file is not None, f"{segment.path} was closed before it was synced"
                files.append(segment.file)
        return files

    def directories(self) -> list[str]:
        """Return the directories whose entries may be in memory only."""
        found = [self.directory] if self.directory_unsynced else []
        return [*found, self.directory.rpartition("/")[0]] if self.parent_unsynced else found

    def mark_synced(self, sealed: int, active: Segment | None, position: int, rolled: bool, directories: bool) -> None:
        """Record that the first `sealed` segments, and the active one up to `position`, are on disk."""
        for segment in self.sealed[:sealed]:
            segment.unsynced = False
        del self.sealed[:sealed]
        if active is not None and not rolled and active.size == position:
            active.unsynced = False
        if directories:
            self.parent_unsynced = False
            self.directory_unsynced = self.directory_unsynced and rolled

    def cancel_timer(self) -> None:
        """Cancel the `flush.ms` timer."""
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()

    def wait_for_flush(self, offset: int) -> asyncio.Future[None]:
        """Return a future that completes when all records below `offset` are on disk, or fails with LogDirFailed."""
        future = asyncio.get_running_loop().create_future()
        self.waiters.append((offset, future))
        return future

    def complete_waiters(self, flushed_offset: int, failed: Exception | None) -> None:
        """Complete the waiters up to `flushed_offset`; fail all of them if the log has failed."""
        waiters, self.waiters = self.waiters, []
        for offset, future in waiters:
            if future.done():
                continue
            if failed is not None:
                future.set_exception(LogDirFailed(f"{self.directory}: {failed}"))
            elif offset <= flushed_offset:
                future.set_result(None)
            else:
                self.waiters.append((offset, future))
