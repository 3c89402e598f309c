"""Reuses page cache memory for appends where new memory is slow. Created by `disk.OsFiles`, fed by `disk.OsFile`.

An append needs a page of memory for every 4 KiB. Usually that is cheap. On virtual machines that return unused memory
to their host, each new page must be fetched from the host again, which takes about ten times as long as everything else
that is done for its bytes. If appends are that slow, appended data is written to disk early and, once enough later data
has been appended for readers at the tail, dropped from the page cache: the next append reuses its pages. Readers that
are further behind read from disk; the kernel loads the ranges that follow what they were sent. How much is kept depends
on the free memory (see `cache_budget`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.runtime.cache_budget import CacheBudget
from penstock.runtime.cache_hints import CacheHints

STEP_BYTES = 1 << 20
"""Granularity of early writes and drops."""
SAMPLED_BYTES = 8 << 10
"""Minimum size of an append whose duration is measured; smaller ones are dominated by the system call."""
SYSTEM_CALL_NS = 5_000
SLOW_NS_PER_BYTE = 0.8
"""Append cost above which memory is slow: reused pages take 0.05 to 0.3, pages from a host 1.5 to 3."""
SLOW_FOR_NS = 300_000_000_000
"""Time after which slow memory is measured anew, which costs some milliseconds."""


class PageCache:
    """Recently appended ranges of all files of a process, bounded by `budget`. Used on one thread."""

    def __init__(self, budget: CacheBudget, hints: CacheHints, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.budget, self.hints, self.clock_ns = budget, hints, clock_ns
        self.recent: deque[ByteRange] = deque()
        self.recent_bytes = 0
        self.slow_until_ns = 0

    def track(self, fd: int, size_bytes: int) -> CachedTail:
        """Return the tracker of a file that was opened with `size_bytes`."""
        return CachedTail(self, fd, size_bytes)

    def add_range(self, byte_range: ByteRange, is_slow: bool) -> None:
        """Record an appended range; `is_slow` tells whether appending it was as slow as with new memory."""
        now_ns = self.clock_ns()
        if is_slow:
            self.slow_until_ns = now_ns + SLOW_FOR_NS
        is_active = now_ns < self.slow_until_ns
        self.recent.append(byte_range)
        self.recent_bytes += byte_range.size
        if is_active and byte_range.tail.fd >= 0:
            self.hints.write(byte_range.tail.fd, byte_range.start, byte_range.size)
            if self.budget.is_refresh_due(now_ns):
                self.hints.refresh(self.budget)
        while self.recent_bytes > self.budget.keep_bytes:
            oldest = self.recent.popleft()
            self.recent_bytes -= oldest.size
            oldest.tail.kept_from = max(oldest.tail.kept_from, oldest.start + oldest.size)
            if is_active:
                self.drop(oldest)

    def drop(self, byte_range: ByteRange) -> None:
        """Evict a range. Pages that it shares with the range before it, which was dropped earlier, are included."""
        tail, start, size = byte_range
        if tail.fd >= 0:
            earlier = min(start, STEP_BYTES)
            self.hints.drop(tail.fd, start - earlier, size + earlier)


class CachedTail:
    """The end of an open file: how far it was appended and at which cost. `fd` is -1 once it is closed.

    `kept_from` is the position from which appended data stays in the page cache.
    """

    __slots__ = ("cache", "due", "end", "fd", "kept_from", "sampled_bytes", "slow_bytes", "start")

    def __init__(self, cache: PageCache, fd: int, size_bytes: int) -> None:
        self.cache, self.fd = cache, fd
        self.kept_from = size_bytes
        self.start_range(size_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Continue at `size_bytes`."""
        self.kept_from = min(self.kept_from, size_bytes)
        self.start_range(size_bytes)

    def start_range(self, start: int) -> None:
        """Start a new range."""
        self.start = self.end = start
        self.due = start + STEP_BYTES
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
            self.start_range(self.end)
            self.cache.add_range(byte_range, is_slow)

    def stream(self, start: int, size: int) -> bool:
        """Read ahead of a reader from disk that was sent a range. Returns False if the range is recent."""
        if start >= self.kept_from:
            return False
        following_bytes = min(size, self.end - start - size)
        if following_bytes > 0 and self.fd >= 0:
            self.cache.hints.read_ahead(self.fd, start + size, following_bytes)
        return True


class ByteRange(NamedTuple):
    """A part of a file, in bytes."""

    tail: CachedTail
    start: int
    size: int
