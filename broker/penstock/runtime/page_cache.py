"""Reuses page cache memory for appends where new memory is slow. Created by `disk.OsFiles`, fed by `disk.OsFile`.

An append needs a page of memory for every 4 KiB. Usually that is cheap. On virtual machines that return unused memory
to their host, each new page must be fetched from the host again, which takes about ten times as long as everything else
that is done for its bytes. If appends are that slow, appended data is written to disk early and, once enough later data
has been appended for readers at the tail, dropped from the page cache: the next append reuses its pages. Readers that
are further behind read from disk.
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
"""Granularity of early writes and drops."""
SAMPLED_BYTES = 8 << 10
"""Minimum size of an append whose duration is measured; smaller ones are dominated by the system call."""
SYSTEM_CALL_NS = 5_000
SLOW_NS_PER_BYTE = 0.8
"""Append cost above which memory is slow: reused pages take 0.05 to 0.3, pages from a host 1.5 to 3."""
SLOW_FOR_NS = 300_000_000_000
"""Time after which slow memory is measured anew, which costs some milliseconds."""

Hint = Callable[[int, int, int], None]
"""Called with a descriptor, an offset and a size in bytes."""


class PageCache:
    """Recently appended ranges of all files of a process, bounded by `keep_bytes`. Used on one thread."""

    def __init__(self, keep_bytes: int) -> None:
        self.keep_bytes = keep_bytes
        self.recent: deque[ByteRange] = deque()
        self.recent_bytes = 0
        self.slow_until_ns = 0
        self.hints: SimpleQueue[tuple[Hint, int, int, int]] = SimpleQueue()
        self.thread: threading.Thread | None = None

    def track(self, fd: int, size_bytes: int) -> CachedTail:
        """Return the tracker of a file that was opened with `size_bytes`."""
        return CachedTail(self, fd, size_bytes)

    def add_range(self, byte_range: ByteRange, is_slow: bool) -> None:
        """Record an appended range; `is_slow` tells whether appending it was as slow as with new memory."""
        now_ns = time.monotonic_ns()
        if is_slow:
            self.slow_until_ns = now_ns + SLOW_FOR_NS
        is_active = now_ns < self.slow_until_ns
        self.recent.append(byte_range)
        self.recent_bytes += byte_range.size
        if is_active:
            self.hint(linux.start_writeback, byte_range)
        while self.recent_bytes > self.keep_bytes:
            oldest = self.recent.popleft()
            self.recent_bytes -= oldest.size
            if is_active:
                self.hint(linux.drop_cached, oldest)

    def hint(self, hint: Hint, byte_range: ByteRange) -> None:
        """Queue a hint for the kernel: it is given in another thread, because the disk queue may be full, and on a
        duplicate descriptor."""
        if byte_range.tail.fd < 0:
            return
        with contextlib.suppress(OSError):  # without a free descriptor only a hint is lost
            self.hints.put((hint, os.dup(byte_range.tail.fd), byte_range.start, byte_range.size))
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="penstock-pages", daemon=True)
                self.thread.start()

    def run(self) -> None:
        """Process hints in a thread; the sync that follows reports write errors."""
        while True:
            hint, fd, start, size = self.hints.get()
            with contextlib.suppress(OSError):
                hint(fd, start, size)
            os.close(fd)


class CachedTail:
    """The end of an open file: how far it was appended and at which cost. `fd` is -1 once it is closed."""

    __slots__ = ("cache", "due", "end", "fd", "sampled_bytes", "slow_bytes", "start")

    def __init__(self, cache: PageCache, fd: int, size_bytes: int) -> None:
        self.cache, self.fd = cache, fd
        self.reset(size_bytes)

    def reset(self, size_bytes: int) -> None:
        """Start a new range at `size_bytes`."""
        self.start = self.end = size_bytes
        self.due = size_bytes + STEP_BYTES
        self.slow_bytes = self.sampled_bytes = 0

    def record_append(self, size: int, elapsed_ns: int) -> None:
        """Record an append and its duration."""
        if size >= SAMPLED_BYTES:
            self.sampled_bytes += size
            if elapsed_ns > SYSTEM_CALL_NS + SLOW_NS_PER_BYTE * size:
                self.slow_bytes += size
        self.end += size
        if self.end >= self.due:
            # Most appends must be slow: a single one may have been interrupted.
            is_slow = 2 * self.slow_bytes > max(self.sampled_bytes, STEP_BYTES // 2)
            byte_range = ByteRange(self, self.start, self.end - self.start)
            self.reset(self.end)
            self.cache.add_range(byte_range, is_slow)


class ByteRange(NamedTuple):
    """An appended part of a file, in bytes."""

    tail: CachedTail
    start: int
    size: int
