"""Group commit: one worker thread syncs, per round, the files of all logs written since the previous round.

Logs request a flush; after fdatasync returns, each log is notified on the event loop. A failed sync is final: the state
of the kernel's pages is unknown after it, so no file is synced a second time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import NamedTuple, Protocol, TypeVar

from penstock.log.transient_errors import sync_directory
from penstock.runtime.files import File, Files
from penstock.runtime.logging import get_logger
from penstock.runtime.stats import Histogram
from penstock.runtime.tasks import report

T = TypeVar("T")

MAX_SERIAL_SYNCS = 4
"""Dirty files in a round that are synced one after the other; more are synced in parallel."""
MAX_PARALLEL_SYNCS = 8
TO_END = 0
"""Size of a range up to the end of the file."""

logger = get_logger(__name__)


class FlushWork(NamedTuple):
    """The files to sync so that a log is durable up to `end_offset`. Captured on the event loop."""

    log: Flushable
    end_offset: int
    active: object
    """The segment that was active at capture."""
    position: int
    """Size of the active segment at capture."""
    sealed: int
    """Number of sealed segments among the files."""
    files: Sequence[File]
    directories: Sequence[str]
    truncations: int
    """The log's truncation count at capture: results from before a truncation do not apply after it."""


class Flushable(Protocol):
    """A log, as the flusher uses it."""

    flush_requested: bool

    def start_flush(self) -> FlushWork:
        """Return what was written and not synced yet."""

    def complete_flush(self, work: FlushWork) -> None:
        """Record that all of `work` is on disk."""


