"""Delivers the records of topics with `delivery.delay.ms`: moves the visible offsets of the partitions that this broker
leads, and wakes their readers.

`ReplicaManager` creates one `DelayedDelivery`, with one timer for all partitions whose records wait. A `Leader` of a
delayed topic has a `LeaderDelivery`, and passes on what changes. Runs on the event loop; threads read the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from penstock.config.topic import TopicConfig
from penstock.log.append_times import BatchTimes, find_first_newer, read_times
from penstock.log.due_queue import DueQueue
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogError
from penstock.replica.delivery_window import MAX_STEPS, DeliveryWindow
from penstock.replica.partition import Reader
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.wire.batch import BatchHeader

MAX_SLEEP_MS = 1_000
"""Maximum timer delay while records wait, so that a wall clock that is set is noticed."""
PARTITIONS_PER_TURN = 64
"""Partitions to advance before the event loop continues with other work."""
MAX_READS = 2
"""Concurrent reads of logs, so that some worker threads are always left for fetches."""
BATCHES_PER_READ = MAX_STEPS // 2
UNKNOWN_BYTES = 1 << 30
"""Stands for how much became visible if that is not known: waiting readers respond with all that is visible."""
RETRY_S = 10.0
"""Time after which a log that could not be read is read again; until then no further record becomes visible."""

logger = get_logger("penstock.replica")

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class DelayedLeader(Protocol):
    """What delayed delivery needs of a `leader.Leader`."""

    config: TopicConfig
    high_watermark: int
    log: PartitionLog
    ended: bool
    readers: dict[Reader, None]

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed readers, if no record waits."""


class TimedDelivery(Protocol):
    """A partition with records that wait for a time: `LeaderDelivery`, or `scheduled_delivery.LeaderSchedule`."""

    def __hash__(self) -> int:
        """Hash by identity."""

    def advance(self) -> None:
        """Deliver what is due."""


class DelayedDelivery:
    """The led partitions with records that wait, by the time at which the next ones are due."""

    def __init__(self, clock: Clock, spawn: Spawn) -> None:
        self.clock, self.spawn = clock, spawn
        self.due: DueQueue[TimedDelivery] = DueQueue()
        self.timer: asyncio.TimerHandle | None = None
        self.timer_due_ms = 0
        self.last_ms = clock.wall_ms()
        """The last known time, by which a clock that is set back is noticed."""
        self.to_read: dict[LeaderDelivery, None] = {}
        """Partitions whose logs must be read, in the order of their requests."""
        self.reads = 0
        self.loads = asyncio.Semaphore(MAX_READS)
        """Reads of the logs of topics with scheduled records, which may take seconds."""
        self.closed = False

    def start(self, leader: DelayedLeader) -> LeaderDelivery | None:
        """Return the delivery of a new leader; None if its topic has no delay."""
        if not leader.config.delivery_delay_ms:
            return None
        return LeaderDelivery(self, leader, leader.log.start_offset)

    def reconfigure(self, leader: DelayedLeader, present: LeaderDelivery | None) -> LeaderDelivery | None:
        """Return the delivery of a leader after a change of its topic's settings."""
        delay_ms = leader.config.delivery_delay_ms
        if present is None:
            # All records below the high watermark have been visible.
            return LeaderDelivery(self, leader, leader.high_watermark, is_located=True) if delay_ms else None
        if delay_ms:
            present.set_delay(delay_ms)
            return present
        present.stop()
        present.wake_readers(UNKNOWN_BYTES)
        return None

    def schedule(self, delivery: LeaderDelivery) -> None:
        """Advance a partition when its next records are due."""
        self.schedule_at(delivery, delivery.window.next_due_ms)

    def schedule_at(self, delivery: TimedDelivery, due_ms: int | None) -> None:
        """Advance a partition at a time, in ms since 1970; None for not at all."""
        if due_ms is None or self.closed:
            self.due.discard(delivery)
        elif self.due.due_ms(delivery) != due_ms:
            self.due.put(delivery, due_ms)
            self.set_timer()

    def set_timer(self) -> None:
        """Set the timer for the first partition that is due."""
        due_ms = self.due.first_ms()
        if due_ms is None or self.closed or (self.timer is not None and self.timer_due_ms <= due_ms):
            return
        if self.timer is not None:
            self.timer.cancel()
        now_ms = self.clock.wall_ms()
        wait_ms = min(max(due_ms - now_ms, 0), MAX_SLEEP_MS)
        self.timer_due_ms = min(due_ms, now_ms + wait_ms)
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.on_timer)

    def on_timer(self) -> None:
        """Advance the partitions that are due."""
        self.timer = None
        now_ms = self.clock.wall_ms()
        if now_ms < self.last_ms:  # the clock was set back
            for waiting in list(self.due.entries):
                waiting.advance()
        self.last_ms = now_ms
        for _ in range(PARTITIONS_PER_TURN):
            delivery = self.due.pop_due(now_ms)
            if delivery is None:
                break
            delivery.advance()
        self.set_timer()

    def read_soon(self, delivery: LeaderDelivery) -> None:
        """Read the log of a partition in a thread, after those that were requested before."""
        self.to_read[delivery] = None
        if self.reads < MAX_READS and not self.closed:
            self.reads += 1
            self.spawn(self.read_logs())

    async def read_logs(self) -> None:
        """Read logs until none is left to read."""
        try:
            while self.to_read and not self.closed:
                delivery = next(iter(self.to_read))
                del self.to_read[delivery]
                await delivery.read_log()
        finally:
            self.reads -= 1

    def close(self) -> None:
        """Stop the timer and further reads."""
        self.closed = True
        self.to_read.clear()
        if self.timer is not None:
            self.timer.cancel()


