"""Group commit: one worker syncs, once a round, the files of all logs that were written to since the round before.

Appends ask for a flush; the answer comes to each log on the event loop when fdatasync has returned. A failed sync is
final: what the kernel does with the pages is unknown, so nothing is ever synced a second time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple, Protocol, TypeVar

from penstock.log.space import sync_directory
from penstock.runtime.files import File, Files
from penstock.runtime.logging import get_logger
from penstock.runtime.stats import Histogram

T = TypeVar("T")

PARALLEL_BEYOND = 4
"""Dirty files in a round beyond which they are synced side by side."""
PARALLEL_SYNCS = 8

logger = get_logger(__name__)


class FlushWork(NamedTuple):
    """What must be on disk for a log to count up to `end_offset`. Captured on the event loop."""

    log: Flushable
    end_offset: int
    active: object
    """The segment that was active, and its size then."""
    position: int
    sealed: int
    """How many sealed segments are among the files."""
    files: Sequence[File]
    directories: Sequence[str]
    cuts: int
    """How often the log had been cut: what was true of it before says nothing of what it is after."""


class Flushable(Protocol):
    """A log, for the flusher."""

    flush_requested: bool

    def begin_flush(self) -> FlushWork:
        """What was written and not synced until now."""

    def end_flush(self, work: FlushWork) -> None:
        """All of `work` is on disk."""


class Flusher:
    """The worker thread and the rounds. All methods are called on the event loop, except where they say otherwise."""

    def __init__(self, files: Files, on_error: Callable[[Exception], None]) -> None:
        self.files = files
        self.on_error = on_error
        self.requested: list[Flushable] = []
        self.scheduled = self.running = False
        self.failed = False
        self.rounds = 0
        self.synced_files = 0
        self.durations = Histogram()
        """Times from the beginning of a round to its end."""
        self.began_s = 0.0
        self.work: SimpleQueue[list[FlushWork] | None] = SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.helpers: ThreadPoolExecutor | None = None
        self.idle_waiters: list[asyncio.Future[None]] = []
        self.round_waiters: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self.run, name="penstock-flush", daemon=True)
        self.thread.start()
        if self.requested and not self.scheduled:
            self.schedule()

    async def stop(self) -> None:
        """Ends the worker after the rounds that were asked for."""
        await self.idle()
        thread, self.thread = self.thread, None
        if thread is not None:
            self.work.put(None)
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
        if self.helpers is not None:
            self.helpers.shutdown()
            self.helpers = None

    def request(self, log: Flushable) -> None:
        """Puts a log into the next round, which begins when this turn of the loop has ended or the last one has."""
        if log.flush_requested or self.failed:
            return
        log.flush_requested = True
        self.requested.append(log)
        if not self.scheduled and not self.running and self.loop is not None:
            self.schedule()

    def schedule(self) -> None:
        assert self.loop is not None
        self.scheduled = True
        self.loop.call_soon(self.submit)

    def submit(self) -> None:
        self.scheduled = False
        if self.running or not self.requested or self.failed:
            return
        requested, self.requested = self.requested, []
        self.running = True
        assert self.loop is not None
        self.began_s = self.loop.time()
        try:
            work = [log.begin_flush() for log in requested]
        except Exception as e:  # a log that cannot tell what is unsynced: nothing may be acknowledged any more
            self.running = False
            self.fail(e)
            return
        self.work.put(work)

    async def idle(self) -> None:
        """Returns when no round runs and none is asked for."""
        if self.failed or not (self.running or self.requested) or self.loop is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        self.idle_waiters.append(waiter)
        await waiter

    async def leave_out(self, log: Flushable) -> None:
        """Returns when nothing of a log that has failed is being synced, nor will be: its files may be closed then."""
        if log in self.requested:
            self.requested.remove(log)
        if self.running:
            waiter = asyncio.get_running_loop().create_future()
            self.round_waiters.append(waiter)
            await waiter
        elif not self.requested:
            self.wake_idle_waiters()

    def run(self) -> None:
        """The worker thread."""
        loop = self.loop
        assert loop is not None
        while (work := self.work.get()) is not None:
            error: Exception | None = None
            try:
                self.sync(work)
            except Exception as e:  # whatever it was (no thread for a helper, say): nothing is known to be on disk
                error = e
            try:
                loop.call_soon_threadsafe(self.done, work, error)
            except RuntimeError:  # the loop was closed: nobody waits
                return
            del work  # or this thread would keep its last logs alive, deleted or not

    def sync(self, work: list[FlushWork]) -> None:
        """Makes everything durable: files first, then the directories that name them. In the worker thread."""
        files = [file for one in work for file in one.files]
        self.each(sync_file, files)
        self.synced_files += len(files)
        self.each(self.sync_directory, list(dict.fromkeys(path for one in work for path in one.directories)))

    def sync_directory(self, path: str) -> None:
        sync_directory(self.files, path)

    def each(self, sync: Callable[[T], None], items: Sequence[T]) -> None:
        """Side by side where there are many: the file system then makes one commit of several."""
        if len(items) <= PARALLEL_BEYOND:
            for item in items:
                sync(item)
            return
        if self.helpers is None:
            self.helpers = ThreadPoolExecutor(PARALLEL_SYNCS, "penstock-sync")
        for _ in self.helpers.map(sync, items):
            pass

    def done(self, work: list[FlushWork], error: Exception | None) -> None:
        self.running = False
        self.rounds += 1
        wake(self.round_waiters)
        if self.loop is not None:
            self.durations.observe(self.loop.time() - self.began_s)
        if error is not None:
            self.fail(error)
            return
        if self.failed:
            return
        for one in work:
            try:
                one.log.end_flush(one)
            except Exception:  # one log's listeners must not keep the others waiting
                logger.exception("a listener of a flush failed")
        if self.requested:
            if not self.scheduled:
                self.submit()
        else:
            self.wake_idle_waiters()

    def fail(self, error: Exception) -> None:
        """Stops for good; who waits for a flush is told by the log directory."""
        logger.error("a flush failed", error=str(error))
        self.stop_for_good()
        self.on_error(error)

    def stop_for_good(self) -> None:
        """Takes no request any more."""
        self.failed = True
        self.requested.clear()
        self.wake_idle_waiters()

    def wake_idle_waiters(self) -> None:
        wake(self.idle_waiters)


def wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


def sync_file(file: File) -> None:
    file.sync()