class Flusher:
    """The worker thread and its rounds. Methods run on the event loop unless stated otherwise."""

    def __init__(self, files: Files, on_error: Callable[[Exception], None]) -> None:
        self.files = files
        self.on_error = on_error
        self.requested: list[Flushable] = []
        self.scheduled = self.running = False
        self.failed = False
        self.rounds = 0
        self.synced_files = 0
        self.durations = Histogram()
        """Duration of rounds."""
        self.started_s = 0.0
        self.work: SimpleQueue[list[FlushWork] | None] = SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.helpers: ThreadPoolExecutor | None = None
        self.idle_waiters: list[asyncio.Future[None]] = []
        self.round_waiters: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """Start the worker thread on the running event loop."""
        self.loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self.run_worker, name="penstock-flush", daemon=True)
        self.thread.start()
        if self.requested and not self.scheduled:
            self.schedule_round()

    async def stop(self) -> None:
        """Stop the worker after the requested rounds."""
        await self.wait_idle()
        thread, self.thread = self.thread, None
        if thread is not None:
            self.work.put(None)
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
        if self.helpers is not None:
            self.helpers.shutdown()
            self.helpers = None

    def request(self, log: Flushable) -> None:
        """Add a log to the next round, which starts in the next loop iteration or after the current round."""
        if log.flush_requested or self.failed:
            return
        log.flush_requested = True
        self.requested.append(log)
        if not self.scheduled and not self.running and self.loop is not None:
            self.schedule_round()

    def schedule_round(self) -> None:
        """Start a round in the next loop iteration."""
        assert self.loop is not None
        self.scheduled = True
        self.loop.call_soon(self.start_round)

    def start_round(self) -> None:
        """Start a round with the requested logs."""
        self.scheduled = False
        if self.running or not self.requested or self.failed:
            return
        requested, self.requested = self.requested, []
        self.running = True
        assert self.loop is not None
        self.started_s = self.loop.time()
        try:
            work = [log.start_flush() for log in requested]
        except Exception as e:  # the unsynced files of a log are unknown: no write may be acknowledged
            self.running = False
            self.fail(e)
            return
        self.work.put(work)

    async def wait_idle(self) -> None:
        """Return when no round is running or requested."""
        if self.failed or not (self.running or self.requested) or self.loop is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        self.idle_waiters.append(waiter)
        await waiter

    async def remove_failed_log(self, log: Flushable) -> None:
        """Return when no sync of a failed log is running or requested, so that its files may be closed."""
        if log in self.requested:
            self.requested.remove(log)
        if self.running:
            waiter = asyncio.get_running_loop().create_future()
            self.round_waiters.append(waiter)
            await waiter
        elif not self.requested:
            self.wake_idle_waiters()

    def run_worker(self) -> None:
        """Run the worker thread."""
        loop = self.loop
        assert loop is not None
        while (work := self.work.get()) is not None:
            error: Exception | None = None
            try:
                self.sync(work)
            except Exception as e:  # including failures to start a helper thread: the files may not be on disk
                error = e
            try:
                loop.call_soon_threadsafe(self.finish_round, work, error)
            except RuntimeError:  # the loop was closed: no caller waits
                return
            del work  # otherwise this thread keeps the logs of its last round alive

    def sync(self, work: list[FlushWork]) -> None:
        """Make a round durable: first the files, then the directories that name them. Runs in the worker thread."""
        files = [file for one in work for file in one.files]
        self.sync_all(files, list(dict.fromkeys(path for one in work for path in one.directories)))

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Make files durable, then directories. Runs in the worker thread, or in that of a recovery before the start.

        Raises OSError.
        """
        if len(files) > MAX_SERIAL_SYNCS:
            start_writeback(files)
        self.sync_each(sync_file, files)
        self.synced_files += len(files)
        self.sync_each(self.sync_directory, directories)

    def sync_directory(self, path: str) -> None:
        """Sync a directory. Runs in the worker thread or a helper."""
        sync_directory(self.files, path)

    def sync_each(self, sync: Callable[[T], None], items: Sequence[T]) -> None:
        """Sync all items, in parallel if there are many: the file system then merges several commits.

        Each helper takes an equal share. A future for each item would cost more than most syncs.
        """
        if len(items) <= MAX_SERIAL_SYNCS:
            sync_share(sync, items)
            return
        if self.helpers is None:
            self.helpers = ThreadPoolExecutor(MAX_PARALLEL_SYNCS, "penstock-sync")
        shares = [items[start::MAX_PARALLEL_SYNCS] for start in range(min(MAX_PARALLEL_SYNCS, len(items)))]
        done, _ = wait([self.helpers.submit(sync_share, sync, share) for share in shares])
        for future in done:
            future.result()

    def finish_round(self, work: list[FlushWork], error: Exception | None) -> None:
        """Finish a round and start the next one if requested."""
        self.running = False
        self.rounds += 1
        wake_all(self.round_waiters)
        if self.loop is not None:
            self.durations.observe(self.loop.time() - self.started_s)
        if error is not None:
            self.fail(error)
            return
        if self.failed:
            return
        for one in work:
            try:
                one.log.complete_flush(one)
            except Exception as e:  # one log's listener must not block the other logs
                report("flush listener failed", e)
        if self.requested:
            if not self.scheduled:
                self.start_round()
        else:
            self.wake_idle_waiters()

    def fail(self, error: Exception) -> None:
        """Stop the flusher and report the error to the log directory, which fails the waiters."""
        logger.error("flush failed", error=str(error))
        self.reject_requests()
        self.on_error(error)

    def reject_requests(self) -> None:
        """Reject all further requests."""
        self.failed = True
        self.requested.clear()
        self.wake_idle_waiters()

    def wake_idle_waiters(self) -> None:
        """Wake the callers of `wait_idle`."""
        wake_all(self.idle_waiters)


def wake_all(waiters: list[asyncio.Future[None]]) -> None:
    """Complete all waiters and clear the list."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


def sync_share(sync: Callable[[T], None], items: Sequence[T]) -> None:
    """Sync items one after the other."""
    for item in items:
        sync(item)


def start_writeback(files: Sequence[File]) -> None:
    """Start to write all files. The file system then allocates the blocks of all of them before its first commit,
    which would otherwise cover one file only."""
    for file in files:
        file.start_writeback(0, TO_END)


def sync_file(file: File) -> None:
    """Sync one file."""
    file.sync()
