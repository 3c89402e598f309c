"""A file system with injected faults: errors on write or sync, short writes, syncs without effect."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

from penstock.runtime.disk import OsFile, OsFiles
from penstock.runtime.files import Buffer


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class FaultyFile:
    """An open file whose operations `FaultyFiles` can fail."""

    def __init__(self, files: FaultyFiles, inner: OsFile) -> None:
        self.files, self.inner = files, inner
        self.path = inner.path

    def append(self, data: Buffer) -> None:
        self.files.check("append", self.path, lambda: self.inner.append(memoryview(data)[: len(data) // 2]))
        self.inner.append(data)

    def sync(self) -> None:
        for part, event in list(self.files.held.items()):
            if part in self.path:
                assert event.wait(10), f"{self.path} is held for good"
        self.files.check("sync", self.path)
        self.files.synced.append(self.path)
        self.inner.sync()

    def start_writeback(self, offset: int, size: int) -> None:
        self.files.written_back.append((self.path, len(self.files.synced)))
        self.inner.start_writeback(offset, size)

    def truncate(self, size: int) -> None:
        self.files.check("truncate", self.path)
        self.inner.truncate(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class FaultyFiles(OsFiles):
    """The real file system with `fail(operation, errno)`."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, tuple[int, Callable[[str], bool], int]] = {}
        self.synced: list[str] = []
        self.written_back: list[tuple[str, int]] = []
        """Files whose writeback was started, each with the number of syncs before."""
        self.made_by: dict[str, str] = {}
        """Name of the thread that created each directory and log file, by path."""
        self.failures = 0
        self.held: dict[str, threading.Event] = {}

    def hold(self, part: str) -> threading.Event:
        """Make syncs of files with `part` in their path wait for an event, as on a slow disk."""
        event = self.held[part] = threading.Event()
        return event

    def fail(
        self, operation: str, number: int, where: Callable[[str], bool] = lambda path: True, times: int = 1 << 30
    ) -> None:
        """Make an operation (append, sync, truncate, create, open, make_dir, sync_dir, list, rename, write_atomic)
        fail with an errno."""
        self.faults[operation] = number, where, times

    def heal(self) -> None:
        self.faults.clear()

    def check(self, operation: str, path: str, before: Callable[[], None] | None = None) -> None:
        """Raise if the operation is set to fail; `before` performs the part that still works."""
        number, where, times = self.faults.get(operation, (0, bool, 0))
        if number and times > 0 and where(path):
            self.faults[operation] = number, where, times - 1
            self.failures += 1
            if before is not None and number in (errno.ENOSPC, errno.EIO):
                before()
            raise error(number)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        if create and not self.exists(path):
            self.check("create", path)
            self.made_by[path] = threading.current_thread().name
        self.check("open", path)
        return FaultyFile(self, super().open(path, create=create, read_only=read_only))

    def make_dir(self, path: str) -> None:
        if not self.exists(path):
            self.check("make_dir", path)
            self.made_by[path] = threading.current_thread().name
        super().make_dir(path)

    def list(self, path: str) -> list[str]:
        self.check("list", path)
        return super().list(path)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        super().sync_dir(path)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self.check("write_atomic", path)
        super().write_atomic(path, data)
