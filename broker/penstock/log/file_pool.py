"""Bounds the descriptors of all logs of a broker: files that nobody needs just now are closed and opened again later.

Used on the event loop only, because a descriptor must not be closed under a thread that reads it; searches in other
threads open files of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from penstock.log.types import CorruptLog
from penstock.runtime.files import File, Files

DEFAULT_MAX_OPEN = 512
LOOK_AT = 16
"""Open files that are looked at for each that is opened beyond the bound."""


class Pooled:
    """A file of the log that is opened on demand. `size` is what has been written, so what must be there."""

    __slots__ = ("file", "path", "pins", "size", "touched", "unsynced")

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.file: File | None = None
        self.pins = 0
        """Readers that send from the file's descriptor."""
        self.unsynced = False
        """Whether bytes may be in memory only. Such a file stays open: an error of its writeback is reported to it."""
        self.touched = False

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        assert self.pins > 0, f"{self.path} was released twice"
        self.pins -= 1


class FilePool:
    """Open files, closed by second chance beyond `max_open`; pinned and unsynced ones are over it for as long."""

    def __init__(self, files: Files, max_open: int = DEFAULT_MAX_OPEN) -> None:
        assert max_open > 0
        self.files = files
        self.max_open = max_open
        self.queue: OrderedDict[Pooled, None] = OrderedDict()
        self.on_pressure: Callable[[], None] = lambda: None
        """Called where far too many files are open, most likely because they are unsynced."""

    @property
    def open_files(self) -> int:
        return sum(1 for pooled in self.queue if pooled.file is not None)

    def open(self, pooled: Pooled, create: bool = False) -> File:
        """The open file. Raises OSError, and CorruptLog where the file is gone or not as long as what was written."""
        file = pooled.file
        pooled.touched = True
        if file is not None:
            return file
        if len(self.queue) >= self.max_open:
            self.evict()
        try:
            file = self.files.open(pooled.path, create=create)
        except FileNotFoundError as e:
            raise CorruptLog(f"{pooled.path} is gone: restore the file, or remove the partition's directory") from e
        size = file.size()
        if size != pooled.size:
            file.close()
            raise CorruptLog(f"{pooled.path} has {size} bytes where {pooled.size} were written: restore the file")
        pooled.file = file
        self.queue[pooled] = None
        return file

    def evict(self) -> None:
        """Closes files that were not used lately, looking at a few: the next call goes on where this one ends."""
        queue = self.queue
        for _ in range(LOOK_AT if queue else 0):  # one that is looked at twice has had its second chance
            pooled = next(iter(queue))
            if pooled.file is not None and (pooled.touched or pooled.pins or pooled.unsynced):
                pooled.touched = False
                queue.move_to_end(pooled)
                continue
            self.close(pooled)
            if len(queue) < self.max_open:
                return
        if len(queue) > self.max_open + self.max_open // 2:
            self.on_pressure()

    def close(self, pooled: Pooled) -> None:
        """Closes a file that nobody sends from; nothing where it is not open."""
        assert not pooled.pins, f"{pooled.path} is being sent"
        self.queue.pop(pooled, None)
        file, pooled.file = pooled.file, None
        if file is not None:
            file.close()
