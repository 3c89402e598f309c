"""What of a log is not on disk yet, and who waits for it. Part of `PartitionLog`; no I/O of its own."""

from __future__ import annotations

import asyncio

from penstock.log.segment import Segment
from penstock.log.types import LogDirFailed
from penstock.runtime.files import File


class FlushProgress:
    """Between a log and the flusher."""

    __slots__ = ("directory", "directory_unsynced", "parent_unsynced", "sealed", "timer", "waiters")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.sealed: list[Segment] = []
        """Sealed segments that have not been synced, oldest first."""
        self.directory_unsynced = self.parent_unsynced = False
        self.timer: asyncio.TimerHandle | None = None
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []

    def files(self, active: Segment | None) -> list[File]:
        """The open files with bytes that may be in memory only."""
        files = []
        for segment in [*self.sealed, active]:
            if segment is not None and segment.unsynced:
                assert segment.file is not None, f"{segment.path} was closed before it was synced"
                files.append(segment.file)
        return files

    def directories(self) -> list[str]:
        """The directories with names that may be in memory only."""
        found = [self.directory] if self.directory_unsynced else []
        return [*found, self.directory.rpartition("/")[0]] if self.parent_unsynced else found

    def synced(self, sealed: int, active: Segment | None, position: int, rolled: bool, directories: bool) -> None:
        """Takes in that the first `sealed` segments, and the active one up to `position`, are on disk."""
        for segment in self.sealed[:sealed]:
            segment.unsynced = False
        del self.sealed[:sealed]
        if active is not None and not rolled and active.size == position:
            active.unsynced = False
        if directories:
            self.parent_unsynced = False
            self.directory_unsynced = self.directory_unsynced and rolled

    def cancel_timer(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()

    def wait(self, offset: int) -> asyncio.Future[None]:
        """Done when all below `offset` is on disk; LogDirFailed where it never will be."""
        future = asyncio.get_running_loop().create_future()
        self.waiters.append((offset, future))
        return future

    def settle(self, flushed_offset: int, failed: Exception | None) -> None:
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
