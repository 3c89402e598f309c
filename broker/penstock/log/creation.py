"""Makes the directories and first segments of partitions that are about to be appended to for the first time.

Off the event loop, because the file system may take its time over a new name while it syncs what others have written:
with thousands of new partitions the loop would stand still for seconds. What waits when a job begins is made by it,
what comes meanwhile by the next; there is one job at a time. Made by `LogDir`; logs ask by `PartitionLog.prepare`.
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
from penstock.log.space import PASSING
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

JOB_LOGS = 256
"""The most that one job makes: those who wait for its first need not wait for all, and the loop has as many appends to
serve at once when it is done."""
FEW_LOGS = 32
DESCRIBE_AFTER_S = 0.2
DESCRIPTION_NAME = "partition.json"

T = TypeVar("T")

logger = get_logger(__name__)


class CreationOwner(Protocol):
    """The log directory."""

    files: Files

    def fail(self, error: Exception) -> None: ...


class PendingCreation(NamedTuple):
    """What is to be made for a log that has no segment. Captured on the event loop."""

    log: PartitionLog
    segment: Segment


class CreatedLog(NamedTuple):
    """What has come of it."""

    has_directory: bool
    error: Exception | None


class LogCreations:
    """The jobs of one log directory. Used on the event loop."""

    def __init__(self, owner: CreationOwner, maintenance: LogMaintenance) -> None:
        self.owner, self.maintenance = owner, maintenance
        self.waiting: dict[PartitionLog, asyncio.Future[None]] = {}
        self.undescribed: dict[PartitionLog, None] = {}
        self.executor: ThreadPoolExecutor | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.running = self.closing = False
        self.may_describe = False

    def request(self, log: PartitionLog) -> asyncio.Future[None]:
        """Done when the log was given what it lacks, or `refusal` says why it was not."""
        future = self.waiting[log] = asyncio.get_running_loop().create_future()
        self.begin()
        return future

    def describe(self, log: PartitionLog) -> None:
        """Leaves a file that tells people whose a partition's directory is; the broker never reads it.

        It is written when nothing else has been asked for in a while, because it costs as much as what people wait
        for, and not synced: it is no part of the data.
        """
        self.undescribed[log] = None
        self.describe_later()

    def forget(self, log: PartitionLog) -> None:
        """The log is deleted: its directory needs no description. Closed ones keep theirs to come."""
        self.undescribed.pop(log, None)

    def describe_later(self) -> None:
        if self.timer is None and not self.closing:
            self.timer = asyncio.get_running_loop().call_later(DESCRIBE_AFTER_S, self.on_timer)

    def on_timer(self) -> None:
        self.timer = None
        if self.running:
            self.describe_later()
        else:
            self.may_describe = True
            self.begin()

    def begin(self) -> None:
        if not self.running:
            self.running = True
            self.maintenance.spawn(self.run())

    def give_up(self) -> None:
        """The log directory closes: what no job has begun with is not made any more, and who waits is told.

        Descriptions are written now, as nobody will wait for anything else.
        """
        self.closing = self.may_describe = True
        if self.timer is not None:
            self.timer.cancel()
        if self.undescribed:
            self.begin()
        waiting, self.waiting = self.waiting, {}
        for log, future in waiting.items():
            log.creation = None
            log.refusal = OSError(errno.ESHUTDOWN, "the broker stops")
            future.set_result(None)

    async def stop(self) -> None:
        """Ends the thread, when all jobs are over."""
        executor, self.executor = self.executor, None
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)

    async def run(self) -> None:
        """Works until nothing is left to do."""
        try:
            while self.waiting or (self.may_describe and self.undescribed):
                if self.waiting:
                    self.may_describe = self.closing
                    await self.run_job()
                else:
                    about = list(islice(self.undescribed, FEW_LOGS))
                    for log in about:
                        del self.undescribed[log]
                    await self.in_thread(write_descriptions, self.owner.files, about)
        finally:
            self.running, self.may_describe = False, self.closing
            if self.waiting:
                self.begin()
            elif self.undescribed:
                self.describe_later()

    async def run_job(self) -> None:
        futures = dict(islice(self.waiting.items(), JOB_LOGS))
        for log in futures:
            del self.waiting[log]
        # Who was appended to meanwhile has its files: another at its end would be taken for a segment by recovery.
        wanted = [PendingCreation(log, Segment(log.directory, log.end_offset)) for log in futures if log.active is None]
        try:
            made = await self.in_thread(make_all, self.owner.files, wanted)
        except Exception as e:  # no thread can be started, say: nobody is to wait for good
            logger.exception("files of new partitions could not be made")
            made = [CreatedLog(False, e)] * len(wanted)
        for log in futures:
            log.creation = None
        for (log, segment), done in zip(wanted, made, strict=True):
            self.take_over(log, segment, done)
        for future in futures.values():
            future.set_result(None)

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        if self.executor is None:
            self.executor = ThreadPoolExecutor(1, "penstock-create")
        return await asyncio.get_running_loop().run_in_executor(self.executor, work, *arguments)

    def take_over(self, log: PartitionLog, segment: Segment, done: CreatedLog) -> None:
        """Gives a log what was made for it, unless it has got on without."""
        if done.has_directory and not log.created:
            log.note_directory()
        if done.error is not None:
            if isinstance(done.error, OSError) and done.error.errno not in PASSING:
                self.owner.fail(done.error)
            else:
                log.refusal = done.error
        elif log.active is None and log.end_offset == segment.base_offset and not log.closed and log.failed is None:
            segment.indexes = Indexes()
            log.begin(segment)


def make_all(files: Files, wanted: Sequence[PendingCreation]) -> list[CreatedLog]:
    """In a thread. Files are closed again, so that a job takes one descriptor."""
    return [make(files, log.directory, segment.path) for log, segment in wanted]


def make(files: Files, directory: str, path: str) -> CreatedLog:
    has_directory = False
    try:
        files.make_dir(directory)
        has_directory = True
        files.open(path, create=True).close()
    except OSError as e:
        return CreatedLog(has_directory, e)
    return CreatedLog(True, None)


def write_descriptions(files: Files, logs: Sequence[PartitionLog]) -> None:
    """In a thread."""
    for log in logs:
        about = {"topic": log.topic_name, "topic_id": str(log.topic_id), "partition": log.partition}
        data = msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"
        try:
            file = files.open(f"{log.directory}/{DESCRIPTION_NAME}", create=True)
            try:
                file.truncate(0)
                file.append(data)
            finally:
                file.close()
        except OSError as e:
            if e.errno not in (errno.ENOENT, *PASSING):  # deleted meanwhile, or it must do without
                raise