class LeaderDelivery:
    """The delayed delivery of one partition in one leader epoch."""

    __slots__ = ("awaits_retry", "host", "leader", "stable_offset", "stopped", "window")

    def __init__(
        self, host: DelayedDelivery, leader: DelayedLeader, visible_offset: int, *, is_located: bool = False
    ) -> None:
        self.host, self.leader, self.stopped = host, leader, False
        self.awaits_retry = False
        """Whether the log could not be read a short time ago."""
        self.stable_offset = visible_offset
        """The end for read_committed readers when readers were woken last."""
        end_offset = leader.log.end_offset
        self.window = DeliveryWindow(
            leader.config.delivery_delay_ms,
            visible_offset,
            end_offset,
            host.clock.wall_ms(),
            is_located=is_located or visible_offset == end_offset,
        )
        self.read_if_needed()

    @property
    def visible_offset(self) -> int:
        """The offset below which consumers read: at most the high watermark."""
        return self.window.visible_offset

    @property
    def is_located(self) -> bool:
        """Whether the visible offset is known. A new leader reads its log first."""
        return self.window.is_located

    @property
    def delay_ms(self) -> int:
        """The topic's `delivery.delay.ms`."""
        return self.window.delay_ms

    @property
    def waiting(self) -> int:
        """Number of committed offsets that are not visible yet; 0 while that is not known."""
        return max(self.leader.high_watermark - self.window.visible_offset, 0) if self.is_located else 0

    @property
    def next_due_ms(self) -> int | None:
        """When the next record becomes visible, in ms since 1970; None if none is known to wait."""
        return self.window.next_due_ms if self.waiting else None

    def on_append(self, header: BatchHeader) -> None:
        """Record a batch that the leader has appended."""
        window, was_empty = self.window, not self.window.steps
        window.on_append(header.base_offset, header.last_offset + 1, header.max_timestamp_ms, header.size_bytes)
        self.host.last_ms = max(self.host.last_ms, window.clock_ms)
        if was_empty and window.steps:
            self.host.schedule(self)

    def on_log_start(self) -> None:
        """Skip deleted records. The caller wakes the readers."""
        self.window.on_log_start(self.leader.log.start_offset)
        self.advance()

    def set_delay(self, delay_ms: int) -> None:
        """Apply a changed delay to all records that are not visible."""
        self.window.set_delay(delay_ms)
        self.read_if_needed()
        self.advance()

    def advance(self) -> None:
        """Make visible what is due and committed, and wake readers if their end has moved.

        The end of a transaction moves that of read_committed readers before its marker is due.
        """
        if self.stopped:
            return
        leader = self.leader
        grown = self.window.advance(self.host.clock.wall_ms(), leader.high_watermark, leader.log.end_offset)
        self.read_if_needed()
        self.host.schedule(self)
        stable_offset = min(leader.last_stable_offset, self.visible_offset)
        if grown or stable_offset > self.stable_offset:
            self.stable_offset = stable_offset
            self.wake_readers(grown or UNKNOWN_BYTES)

    def wake_readers(self, grown_bytes: int) -> None:
        """Let waiting readers read."""
        for reader in list(self.leader.readers):
            reader.on_data(grown_bytes)

    def stop(self) -> None:
        """End: the role has ended, or the topic no longer has a delay."""
        self.stopped = True
        self.host.due.discard(self)
        self.host.to_read.pop(self, None)

    # Reading the log

    def read_if_needed(self) -> None:
        """Have the log read if the window has room for more of its batches."""
        if self.awaits_retry:
            return
        if not self.window.is_located or self.window.needs_batches(self.leader.log.end_offset):
            self.host.read_soon(self)

    def retry(self) -> None:
        """Read the log again after a failure."""
        self.awaits_retry = False
        self.advance()

    async def read_log(self) -> None:
        """Read the start of the window, or the next batches, in a thread; retry later if the log cannot be read."""
        if self.stopped:
            return
        window, log = self.window, self.leader.log
        if window.is_located and not window.needs_batches(log.end_offset):
            return
        generation, scanned_end, is_located = window.generation, window.scanned_end, window.is_located
        search, end_offset, due_ms = log.new_search(), log.end_offset, window.known_ms - window.delay_ms

        def read() -> int | BatchTimes:
            if is_located:
                return read_times(search, scanned_end, end_offset, BATCHES_PER_READ)
            return find_first_newer(search, due_ms, end_offset)

        try:
            found = await asyncio.get_running_loop().run_in_executor(None, read)
        except LogError as e:
            if not self.stopped:
                self.awaits_retry = True
                logger.error("cannot read which records are due; retrying", partition=repr(self.leader), reason=str(e))
                asyncio.get_running_loop().call_later(RETRY_S, self.retry)
            return
        if self.stopped:
            return
        if generation == window.generation and scanned_end == window.scanned_end:
            if isinstance(found, int):
                window.locate(found)
            else:
                window.add_batches(found.batches, found.end_offset)
        self.advance()
        if not is_located and window.is_located:
            self.wake_readers(UNKNOWN_BYTES)
