"""Drops old segments by age and size. Driven by deadlines, so that logs with nothing to drop cost nothing.

Deadlines are rounded up to the next check (`log.retention.check.interval.ms`), so segments are dropped when Kafka's
periodic check would drop them.

`log_dir` notifies it when a log rolls or gets new settings, and deletes what it finds (`start_dropping`). Age is
measured by the wall clock, which can be set: after a jump relative to the boot clock, retention by age pauses, because
a wrong clock must not delete data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from penstock.log.due_queue import DueQueue
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment
from penstock.log.types import LogError
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger

CLOCK_JUMP_MS = 300_000
"""Difference between the clocks' advances that is a jump, not slewing."""
PAUSE_MS = 24 * 3_600_000
"""Pause of retention by age after a clock jump, unless the clock jumps back."""
RETRY_MS = 60_000
"""Delay before segments are checked again that are due but above the high watermark, or while paused."""
MAX_SLEEP_MS = 600_000
"""Maximum timer delay, so that a changed clock is noticed."""

logger = get_logger(__name__)


class ClockGuard:
    """Detects jumps of the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.offset_ms = clock.wall_ms() - clock.boot_ms()
        self.jumped_offset_ms: int | None = None
        self.jumped_at_ms = 0

    def is_trusted(self) -> bool:
        """Return whether the wall clock may be used to compute ages now."""
        boot_ms = self.clock.boot_ms()
        offset_ms = self.clock.wall_ms() - boot_ms
        if abs(offset_ms - self.offset_ms) <= CLOCK_JUMP_MS:
            if self.jumped_offset_ms is not None:
                self.jumped_offset_ms = None
                logger.warning("wall clock jumped back; retention by age resumes")
            self.offset_ms = offset_ms
            return True
        if self.jumped_offset_ms is None or abs(offset_ms - self.jumped_offset_ms) > CLOCK_JUMP_MS:
            self.jumped_offset_ms, self.jumped_at_ms = offset_ms, boot_ms
            logger.error(
                "wall clock jumped; retention by age is paused",
                leap_s=(offset_ms - self.offset_ms) // 1000,
                until_s_from_now=PAUSE_MS // 1000,
            )
        if boot_ms - self.jumped_at_ms < PAUSE_MS:
            return False
        self.offset_ms, self.jumped_offset_ms = offset_ms, None
        logger.warning("wall clock steady since its jump; retention by age resumes")
        return True


class Retention:
    """The queue of logs by the time at which they may have segments to drop. Used on the event loop."""

    def __init__(self, clock: Clock, drop: Callable[[PartitionLog], None], check_interval_ms: int = 1) -> None:
        self.clock = clock
        self.drop = drop
        self.check_interval_ms = check_interval_ms
        self.first_check_ms = clock.wall_ms()
        self.guard = ClockGuard(clock)
        self.due: DueQueue[PartitionLog] = DueQueue()
        self.timer: asyncio.TimerHandle | None = None
        self.timer_due_ms = 0
        self.started = False

    def start(self) -> None:
        """Start the timer."""
        self.started = True
        self.arm_timer()

    def stop(self) -> None:
        """Cancel the timer."""
        self.started = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def schedule(self, log: PartitionLog, due_ms: int | None = None) -> None:
        """Schedule a log for the check after `due_ms` (wall clock), by default after the time at which it may have a
        segment to drop."""
        if due_ms is None:
            due_ms = next_due_ms(log, self.clock.wall_ms())
        if due_ms is not None:
            due_ms = self.next_check_ms(due_ms)
        known_ms = self.due.due_ms(log)
        if due_ms is None or log.closed or (known_ms is not None and known_ms <= due_ms):
            return  # never due, or already scheduled earlier
        self.due.put(log, due_ms)
        self.arm_timer()

    def next_check_ms(self, due_ms: int) -> int:
        """Return the time of the check, now or later, that drops what is due at `due_ms`."""
        due_ms = max(due_ms, self.clock.wall_ms())
        return due_ms + (self.first_check_ms - due_ms) % self.check_interval_ms

    def forget(self, log: PartitionLog) -> None:
        """Stop checking a log that is closed or deleted."""
        self.due.discard(log)

    def arm_timer(self) -> None:
        """Set the timer to the first due log."""
        due_ms = self.due.first_ms()
        if due_ms is None or not self.started:
            return
        if self.timer is not None:
            if self.timer_due_ms <= due_ms:
                return
            self.timer.cancel()
        self.timer_due_ms = due_ms
        wait_ms = min(max(due_ms - self.clock.wall_ms(), 0), MAX_SLEEP_MS)
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.on_timer)

    def on_timer(self) -> None:
        """Check all due logs."""
        self.timer = None
        self.guard.is_trusted()
        now_ms = self.clock.wall_ms()
        while (log := self.due.pop_due(now_ms)) is not None:
            if not log.closed and log.failed is None:
                self.apply(log)
        self.arm_timer()

    def apply(self, log: PartitionLog) -> int:
        """Move the log's start past its droppable segments and drop them; return their number."""
        now_ms, limit_offset = self.clock.wall_ms(), log.retention_limit()
        trusted = self.guard.is_trusted()
        config = log.config
        if trusted and config.cleanup_delete and config.retention_ms >= 0 and log.active is not None:
            active = log.active
            age_ms = config.retention_ms + config.delivery_delay_ms
            if active.size and is_expired(active, now_ms, age_ms) and active.end_offset <= limit_offset:
                with contextlib.suppress(LogError):  # for example a full disk: retried later
                    log.roll(log.end_offset)
        count = count_droppable(log, now_ms, limit_offset, by_age=trusted)
        due_ms = next_due_ms(log, now_ms, count)
        if due_ms is not None and due_ms <= now_ms:
            due_ms = now_ms + RETRY_MS
        self.due.discard(log)
        if due_ms is not None:
            self.schedule(log, due_ms)
        if count:
            assert log.segments[count - 1].end_offset <= limit_offset, f"retention of {log} passed {limit_offset}"
            log.move_start(log.segments[count].base_offset)
        if count or log.dropped or (len(log.segments) > 1 and log.segments[1].base_offset <= log.start_offset):
            self.drop(log)
        return count


