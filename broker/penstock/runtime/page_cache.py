"""Lets appends reuse memory where new memory is dear. Made by `disk.OsFiles`, told of each append by `disk.OsFile`.

An append needs a page of memory for every 4 KiB. Mostly that costs next to nothing; on virtual machines that give
memory they do not use back to their host, each new page is fetched from there again, at about ten times the price of
all else that is done for its bytes. Where appends turn out to be that slow, what was written is sent to the disk early
and, once so much has been written after it as readers at the tail may want, let go from the page cache: the next
append takes over its pages. Readers that are further behind read from the disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from penstock.runtime import linux

STEP_BYTES = 1 << 20
"""The grain of what is written early and let go."""
SAMPLED_BYTES = 8 << 10
"""Smaller appends cost too little to tell anything from their time."""
SYSTEM_CALL_NS = 5_000
DEAR_NS_PER_BYTE = 0.8
"""Pages that are reused cost 0.05 to 0.3, those that a host gives 1.5 to 3."""
DEAR_FOR_NS = 300_000_000_000
"""After that it is found out anew whether memory is dear, which costs some milliseconds."""

Hint = Callable[[int, int, int], None]
"""Called with a descriptor, an offset and a size in bytes."""


class PageCache:
    """What was appended last, over all files of a process, within `keep_bytes`. Used on one thread."""

    def __init__(self, keep_bytes: int) -> None:
        self.keep_bytes = keep_bytes
        self.recent: deque[ByteRange] = deque()
        self.recent_bytes = 0
        self.dear_until_ns = 0
        self.hints: SimpleQueue[tuple[Hint, int, int, int]] = SimpleQueue()
        self.thread: threading.Thread | None = None

    def follow(self, fd: int, size_bytes: int) -> CachedTail:
        """For a file that was opened with so many bytes in it."""
        return CachedTail(self, fd, size_bytes)

    def note(self, stretch: ByteRange, dear: bool) -> None:
        """Takes in what was appended; `dear` tells that it took as long as it takes with new memory."""
        now_ns = time.monotonic_ns()
        if dear:
            self.dear_until_ns = now_ns + DEAR_FOR_NS
        acts = now_ns < self.dear_until_ns
        self.recent.append(stretch)
        self.recent_bytes += stretch.size
        if acts:
            self.hint(linux.start_writeback, stretch)
        while self.recent_bytes > self.keep_bytes:
            oldest = self.recent.popleft()
            self.recent_bytes -= oldest.size
            if acts:
                self.hint(linux.forget, oldest)

    def hint(self, hint: Hint, stretch: ByteRange) -> None:
        """Tells the kernel in another thread, as the disk's queue may be full, by a descriptor that stays open."""
        if stretch.tail.fd < 0:
            return
        with contextlib.suppress(OSError):  # no descriptor is left: nothing but a hint is lost
            self.hints.put((hint, os.dup(stretch.tail.fd), stretch.start, stretch.size))
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="penstock-pages", daemon=True)
                self.thread.start()

    def run(self) -> None:
        """The thread. A hint that fails is found again, and counts then, by the sync that follows."""
        while True:
            hint, fd, start, size = self.hints.get()
            with contextlib.suppress(OSError):
                hint(fd, start, size)
            os.close(fd)


class CachedTail:
    """The end of an open file: how far it was appended, and what that cost. `fd` is -1 once it is closed."""

    __slots__ = ("cache", "dear_bytes", "due", "end", "fd", "sampled_bytes", "start")

    def __init__(self, cache: PageCache, fd: int, size_bytes: int) -> None:
        self.cache, self.fd = cache, fd
        self.reset(size_bytes)

    def reset(self, size_bytes: int) -> None:
        """The file has so many bytes now, and what follows begins there."""
        self.start = self.end = size_bytes
        self.due = size_bytes + STEP_BYTES
        self.dear_bytes = self.sampled_bytes = 0

    def appended(self, size: int, elapsed_ns: int) -> None:
        """Takes in an append, and how long it took."""
        if size >= SAMPLED_BYTES:
            self.sampled_bytes += size
            if elapsed_ns > SYSTEM_CALL_NS + DEAR_NS_PER_BYTE * size:
                self.dear_bytes += size
        self.end += size
        if self.end >= self.due:
            # Most appends have to tell the same: one alone may have been interrupted.
            dear = 2 * self.dear_bytes > max(self.sampled_bytes, STEP_BYTES // 2)
            stretch = ByteRange(self, self.start, self.end - self.start)
            self.reset(self.end)
            self.cache.note(stretch, dear)


class ByteRange(NamedTuple):
    """A part of a file that was appended, in bytes."""

    tail: CachedTail
    start: int
    size: int
