"""Drops old segments by age and by size. Driven by deadlines, so that logs with nothing to drop cost nothing.

`LogDir` tells it when a log rolled or got new settings. Age is measured by the wall clock, which can be set: when it
leaps against the boot clock, dropping by age pauses and says so, because a clock set wrong must not delete data.
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

LEAP_MS = 300_000
"""A difference between the clocks' advances that is no mere slewing."""
PAUSE_MS = 24 * 3_600_000
"""How long a leapt clock is distrusted, unless it leaps back."""
RETRY_MS = 60_000
"""When to look again at segments that are due but still above the high watermark, or while paused."""
LONGEST_SLEEP_MS = 600_000
"""The timer never sleeps longer, so that a set clock is noticed."""

logger = get_logger(__name__)


class ClockGuard:
    """Notices that the wall clock was set."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.offset_ms = clock.wall_ms() - clock.boot_ms()
        self.leapt_to_ms: int | None = None
        self.leapt_at_ms = 0

    def trusted(self) -> bool:
        """Whether ages may be taken from the wall clock just now."""
        boot_ms = self.clock.boot_ms()
        offset_ms = self.clock.wall_ms() - boot_ms
        if abs(offset_ms - self.offset_ms) <= LEAP_MS:
            if self.leapt_to_ms is not None:
                self.leapt_to_ms = None
                logger.warning("the wall clock leapt back: retention by age goes on")
            self.offset_ms = offset_ms
            return True
        if self.leapt_to_ms is None or abs(offset_ms - self.leapt_to_ms) > LEAP_MS:
            self.leapt_to_ms, self.leapt_at_ms = offset_ms, boot_ms
            logger.error(
                "the wall clock leapt: retention by age pauses",
                leap_s=(offset_ms - self.offset_ms) // 1000,
                until_s_from_now=PAUSE_MS // 1000,
            )
        if boot_ms - self.leapt_at_ms < PAUSE_MS:
            return False
        self.offset_ms, self.leapt_to_ms = offset_ms, None
        logger.warning("the wall clock has been steady since its leap: retention by age goes on")
        return True


class Retention:
    """When which log has something to drop. Used on the event loop."""

    def __init__(self, clock: Clock, drop: Callable[[PartitionLog], None], delay_ms: int = 0) -> None:
        self.clock = clock
        self.drop = drop
        self.delay_ms = delay_ms
        """How long what was just written is left alone, however old its timestamps: somebody may be reading it."""
        self.guard = ClockGuard(clock)
        self.due: DueQueue[PartitionLog] = DueQueue()
        self.timer: asyncio.TimerHandle | None = None
        self.timer_due_ms = 0
        self.started = False

    def start(self) -> None:
        self.started = True
        self.arm()

    def stop(self) -> None:
        self.started = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def note(self, log: PartitionLog, due_ms: int | None = None) -> None:
        """Has a log looked at, when it may have something to drop or at `due_ms` of the wall clock."""
        if due_ms is None:
            now_ms = self.clock.wall_ms()
            due_ms = next_due_ms(log, now_ms)
            due_ms = None if due_ms is None else max(due_ms, now_ms + self.delay_ms)
        known_ms = self.due.due_ms(log)
        if due_ms is None or log.closed or (known_ms is not None and known_ms <= due_ms):
            return  # nothing to come, or it will be looked at before
        self.due.put(log, due_ms)
        self.arm()

    def forget(self, log: PartitionLog) -> None:
        """Stop looking at a log that is closed or deleted."""
        self.due.discard(log)

    def arm(self) -> None:
        due_ms = self.due.first_ms()
        if due_ms is None or not self.started:
            return
        if self.timer is not None:
            if self.timer_due_ms <= due_ms:
                return
            self.timer.cancel()
        self.timer_due_ms = due_ms
        wait_ms = min(max(due_ms - self.clock.wall_ms(), 0), LONGEST_SLEEP_MS)
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.on_timer)

    def on_timer(self) -> None:
        self.timer = None
        self.guard.trusted()
        now_ms = self.clock.wall_ms()
        while (log := self.due.pop_due(now_ms)) is not None:
            if not log.closed and log.failed is None:
                self.apply(log)
        self.arm()

    def apply(self, log: PartitionLog) -> int:
        """Moves the log's start past what is to go, and has it dropped; returns how many segments that is."""
        now_ms, limit_offset = self.clock.wall_ms(), log.retention_limit()
        trusted = self.guard.trusted()
        config = log.config
        if trusted and config.cleanup_delete and config.retention_ms >= 0 and log.active is not None:
            active = log.active
            if active.size and aged(active, now_ms, config.retention_ms) and active.end_offset <= limit_offset:
                with contextlib.suppress(LogError):  # a full disk, say: it is tried again
                    log.roll(log.end_offset)
        count = droppable(log, now_ms, limit_offset, by_age=trusted)
        due_ms = next_due_ms(log, now_ms, count)
        if due_ms is not None and due_ms <= now_ms:
            due_ms = now_ms + RETRY_MS
        self.due.discard(log)
        if due_ms is not None:
            self.note(log, due_ms)
        if count:
            log.move_start(log.segments[count].base_offset)
        if count or log.dropped or (len(log.segments) > 1 and log.segments[1].base_offset <= log.start_offset):
            self.drop(log)
        return count


def aged(segment: Segment, now_ms: int, retention_ms: int) -> bool:
    newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.aged_ms
    return newest_ms >= 0 and now_ms - newest_ms > retention_ms


def droppable(log: PartitionLog, now_ms: int, limit_offset: int, by_age: bool = True) -> int:
    """How many of the oldest segments are to go: never the active one, never what is not below `limit_offset`."""
    config = log.config
    if not config.cleanup_delete:
        return 0
    size_bytes, count = log.size_bytes, 0
    for segment in log.segments[:-1]:
        if segment.end_offset > limit_offset:
            break
        old = by_age and config.retention_ms >= 0 and aged(segment, now_ms, config.retention_ms)
        if not old and not 0 <= config.retention_bytes <= size_bytes - segment.size:
            break
        size_bytes -= segment.size
        count += 1
    return count


def next_due_ms(log: PartitionLog, now_ms: int, skip: int = 0) -> int | None:
    """The wall time at which the log's oldest segment but `skip` may be due; None where only a roll can make it so."""
    config = log.config
    if not config.cleanup_delete or skip >= len(log.segments):
        return None
    oldest = log.segments[skip]
    due: list[int] = []
    if config.retention_bytes >= 0 and oldest is not log.active:
        remaining = sum(s.size for s in log.segments[skip:])
        if remaining - oldest.size >= config.retention_bytes:
            due.append(now_ms)
    newest_ms = oldest.max_timestamp_ms if oldest.max_timestamp_ms >= 0 else oldest.aged_ms
    if config.retention_ms >= 0 and newest_ms >= 0:
        due.append(newest_ms + config.retention_ms + 1)
    return min(due, default=None)