def is_expired(segment: Segment, now_ms: int, retention_ms: int) -> bool:
    """Return whether all records of a segment are older than `retention_ms`."""
    newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.aged_ms
    return newest_ms >= 0 and now_ms - newest_ms > retention_ms


def count_droppable(log: PartitionLog, now_ms: int, limit_offset: int, by_age: bool = True) -> int:
    """Return how many of the oldest segments to drop: never the active one, none above `limit_offset`.

    With `delivery.delay.ms`, the age counts from the delivery, and no segment is dropped before that.
    """
    config = log.config
    delay_ms = config.delivery_delay_ms
    if not config.cleanup_delete:
        return 0
    size_bytes, count = log.size_bytes, 0
    for segment in log.segments[:-1]:
        if segment.end_offset > limit_offset:
            break
        if delay_ms and not (by_age and is_expired(segment, now_ms, delay_ms)):
            break
        old = by_age and config.retention_ms >= 0 and is_expired(segment, now_ms, config.retention_ms + delay_ms)
        if not old and not 0 <= config.retention_bytes <= size_bytes - segment.size:
            break
        size_bytes -= segment.size
        count += 1
    return count


def next_due_ms(log: PartitionLog, now_ms: int, skip: int = 0) -> int | None:
    """Return the wall time at which the log's oldest segment after `skip` may be due; None if only a roll can make it
    so."""
    config = log.config
    if not config.cleanup_delete or skip >= len(log.segments):
        return None
    oldest = log.segments[skip]
    due: list[int] = []
    newest_ms = oldest.max_timestamp_ms if oldest.max_timestamp_ms >= 0 else oldest.aged_ms
    if config.retention_bytes >= 0 and oldest is not log.active:
        remaining = sum(s.size for s in log.segments[skip:])
        if remaining - oldest.size >= config.retention_bytes:
            due.append(max(now_ms, newest_ms + config.delivery_delay_ms + 1) if config.delivery_delay_ms else now_ms)
    if config.retention_ms >= 0 and newest_ms >= 0:
        due.append(newest_ms + config.delivery_delay_ms + config.retention_ms + 1)
    return min(due, default=None)
