"""Delivers the scheduled records of topics with `delivery.schedule.enable`: appends each to the log when it is due.

A `Leader` of such a topic has a `LeaderSchedule`, which shares the timer of `DelayedDelivery`. Records that wait are in
scheduled batches of the log, which consumers skip (`wire.scheduled_batch`); a delivered batch names what it delivers,
so the log alone tells which records wait. Runs on the event loop; threads read the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from penstock.config.topic import TopicConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import count_droppable
from penstock.log.scheduled_records import FoundBody, read_bodies
from penstock.log.types import LogError
from penstock.replica.acceptance import Appended
from penstock.replica.delayed_delivery import RETRY_S, DelayedDelivery
from penstock.replica.schedule_index import ScheduleIndex, WaitingRecord
from penstock.replica.schedule_snapshots import load_schedule, source_of
from penstock.replica.scheduling import ScheduledRecords
from penstock.runtime.logging import get_logger
from penstock.wire.batch import BatchHeader, read_header, stamp
from penstock.wire.scheduled_batch import CANCELS, NO_KEY_HASH, ScheduledRow, build_delivered, build_scheduled

MAX_RECORDS = 1_000
"""Records that are delivered with one append."""
MAX_BYTES = 1 << 20
"""Size of the records that are delivered or copied with one append, unless the first is larger."""
WAIT_MS = 1_000
"""Time after which a delivery that the leader cannot write is tried again."""
COPY_CHECK_MS = 60_000
"""Interval between checks whether retention waits for scheduled records."""
DONE = (CANCELS, NO_KEY_HASH, NO_KEY_HASH, 0)
"""Row of a record that was delivered with its batch."""

logger = get_logger("penstock.replica")


class SchedulingLeader(Protocol):
    """What scheduled delivery needs of a `leader.Leader`."""

    config: TopicConfig
    leader_epoch: int
    log: PartitionLog
    under_min_isr: bool

    @property
    def last_stable_offset(self) -> int:
        """The offset below which records may be deleted."""

    def write(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Append a stamped batch with the given header."""


