"""Gives hints about the page cache to the kernel, in threads, because the disk queue may be full. Called by
`page_cache`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from penstock.runtime import linux
from penstock.runtime.cache_budget import CacheBudget

MAX_QUEUED_HINTS = 1024
"""Hints that wait for a disk that does not respond; further ones are lost. Each holds a file descriptor."""


class CacheHints(Protocol):
    """Hints for ranges of open files: a descriptor, an offset and a size in bytes. None of them waits."""

    def write(self, fd: int, start: int, size: int) -> None:
        """Start to write an appended range to disk."""

    def drop(self, fd: int, start: int, size: int) -> None:
        """Evict a range."""

    def read_ahead(self, fd: int, start: int, size: int) -> None:
        """Load a range that will be read soon."""

    def refresh(self, budget: CacheBudget) -> None:
        """Let the budget read the free memory."""


class ThreadedHints:
    """Hints by system calls, each on a duplicate of the descriptor; without a free one, only a hint is lost."""

    def __init__(self) -> None:
        self.writer = HintThread("penstock-pages")
        self.reader = HintThread("penstock-read-ahead")

    def write(self, fd: int, start: int, size: int) -> None:
        """Start to write an appended range to disk; the sync that follows reports errors."""
        self.writer.run_on(fd, lambda copy: linux.start_writeback(copy, start, size))

    def drop(self, fd: int, start: int, size: int) -> None:
        """Evict a range."""
        self.writer.run_on(fd, lambda copy: linux.drop_cached(copy, start, size))

    def read_ahead(self, fd: int, start: int, size: int) -> None:
        """Load a range that will be read soon, unless it is cached."""
        if not linux.is_cached(fd, start, size):
            self.reader.run_on(fd, lambda copy: linux.load(copy, start, size))

    def refresh(self, budget: CacheBudget) -> None:
        """Let the budget read the free memory."""
        self.writer.run(budget.refresh)


class HintThread:
    """A thread that runs jobs in order; it starts with the first one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.thread: threading.Thread | None = None

    def run(self, job: Callable[[], None]) -> None:
        """Queue a job; its OSErrors are ignored."""
        self.jobs.put(job)
        if self.thread is None:
            self.thread = threading.Thread(target=self.process_jobs, name=self.name, daemon=True)
            self.thread.start()

    def run_on(self, fd: int, job: Callable[[int], None]) -> None:
        """Queue a job on a duplicate of a descriptor, which the owner may close meanwhile."""
        if self.jobs.qsize() >= MAX_QUEUED_HINTS:
            return
        with contextlib.suppress(OSError):
            copy = os.dup(fd)
            self.run(lambda: run_and_close(job, copy))

    def process_jobs(self) -> None:
        """Run the jobs, for the lifetime of the process."""
        while True:
            job = self.jobs.get()
            with contextlib.suppress(OSError):
                job()


def run_and_close(job: Callable[[int], None], fd: int) -> None:
    """Run a job on a descriptor, then close the descriptor."""
    try:
        job(fd)
    finally:
        os.close(fd)
