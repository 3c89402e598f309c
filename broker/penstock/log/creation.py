"""Creates the directories and first segments of partitions before their first append, off the event loop.

Creating a file can block while the file system syncs other writes: with thousands of new partitions the event loop
would block for seconds. One job runs at a time and handles all requests that are pending when it starts. `LogDirectory`
owns the queue; logs use it through `PartitionLog.prepare`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.log.index import Indexes
from penstock.log.maintenance import LogMaintenance
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment
from penstock.log.transient_errors import TRANSIENT_ERRORS
from penstock.runtime.files import Files
from penstock.runtime.tasks import report

MAX_JOB_LOGS = 256
"""Maximum logs per job: the first requests do not wait for all, and this bounds the appends that resume at once."""
MAX_JOB_DESCRIPTIONS = 32
"""Descriptions written per job."""
DESCRIPTION_DELAY_S = 0.2
"""Time without other requests before descriptions are written."""
DESCRIPTION_NAME = "partition.json"

T = TypeVar("T")


class CreationOwner(Protocol):
    """The log directory, as `LogCreations` uses it."""

    files: Files

    def fail(self, error: Exception) -> None:
        """Stop the whole log directory."""


class PendingCreation(NamedTuple):
    """A first segment to create for a log without one. Captured on the event loop."""

    log: PartitionLog
    segment: Segment


class CreatedLog(NamedTuple):
    """The result of a creation."""

    has_directory: bool
    error: Exception | None


class LogCreations:
    """The creation jobs of one log directory. Used on the event loop."""

    def __init__(self, owner: CreationOwner, maintenance: LogMaintenance) -> None:
        self.owner, self.maintenance = owner, maintenance
        self.requests: dict[PartitionLog, asyncio.Future[None]] = {}
        self.pending_descriptions: dict[PartitionLog, None] = {}
        self.executor: ThreadPoolExecutor | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.running = self.closing = False
        self.may_describe = False

    def request(self, log: PartitionLog) -> asyncio.Future[None]:
        """Return a future that completes once the files exist or `log.creation_error` holds the reason why not."""
        future = self.requests[log] = asyncio.get_running_loop().create_future()
        self.start_worker()
        return future

    def queue_description(self, log: PartitionLog) -> None:
        """Queue a file that names the partition's topic for operators; the broker never reads it.

        It is written when there have been no other requests for a while, because it costs as much as they do, and it is
        not synced.
        """
        self.pending_descriptions[log] = None
        self.schedule_descriptions()

    def forget(self, log: PartitionLog) -> None:
        """Drop the description of a deleted log."""
        self.pending_descriptions.pop(log, None)

    def schedule_descriptions(self) -> None:
        """Start the timer for descriptions."""
        if self.timer is None and not self.closing:
            self.timer = asyncio.get_running_loop().call_later(DESCRIPTION_DELAY_S, self.on_timer)

    def on_timer(self) -> None:
        """Write the pending descriptions, or wait again while a job runs."""
        self.timer = None
        if self.running:
            self.schedule_descriptions()
        else:
            self.may_describe = True
            self.start_worker()

    def start_worker(self) -> None:
        """Start the worker task if it is not running."""
        if not self.running:
            self.running = True
            self.maintenance.spawn(self.run())

    def cancel_requests(self) -> None:
        """Fail the requests that no job has started, because the log directory closes; write pending descriptions."""
        self.closing = self.may_describe = True
        if self.timer is not None:
            self.timer.cancel()
        if self.pending_descriptions:
            self.start_worker()
        requests, self.requests = self.requests, {}
        for log, future in requests.items():
            log.creation = None
            log.creation_error = OSError(errno.ESHUTDOWN, "the broker is shutting down")
            future.set_result(None)

    async def stop(self) -> None:
        """Shut down the thread once all jobs have finished."""
        executor, self.executor = self.executor, None
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)

    async def run(self) -> None:
        """Run jobs until no request and no description is pending."""
        try:
            while self.requests or (self.may_describe and self.pending_descriptions):
                if self.requests:
                    self.may_describe = self.closing
                    await self.run_job()
                else:
                    logs = list(islice(self.pending_descriptions, MAX_JOB_DESCRIPTIONS))
                    for log in logs:
                        del self.pending_descriptions[log]
                    await self.run_in_thread(write_descriptions, self.owner.files, logs)
        finally:
            self.running, self.may_describe = False, self.closing
            if self.requests:
                self.start_worker()
            elif self.pending_descriptions:
                self.schedule_descriptions()

    async def run_job(self) -> None:
        """Create the files for up to `MAX_JOB_LOGS` requests."""
        futures = dict(islice(self.requests.items(), MAX_JOB_LOGS))
        for log in futures:
            del self.requests[log]
        # A log that was appended to meanwhile has its files: recovery would take another file at its end for a segment.
        pending = [
            PendingCreation(log, Segment(log.directory, log.end_offset)) for log in futures if log.active is None
        ]
        try:
            results = await self.run_in_thread(create_all, self.owner.files, pending)
        except Exception as e:  # for example no thread can be started: callers must not wait forever
            report("cannot create the files of new partitions", e)
            results = [CreatedLog(False, e)] * len(pending)
        for log in futures:
            log.creation = None
        for (log, segment), result in zip(pending, results, strict=True):
            self.attach_segment(log, segment, result)
        for future in futures.values():
            future.set_result(None)

    async def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run blocking work in the creation thread."""
        if self.executor is None:
            self.executor = ThreadPoolExecutor(1, "penstock-create")
        return await asyncio.get_running_loop().run_in_executor(self.executor, work, *arguments)

    def attach_segment(self, log: PartitionLog, segment: Segment, result: CreatedLog) -> None:
        """Attach a created segment to its log, unless the log got a segment meanwhile."""
        if result.has_directory and not log.created:
            log.mark_created()
        if result.error is not None:
            if isinstance(result.error, OSError) and result.error.errno not in TRANSIENT_ERRORS:
                self.owner.fail(result.error)
            else:
                log.creation_error = result.error
        elif log.active is None and log.end_offset == segment.base_offset and not log.closed and log.failed is None:
            segment.indexes = Indexes()
            log.add_first_segment(segment)


def create_all(files: Files, pending: Sequence[PendingCreation]) -> list[CreatedLog]:
    """Create the files of all logs; each file is closed again, so a job uses one descriptor. Runs in a thread."""
    return [create_files(files, log.directory, segment.path) for log, segment in pending]


def create_files(files: Files, directory: str, path: str) -> CreatedLog:
    """Create a partition's directory and first segment file."""
    has_directory = False
    try:
        files.make_dir(directory)
        has_directory = True
        files.open(path, create=True).close()
    except OSError as e:
        return CreatedLog(has_directory, e)
    return CreatedLog(True, None)


def write_descriptions(files: Files, logs: Sequence[PartitionLog]) -> None:
    """Write the description files. Runs in a thread."""
    for log in logs:
        description = {"topic": log.topic_name, "topic_id": str(log.topic_id), "partition": log.partition}
        data = msgspec.json.format(msgspec.json.encode(description), indent=2) + b"\n"
        try:
            file = files.open(f"{log.directory}/{DESCRIPTION_NAME}", create=True)
            try:
                if file.size():  # of a partition that was created before
                    file.truncate(0)
                file.append(data)
            finally:
                file.close()
        except OSError as e:
            if e.errno not in (errno.ENOENT, *TRANSIENT_ERRORS):  # ENOENT: the partition was deleted meanwhile
                raise
