"""Bounds the open file descriptors of all logs of a broker: unused files are closed and reopened on demand.

Used on the event loop only, because a descriptor must not be closed while another thread reads it; searches in other
threads open their own files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from penstock.log.types import CorruptLog
from penstock.runtime.files import File, Files

DEFAULT_MAX_OPEN = 512
EVICTION_PROBES = 16
"""Open files examined per file opened beyond the bound."""


class PooledFile:
    """A log file that is opened on demand; `size` is the number of bytes written to it."""

    __slots__ = ("file", "path", "pins", "recently_used", "size", "unsynced")

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.file: File | None = None
        self.pins = 0
        """Readers that send from the file's descriptor."""
        self.unsynced = False
        """Whether bytes may be in memory only; such a file stays open, so that fsync reports writeback errors."""
        self.recently_used = False
        """Whether the file was used since the pool last examined it (second chance)."""

    def unpin(self) -> None:
        """Release a pin."""
        assert self.pins > 0, f"{self.path} was released twice"
        self.pins -= 1


class FilePool:
    """Open files, evicted by second chance beyond `max_open`; pinned and unsynced files may exceed the bound."""

    def __init__(self, files: Files, max_open: int = DEFAULT_MAX_OPEN) -> None:
        assert max_open > 0
        self.files = files
        self.max_open = max_open
        self.queue: OrderedDict[PooledFile, None] = OrderedDict()
        self.on_pressure: Callable[[], None] = lambda: None
        """Called when open files exceed the bound by half, most likely because they are unsynced."""

    @property
    def open_files(self) -> int:
        """Number of open files."""
        return sum(1 for pooled in self.queue if pooled.file is not None)

    def open(self, pooled: PooledFile, create: bool = False) -> File:
        """Return the open file. Raises OSError, and CorruptLog if the file is missing or its size is wrong."""
        file = pooled.file
        pooled.recently_used = True
        if file is not None:
            return file
        if len(self.queue) >= self.max_open:
            self.evict()
        try:
            file = self.files.open(pooled.path, create=create)
        except FileNotFoundError as e:
            raise CorruptLog(f'"{pooled.path}" is missing; restore it or remove the partition\'s directory') from e
        size = file.size()
        if size != pooled.size:
            file.close()
            raise CorruptLog(f'"{pooled.path}" has {size} bytes, expected {pooled.size}; restore it')
        pooled.file = file
        self.queue[pooled] = None
        return file

    def evict(self) -> None:
        """Close files that were not used lately, examining a few; the next call continues from there."""
        queue = self.queue
        for _ in range(EVICTION_PROBES if queue else 0):
            pooled = next(iter(queue))
            if pooled.file is not None and (pooled.recently_used or pooled.pins or pooled.unsynced):
                pooled.recently_used = False
                queue.move_to_end(pooled)
                continue
            self.close(pooled)
            if len(queue) < self.max_open:
                return
        if len(queue) > self.max_open + self.max_open // 2:
            self.on_pressure()

    def close(self, pooled: PooledFile) -> None:
        """Close a file that is not pinned; no effect if it is not open."""
        assert not pooled.pins, f"{pooled.path} is pinned"
        self.queue.pop(pooled, None)
        file, pooled.file = pooled.file, None
        if file is not None:
            file.close()
