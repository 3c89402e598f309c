"""Compacts logs one after the other: judges, has the worker clean, and swaps the new segments in.

Part of `LogDir`. Logs are looked at when they roll, get new settings or come of age; others cost nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os

from penstock.log.compaction.cleaner import cleaned_name, remove_files
from penstock.log.compaction.job import CompactionJob, CompactionResult
from penstock.log.compaction.plan import CompactionPlan, judge
from penstock.log.compaction.runner import CompactionRunner
from penstock.log.compaction.swap import CLEANED, SWAP, swap_name
from penstock.log.maintenance import LogMaintenance, lock_of
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment
from penstock.log.space import PASSING, sync_directory
from penstock.log.types import LogDirFailed, LogError, LogFull
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger

MAX_KEYS = 1_000_000
"""Keys that the worker holds at once, about 200 bytes each; a log with more is compacted in several goes."""
LONGEST_WAIT_MS = 600_000

logger = get_logger(__name__)


class Compactor:
    """The queue of logs to look at, and the one that is being compacted."""

    def __init__(self, maintenance: LogMaintenance, clock: Clock, runner: CompactionRunner) -> None:
        self.maintenance, self.clock, self.runner = maintenance, clock, runner
        self.queue: dict[PartitionLog, None] = {}
        self.timers: dict[PartitionLog, asyncio.TimerHandle] = {}
        self.task: asyncio.Task[None] | None = None
        self.numbers = itertools.count(1)
        self.started = False
        self.compactions = 0

    def start(self) -> None:
        self.started = True
        self.wake()

    async def stop(self) -> None:
        """Gives up the present compaction; nothing of it will count."""
        self.started = False
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        await self.runner.stop()
        if self.task is not None:
            await asyncio.wait([self.task])

    def note(self, log: PartitionLog) -> None:
        """Has a log looked at soon."""
        if log.config.cleanup_compact and not log.closed:
            self.queue[log] = None
            self.wake()

    def forget(self, log: PartitionLog) -> None:
        """Stop looking at a log that is closed or deleted."""
        self.queue.pop(log, None)
        timer = self.timers.pop(log, None)
        if timer is not None:
            timer.cancel()

    def wake(self) -> None:
        if self.started and self.queue and self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.work())
            self.task.add_done_callback(self.rest)

    def rest(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("compaction stopped", error=repr(error))
        self.wake()

    async def work(self) -> None:
        while self.queue and self.started:
            log = next(iter(self.queue))
            del self.queue[log]
            try:
                await self.look(log)
            except (LogDirFailed, LogFull) as e:
                self.give_up(log, str(e))
            except OSError as e:
                if e.errno in PASSING:
                    self.give_up(log, str(e))
                else:
                    self.maintenance.owner.fail(e)

    def give_up(self, log: PartitionLog, reason: str) -> None:
        """Leaves a log as it is, and looks at it again after a while."""
        if self.started:
            logger.warning("a compaction was given up", log=log.directory, reason=reason)
            self.look_later(log, LONGEST_WAIT_MS)

    def look_later(self, log: PartitionLog, wait_ms: int) -> None:
        if log.closed:
            return
        before = self.timers.get(log)
        if before is not None:
            before.cancel()
        self.timers[log] = asyncio.get_running_loop().call_later(wait_ms / 1000, self.note, log)

    async def look(self, log: PartitionLog) -> None:
        """Compacts a log if it is time, or sees when it will be."""
        self.forget(log)
        if log.failed is None and not log.closed:
            await log.flush()  # what was just sealed can only be compacted once it counts
        verdict = judge(log, self.clock.wall_ms())
        if verdict.plan is not None:
            if await self.compact(log, verdict.plan):
                self.queue[log] = None  # there may be more than one go could hold
        elif verdict.again_ms is not None:
            self.look_later(log, min(max(verdict.again_ms - self.clock.wall_ms(), 1), LONGEST_WAIT_MS))

    async def compact(self, log: PartitionLog, plan: CompactionPlan) -> bool:
        """One go; whether anything came of it."""
        config = log.config
        job = CompactionJob(
            name=f"{os.getpid()}-{next(self.numbers)}",
            directory=log.directory,
            sources=plan.sources,
            dirty_offset=plan.dirty_offset,
            now_ms=self.clock.wall_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            index_interval_bytes=config.index_interval_bytes,
            max_keys=MAX_KEYS,
        )
        result = await self.runner.run(job)
        if result.error is not None:
            await self.maintenance.run(self.remove_cleaned, job)
            self.give_up(log, result.error)
            return False
        async with lock_of(log):
            dropped = await self.swap(log, plan, job, result)
        self.compactions += 1
        logger.info("log compacted", log=log.directory, kept=result.kept_records, dropped=result.dropped_records)
        return dropped and result.compacted_until > plan.dirty_offset

    async def swap(self, log: PartitionLog, plan: CompactionPlan, job: CompactionJob, result: CompactionResult) -> bool:
        """Puts the new segments in the place of the old ones. The caller holds the log's lock."""
        by_base = {s.base_offset: s for s in log.segments}
        if log.closed or any(by_base.get(s.base_offset) is not s for s in plan.segments):
            await self.maintenance.run(self.remove_cleaned, job)  # retention was faster, or the log is gone
            return False
        if not result.rows:
            log.compacted_until = result.compacted_until
            return True
        new = [Segment.from_row(log.directory, row, sealed=True) for row in result.rows]
        old = [by_base[base] for base in result.sources]
        count = len(old)
        assert log.segments[:count] == old, "what is compacted begins where the log begins"
        sequence = log.sequence + 1
        before, log.compacted_until = log.compacted_until, result.compacted_until
        try:
            await self.maintenance.run(self.announce, job, new, sequence)
            await self.maintenance.write_checkpoint(log, [*new, *log.segments[count:]])
        except (LogError, OSError) as e:
            # A log that failed alone has a last checkpoint, too; where all have failed nothing is written any more.
            if self.maintenance.owner.failed is None and (isinstance(e, LogError) or e.errno in PASSING):
                log.compacted_until = before
                await self.maintenance.run(self.withdraw, job, sequence)
            raise
        assert log.sequence == sequence, "the checkpoint that makes a swap count is the one that was announced"
        try:
            self.put_in_place(log, old, new, sequence)
            await self.maintenance.run(sync_directory, self.maintenance.owner.files, log.directory)
        except OSError as e:  # whatever it is: files and memory may differ, and recovery puts that right
            self.maintenance.owner.fail(e)
            raise LogDirFailed(f"{log.directory}: {e}") from e
        bases = {s.base_offset for s in new}
        log.dropped += [s for s in old if s.base_offset not in bases]
        await self.maintenance.drop(log)
        return True

    def announce(self, job: CompactionJob, new: list[Segment], sequence: int) -> None:
        """Gives the cleaned files the names by which recovery knows what to do with them. In a thread."""
        files = self.maintenance.owner.files
        for segment in new:
            for path in (segment.path, segment.index_path, segment.time_index_path):
                files.rename(cleaned_name(path, job.name), swap_name(path, sequence))
        sync_directory(files, job.directory)

    def withdraw(self, job: CompactionJob, sequence: int) -> None:
        """Takes an announcement back: a later checkpoint would make the files count, so they are gone for good before
        there is one. In a thread."""
        remove_files(self.maintenance.owner.files, job.directory, f".{sequence}{SWAP}")
        self.remove_cleaned(job)
        sync_directory(self.maintenance.owner.files, job.directory)

    def put_in_place(self, log: PartitionLog, old: list[Segment], new: list[Segment], sequence: int) -> None:
        """Renames over the old files and changes the list of segments, in one turn of the loop, so that no read sees
        the one without the other."""
        files, owner = self.maintenance.owner.files, self.maintenance.owner
        log.segments[: len(old)] = new
        log.size_bytes = sum(s.size for s in log.segments)
        log.reader.forget_places()
        bases = {s.base_offset for s in new}
        for segment in new:
            for path in (segment.index_path, segment.time_index_path, segment.path):
                files.rename(swap_name(path, sequence), path)
        for segment in old:
            owner.indexes.forget(segment)
            if segment.base_offset in bases:
                self.maintenance.close_unpinned(segment)

    def remove_cleaned(self, job: CompactionJob) -> None:
        """Removes what a job wrote in vain. In a thread."""
        remove_files(self.maintenance.owner.files, job.directory, f".{job.name}{CLEANED}")