class LeaderSchedule:
    """The scheduled records of one partition in one leader epoch."""

    def __init__(self, host: DelayedDelivery, leader: SchedulingLeader) -> None:
        self.host, self.leader, self.stopped = host, leader, False
        self.index: ScheduleIndex | None = None
        """None until the log was read."""
        self.unread: list[tuple[int, list[tuple[int, int, int, int]]]] = []
        """(base offset, rows) of batches that were appended since the log is being read."""
        self.is_delivering = False
        self.retry_ms = 0
        """Time before which nothing is delivered, because the last attempt has failed."""
        self.next_copy_ms = 0
        host.spawn(self.load())

    def __repr__(self) -> str:
        return f"<LeaderSchedule of {self.leader!r}>"

    def is_over(self) -> bool:
        """Return whether nothing may be delivered: the role has ended, or the broker stops."""
        return self.stopped or self.host.closed

    @property
    def is_loaded(self) -> bool:
        """Whether it is known which records wait: a new leader reads the log first."""
        return self.index is not None

    @property
    def waiting(self) -> int:
        """Number of records that wait; 0 while the log is being read. May include cancelled ones, if there are many."""
        return 0 if self.index is None else self.index.count

    @property
    def next_due_ms(self) -> int | None:
        """The first due time, in ms since 1970; None if no record is known to wait."""
        return None if self.index is None else self.index.first_due_ms

    @property
    def retention_end(self) -> int:
        """Offset below which no record waits."""
        if self.index is None:
            return self.leader.log.start_offset
        return self.index.lowest_location if self.index.count else self.leader.log.end_offset

    # Appending

    def append(self, records: ScheduledRecords) -> Appended:
        """Append a scheduled batch, and deliver what is due in it."""
        written = self.write(records.batch)
        if written.error:
            return written
        base_offset = written.base_offset
        due = [(base_offset + at, row.body) for at, row in enumerate(records.rows) if 0 <= row.due_ms <= records.now_ms]
        is_delivered = bool(due) and not self.write(build_delivered(due, self.host.clock.wall_ms())).error
        rows = [
            DONE if is_delivered and 0 <= row.due_ms <= records.now_ms else (row.due_ms, row.origin, row.key_hash, 0)
            for row in records.rows
        ]
        self.apply(base_offset, rows)
        return written._replace(required_offset=self.leader.log.end_offset)

    def write(self, batch: bytearray) -> Appended:
        """Stamp and append a batch."""
        view = memoryview(batch)
        stamp(view, 0, self.leader.log.end_offset, self.leader.leader_epoch)
        return self.leader.write(view, read_header(view))

    def apply(self, base_offset: int, rows: list[tuple[int, int, int, int]]) -> None:
        """Apply the rows of an appended batch."""
        if self.index is None:
            self.unread.append((base_offset, rows))
            return
        self.index.apply_rows(base_offset, rows)
        self.schedule()

    # Timer

    def schedule(self) -> None:
        """Set when `advance` is called."""
        if self.index is None or self.stopped or self.is_delivering:
            return
        due_ms = self.index.next_due_ms
        if due_ms is not None:
            due_ms = max(min(due_ms, self.next_copy_ms), self.retry_ms)
        self.host.schedule_at(self, due_ms)

    def advance(self) -> None:
        """Deliver what is due, in a task."""
        if not self.stopped and self.index is not None and not self.is_delivering:
            self.is_delivering = True
            self.host.spawn(self.deliver_due(self.index))

    async def deliver_due(self, index: ScheduleIndex) -> None:
        """Deliver all that is due, and copy records for which retention waits."""
        try:
            while not self.is_over() and await self.deliver_next(index):
                pass
            now_ms = self.host.clock.wall_ms()
            if not self.is_over() and now_ms >= self.next_copy_ms:
                self.next_copy_ms = now_ms + COPY_CHECK_MS
                while not self.is_over() and await self.copy_next(index):
                    pass
        except LogError as e:
            if not self.stopped:
                self.retry_ms = self.host.clock.wall_ms() + int(RETRY_S * 1000)
                logger.error("cannot deliver scheduled records; retrying", partition=repr(self.leader), reason=str(e))
        finally:
            if index.taken:
                index.put_back()
            self.is_delivering = False
            self.schedule()

    async def deliver_next(self, index: ScheduleIndex) -> bool:
        """Deliver the next records that are due with one append. Return False if none is due or can be written."""
        now_ms = self.host.clock.wall_ms()
        if self.leader.under_min_isr:  # what consumers read must not be lost
            self.retry_ms = now_ms + WAIT_MS
            return False
        records = index.take_due(now_ms, MAX_RECORDS)
        if not records:
            return False
        found = await self.read(records)
        if self.is_over():
            return False
        if index.has_removed_taken():
            index.put_back()
            return True
        due = [(record.origin, body) for record, (_, body) in zip(records, found, strict=False) if body is not None]
        if due and self.write(build_delivered(due, self.host.clock.wall_ms())).error:
            self.retry_ms = now_ms + WAIT_MS
            return False
        index.complete(len(found))
        return True

    async def read(self, records: Sequence[WaitingRecord]) -> list[FoundBody]:
        """Read the first of these records in a thread. Raises LogError."""
        locations = [record.location for record in records]
        max_bytes = max(min(self.leader.config.max_message_bytes, MAX_BYTES), 1)
        read = partial(read_bodies, self.leader.log.new_search(), locations, max_bytes)
        return await asyncio.get_running_loop().run_in_executor(None, read)

    # Retention

    async def copy_next(self, index: ScheduleIndex) -> bool:
        """Append records of the oldest segment again if retention may delete it and most of it is not needed. Return
        whether there may be more."""
        log = self.leader.log
        if self.leader.under_min_isr or not index.count:
            return False
        if not count_droppable(log, self.host.clock.wall_ms(), self.leader.last_stable_offset):
            return False
        lowest = index.find_lowest_location()
        if lowest is None or lowest >= log.segments[0].end_offset:
            return False
        end_offset = log.segments[0].end_offset
        records = index.located_below(end_offset, MAX_RECORDS)
        if not records or 2 * index.count_below(end_offset) > end_offset - log.start_offset:
            return False
        found = await self.read(records)
        kept = {record.location for record in index.located_below(end_offset, MAX_RECORDS)}
        rows = [
            ScheduledRow(record.due_ms, record.origin, record.key_hash, body)
            for record, (_, body) in zip(records, found, strict=False)
            if body is not None and record.location in kept
        ]
        if self.is_over() or not rows:
            return bool(kept)
        written = self.write(build_scheduled(rows, None, self.host.clock.wall_ms()))
        if written.error:
            return False
        index.apply_rows(written.base_offset, [(row.due_ms, row.origin, row.key_hash, 0) for row in rows])
        index.finish_sweeps()
        index.find_lowest_location()
        return True

    def on_log_start(self) -> None:
        """Drop the records that were deleted with the start of the log."""
        start_offset = self.leader.log.start_offset
        if self.index is not None and self.index.count and self.index.lowest_location < start_offset:
            self.index.forget_below(start_offset)

    # Start and end

    async def load(self) -> None:
        """Read which records wait from the log, in a thread; retry later if the log cannot be read."""
        async with self.host.loads:
            if self.is_over():
                return
            load = partial(load_schedule, source_of(self.leader.log), self.is_over)
            self.unread = []
            try:
                index = await asyncio.get_running_loop().run_in_executor(None, load)
            except LogError as e:
                if not self.stopped:
                    logger.error("cannot read scheduled records; retrying", partition=repr(self.leader), reason=str(e))
                    asyncio.get_running_loop().call_later(RETRY_S, self.load_again)
                return
        if self.is_over():
            return
        for base_offset, rows in self.unread:
            index.apply_rows(base_offset, rows)
        self.unread = []
        self.index = index
        self.on_log_start()
        self.schedule()

    def load_again(self) -> None:
        """Read the log again after a failure."""
        if not self.is_over():
            self.host.spawn(self.load())

    def stop(self) -> None:
        """End: the role has ended, or the topic no longer has the setting."""
        self.stopped = True
        self.host.due.discard(self)


def start_schedule(
    host: DelayedDelivery, leader: SchedulingLeader, present: LeaderSchedule | None = None
) -> LeaderSchedule | None:
    """Return the schedule of a leader that is new or whose topic's settings have changed; None without the setting."""
    if present is not None and not leader.config.delivery_schedule_enable:
        present.stop()
        return None
    if present is not None or not leader.config.delivery_schedule_enable:
        return present
    return LeaderSchedule(host, leader)
