"""Compacts logs one at a time: plans, has the worker clean the segments, and swaps the new segments in.

Part of `LogDirectory`. A log is checked when it rolls, gets new settings, or a compaction lag expires.
"""

from __future__ import annotations

import asyncio
import itertools
import os

from penstock.log.compaction.cleaner import cleaned_name, remove_files
from penstock.log.compaction.job import CompactionJob, CompactionResult
from penstock.log.compaction.plan import CompactionPlan, plan_compaction
from penstock.log.compaction.runner import CompactionRunner
from penstock.log.compaction.swap import CLEANED, SWAP, swap_name
from penstock.log.maintenance import LogMaintenance, maintenance_lock
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment
from penstock.log.transient_errors import TRANSIENT_ERRORS, sync_directory
from penstock.log.types import LogDirFailed, LogError, LogFull
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn

MAX_KEYS_IN_MEMORY = 1_000_000
"""Keys in the worker's memory at once, about 200 bytes each; a log with more needs several passes."""
MAX_WAIT_MS = 600_000
"""Maximum delay before a log is checked again."""

logger = get_logger(__name__)


class Compactor:
    """The queue of logs to check, and the compaction in progress."""

    def __init__(self, maintenance: LogMaintenance, clock: Clock, runner: CompactionRunner) -> None:
        self.maintenance, self.clock, self.runner = maintenance, clock, runner
        self.queue: dict[PartitionLog, None] = {}
        self.timers: dict[PartitionLog, asyncio.TimerHandle] = {}
        self.task: asyncio.Task[None] | None = None
        self.numbers = itertools.count(1)
        self.started = False
        self.compactions = 0

    def start(self) -> None:
        """Start processing the queue."""
        self.started = True
        self.start_task()

    async def stop(self) -> None:
        """Abort the current compaction; its files are discarded."""
        self.started = False
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        await self.runner.stop()
        if self.task is not None:
            await asyncio.wait([self.task])

    def enqueue(self, log: PartitionLog) -> None:
        """Queue a log for a check."""
        if log.config.cleanup_compact and not log.closed:
            self.queue[log] = None
            self.start_task()

    def forget(self, log: PartitionLog) -> None:
        """Stop checking a log that is closed or deleted."""
        self.queue.pop(log, None)
        timer = self.timers.pop(log, None)
        if timer is not None:
            timer.cancel()

    def start_task(self) -> None:
        """Start the task if logs are queued."""
        if self.started and self.queue and self.task is None:
            self.task = spawn(self.process_queue(), "compaction")
            self.task.add_done_callback(self.on_task_done)

    def on_task_done(self, task: asyncio.Task[None]) -> None:
        """Start the task again if logs are queued."""
        self.task = None
        self.start_task()

    async def process_queue(self) -> None:
        """Check queued logs one after the other."""
        while self.queue and self.started:
            log = next(iter(self.queue))
            del self.queue[log]
            try:
                await self.check_log(log)
            except (LogDirFailed, LogFull) as e:
                self.retry_later(log, str(e))
            except OSError as e:
                if e.errno in TRANSIENT_ERRORS:
                    self.retry_later(log, str(e))
                else:
                    self.maintenance.owner.fail(e)

    def retry_later(self, log: PartitionLog, reason: str) -> None:
        """Keep a log as it is and check it again after a while."""
        if self.started:
            logger.warning("compaction failed, will be retried", log=log.directory, reason=reason)
            self.enqueue_later(log, MAX_WAIT_MS)

    def enqueue_later(self, log: PartitionLog, wait_ms: int) -> None:
        """Queue a log after a delay."""
        if log.closed:
            return
        before = self.timers.get(log)
        if before is not None:
            before.cancel()
        self.timers[log] = asyncio.get_running_loop().call_later(wait_ms / 1000, self.enqueue, log)

    async def check_log(self, log: PartitionLog) -> None:
        """Compact a log if it is due, else schedule the next check."""
        self.forget(log)
        if log.failed is None and not log.closed:
            await log.flush()  # only flushed segments can be compacted
        decision = plan_compaction(log, self.clock.wall_ms())
        if decision.plan is not None:
            if await self.compact(log, decision.plan):
                self.queue[log] = None  # there may be more keys than one pass can hold
        elif decision.retry_ms is not None:
            self.enqueue_later(log, min(max(decision.retry_ms - self.clock.wall_ms(), 1), MAX_WAIT_MS))

    async def compact(self, log: PartitionLog, plan: CompactionPlan) -> bool:
        """Run one pass; return whether another may be needed."""
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
            max_keys=MAX_KEYS_IN_MEMORY,
        )
        result = await self.runner.run(job)
        if result.error is not None:
            await self.maintenance.run(self.remove_cleaned, job)
            self.retry_later(log, result.error)
            return False
        async with maintenance_lock(log):
            dropped = await self.swap(log, plan, job, result)
        self.compactions += 1
        logger.info("log compacted", log=log.directory, kept=result.kept_records, dropped=result.dropped_records)
        return dropped and result.compacted_until > plan.dirty_offset

    async def swap(self, log: PartitionLog, plan: CompactionPlan, job: CompactionJob, result: CompactionResult) -> bool:
        """Replace the old segments by the new ones. The caller holds the log's lock."""
        by_base = {s.base_offset: s for s in log.segments}
        if log.closed or any(by_base.get(s.base_offset) is not s for s in plan.segments):
            await self.maintenance.run(self.remove_cleaned, job)  # retention dropped a source, or the log is closed
            return False
        if not result.rows:
            log.compacted_until = result.compacted_until
            return True
        new = [Segment.from_row(log.directory, row, sealed=True) for row in result.rows]
        old = [by_base[base] for base in result.sources]
        count = len(old)
        assert log.segments[:count] == old, f"compaction of {log} does not start at its first segment"
        assert old[-1].end_offset <= log.flushed_offset, f"compaction up to {old[-1].end_offset} of {log}"
        assert log.active not in old, f"compaction would replace the active segment of {log}"
        sequence = log.sequence + 1
        before, log.compacted_until = log.compacted_until, result.compacted_until
        try:
            await self.maintenance.run(self.rename_to_swap, job, new, sequence)
            await self.maintenance.write_checkpoint(log, [*new, *log.segments[count:]])
        except (LogError, OSError) as e:
            # A log that failed alone still gets a last checkpoint; a failed directory is no longer written to.
            if self.maintenance.owner.failed is None and (isinstance(e, LogError) or e.errno in TRANSIENT_ERRORS):
                log.compacted_until = before
                await self.maintenance.run(self.revert_swap, job, sequence)
            raise
        assert log.sequence == sequence, "the checkpoint has the sequence in the swap file names"
        try:
            self.install_segments(log, old, new, sequence)
            await self.maintenance.run(sync_directory, self.maintenance.owner.files, log.directory)
        except OSError as e:  # files and memory may differ now; recovery resolves that
            self.maintenance.owner.fail(e)
            raise LogDirFailed(f"{log.directory}: {e}") from e
        bases = {s.base_offset for s in new}
        log.dropped += [s for s in old if s.base_offset not in bases]
        await self.maintenance.delete_dropped(log)
        return True

    def rename_to_swap(self, job: CompactionJob, new: list[Segment], sequence: int) -> None:
        """Rename the cleaned files to the names by which recovery finishes the swap. Runs in a thread."""
        files = self.maintenance.owner.files
        for segment in new:
            for path in (segment.path, segment.index_path, segment.time_index_path):
                files.rename(cleaned_name(path, job.name), swap_name(path, sequence))
        sync_directory(files, job.directory)

    def revert_swap(self, job: CompactionJob, sequence: int) -> None:
        """Remove the swap files durably, because a later checkpoint would make them valid. Runs in a thread."""
        remove_files(self.maintenance.owner.files, job.directory, f".{sequence}{SWAP}")
        self.remove_cleaned(job)
        sync_directory(self.maintenance.owner.files, job.directory)

    def install_segments(self, log: PartitionLog, old: list[Segment], new: list[Segment], sequence: int) -> None:
        """Rename over the old files and update the segment list, in one step of the loop, so that reads see both or
        neither."""
        files, owner = self.maintenance.owner.files, self.maintenance.owner
        log.segments[: len(old)] = new
        log.size_bytes = sum(s.size for s in log.segments)
        log.reader.clear_locations()
        bases = {s.base_offset for s in new}
        for segment in new:
            for path in (segment.index_path, segment.time_index_path, segment.path):
                files.rename(swap_name(path, sequence), path)
        for segment in old:
            owner.indexes.forget(segment)
            if segment.base_offset in bases:
                self.maintenance.close_when_unpinned(segment)

    def remove_cleaned(self, job: CompactionJob) -> None:
        """Remove the files of a failed or outdated job. Runs in a thread."""
        remove_files(self.maintenance.owner.files, job.directory, f".{job.name}{CLEANED}")
