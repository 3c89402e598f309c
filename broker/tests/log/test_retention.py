"""Retention by age and size never drops segments above the high watermark or while the clock is untrusted."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest
from faulty import FaultyFiles
from log_kit import (
    SMALL,
    START_MS,
    TOPIC,
    Digest,
    HandClock,
    append,
    batch_of,
    open_log,
    opened,
    read_all,
    settle,
)
from memory_files import CrashImages, MemoryFiles

from penstock.config.topic import DAY_MS
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import CLOCK_JUMP_MS, PAUSE_MS, ClockGuard, Retention

WEEK = replace(SMALL, retention_ms=7 * DAY_MS)


async def fill(log: PartitionLog, segments: int, step_ms: int = 1000) -> None:
    """Append until the log has that many segments; each batch is `step_ms` newer than the previous one."""
    count = 0
    while len(log.segments) < segments:
        append(log, batch_of(2, timestamp_ms=START_MS + count * step_ms))
        count += 1
    await log.flush()


async def apply(directory: LogDirectory, log: PartitionLog) -> None:
    directory.retention.apply(log)
    await settle(directory)


async def test_segments_go_when_their_newest_record_is_older_than_retention_ms() -> None:
    clock, files = HandClock(), MemoryFiles()
    async with opened(files, "/data", clock) as directory:
        log = open_log(directory, WEEK)
        await fill(log, 5)
        newest = [s.max_timestamp_ms for s in log.segments]
        clock.advance(newest[1] + WEEK.retention_ms - START_MS)
        await apply(directory, log)
        assert log.start_offset == log.segments[0].base_offset
        assert [s.max_timestamp_ms for s in log.segments] == newest[1:], "exactly retention.ms is not too old"
        clock.advance(1)
        await apply(directory, log)
        assert [s.max_timestamp_ms for s in log.segments] == newest[2:]


async def test_the_active_segment_is_rolled_when_all_in_it_has_expired() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, WEEK)
        append(log)
        await log.flush()
        clock.advance(8 * DAY_MS)
        await apply(directory, log)
        assert (log.start_offset, log.end_offset, log.size_bytes) == (3, 3, 0)
        batch = append(log)
        assert read_all(log) == batch


async def test_the_oldest_segments_go_while_the_rest_is_at_least_retention_bytes() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        await fill(log, 8)
        log.reconfigure(replace(SMALL, retention_bytes=5000))
        await settle(directory)
        await apply(directory, log)
        assert log.size_bytes >= 5000 > log.size_bytes - log.segments[0].size


async def test_size_is_looked_at_when_a_log_rolls_without_anybody_asking() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, retention_bytes=4000))
        for _ in range(200):
            append(log)
            await log.flush()
        deadline = asyncio.get_running_loop().time() + 10
        while log.size_bytes > 6200 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
            await settle(directory)
        assert 4000 <= log.size_bytes <= 6200


async def test_nothing_goes_above_the_high_watermark() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, WEEK)
        await fill(log, 5)
        clock.advance(100 * DAY_MS)
        log.retention_limit = lambda: log.segments[1].end_offset - 1
        await apply(directory, log)
        assert log.start_offset == log.segments[0].base_offset > 0
        limit = log.segments[1].end_offset
        assert log.start_offset <= limit


async def test_without_delete_in_the_cleanup_policy_nothing_goes() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(
            directory, replace(WEEK, cleanup_delete=False, cleanup_compact=True, min_compaction_lag_ms=1 << 60)
        )
        await fill(log, 5)
        clock.advance(100 * DAY_MS)
        await apply(directory, log)
        assert len(log.segments) == 5


@pytest.mark.slow
async def test_files_of_dropped_segments_are_renamed_and_removed_later() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory, replace(SMALL, file_delete_delay_ms=3_000))
        await fill(log, 4)
        offset = log.segments[2].base_offset
        await log.delete_records_before(offset)
        await asyncio.sleep(0.05)
        await settle(directory)
        assert sum(name.endswith(".log.deleted") for name in files.list(log.directory)) == 2
        deadline = asyncio.get_running_loop().time() + 60
        while any(name.endswith(".deleted") for name in files.list(log.directory)):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        assert sum(name.endswith(".log") for name in files.list(log.directory)) == 2


async def test_a_slice_of_a_dropped_segment_can_be_read_to_its_end() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        await fill(log, 4)
        part = log.read(0, 500, log.end_offset, at_least_one=True)
        assert part is not None
        before = part.file.read_at(part.position, part.size)
        await log.delete_records_before(log.segments[2].base_offset)
        await settle(directory)
        assert part.file.read_at(part.position, part.size) == before
        part.release()


async def test_idle_logs_are_looked_at_once_and_then_only_when_something_is_due() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        logs = [open_log(directory, WEEK, partition=n) for n in range(20)]
        for log in logs:
            append(log)
            append(log)
        assert len(directory.retention.due) == 20
        checked: list[PartitionLog] = []
        apply = directory.retention.apply
        directory.retention.apply = lambda log: checked.append(log) or apply(log)  # type: ignore[method-assign, func-returns-value]
        clock.advance(DAY_MS)
        directory.retention.on_timer()
        assert not checked
        clock.advance(7 * DAY_MS)
        directory.retention.on_timer()
        assert len(checked) == 20


async def test_expired_segments_are_dropped_at_the_next_check_of_the_interval() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, WEEK)
        retention = Retention(clock, directory.start_dropping, check_interval_ms=300_000)
        clock.advance(1000)
        append(log, batch_of(2, timestamp_ms=clock.wall_ms() - 8 * DAY_MS))
        retention.schedule(log)
        assert retention.due.due_ms(log) == START_MS + 300_000, "old data waits for the next check, not for an interval"
        retention.forget(log)
        retention.schedule(log, START_MS + 300_000)
        assert retention.due.due_ms(log) == START_MS + 300_000
        retention.forget(log)
        retention.schedule(log, START_MS + 300_001)
        assert retention.due.due_ms(log) == START_MS + 600_000


def test_a_clock_that_leaps_is_not_trusted_until_it_leaps_back() -> None:
    clock = HandClock()
    guard = ClockGuard(clock)
    clock.advance(DAY_MS)
    assert guard.is_trusted()
    clock.now_ms += 400 * DAY_MS
    assert not guard.is_trusted()
    clock.advance(DAY_MS // 2)
    assert not guard.is_trusted()
    clock.now_ms -= 400 * DAY_MS
    assert guard.is_trusted()


def test_a_leapt_clock_is_believed_after_it_was_steady_for_long() -> None:
    clock = HandClock()
    guard = ClockGuard(clock)
    clock.now_ms -= DAY_MS
    assert not guard.is_trusted()
    clock.advance(PAUSE_MS - 1)
    assert not guard.is_trusted()
    clock.advance(1)
    assert guard.is_trusted()
    clock.now_ms += CLOCK_JUMP_MS
    assert guard.is_trusted(), "slewing is no leap"


async def test_a_leap_of_the_clock_deletes_nothing() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, WEEK)
        await fill(log, 5)
        clock.now_ms += 1000 * DAY_MS
        await apply(directory, log)
        assert len(log.segments) == 5
        clock.advance(PAUSE_MS)
        await apply(directory, log)
        assert log.start_offset == log.end_offset


async def test_a_full_disk_does_not_stop_retention_for_the_others(tmp_path: Path) -> None:
    clock, files = HandClock(), FaultyFiles()
    async with opened(files, str(tmp_path), clock) as directory:
        logs = [open_log(directory, WEEK, partition=n) for n in range(3)]
        for log in logs:
            append(log)
            await log.flush()
        clock.advance(8 * DAY_MS)
        files.fail("create", errno.ENOSPC, lambda path: f"/{TOPIC}-0/" in path)
        directory.retention.on_timer()
        await settle(directory)
        assert [log.size_bytes == 0 for log in logs] == [False, True, True]
        files.heal()
        clock.advance(DAY_MS)
        directory.retention.on_timer()
        await settle(directory)
        assert logs[0].size_bytes == 0


async def test_what_was_dropped_from_a_disk_too_full_for_a_checkpoint_goes_when_there_is_space(tmp_path: Path) -> None:
    clock, files = HandClock(), FaultyFiles()

    def on_disk(log: PartitionLog) -> list[str]:
        return sorted(name for name in files.list(log.directory) if ".log" in name)

    async with opened(files, str(tmp_path), clock) as directory:
        log, other = (open_log(directory, replace(SMALL, retention_bytes=3000), partition=n) for n in range(2))
        for one in (log, other):
            await fill(one, 8)
        files.fail("write_atomic", errno.ENOSPC)
        for one in (log, other):
            await apply(directory, one)
            assert one.start_offset == one.segments[0].base_offset > 0
            assert len(on_disk(one)) == 8
        files.heal()
        await apply(directory, log)
        assert on_disk(log) == [f"{s.base_offset:020d}.log" for s in log.segments]
    left = [f"{s.base_offset:020d}.log" for s in other.segments]
    assert on_disk(other) == left, "a clean end does not leave them either"
    async with opened(files, str(tmp_path), clock) as directory:
        log = open_log(directory, partition=1)
        assert [f"{s.base_offset:020d}.log" for s in log.segments] == left


async def test_what_is_known_of_dropped_segments_only_is_forgotten_with_them() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        state = Digest()
        log = open_log(directory, state=state)
        await fill(log, 6)
        await log.delete_records_before(log.segments[0].end_offset - 1)
        assert state.start_offset == 0, "nothing was dropped"
        await log.delete_records_before(log.segments[3].base_offset)
        assert state.start_offset == log.start_offset == log.segments[0].base_offset


async def test_a_clean_end_removes_what_was_to_go_later() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory, replace(SMALL, file_delete_delay_ms=60_000))
        await fill(log, 6)
        await log.delete_records_before(log.segments[4].base_offset)
        await asyncio.sleep(0)
        assert any(name.endswith(".deleted") for name in files.list(log.directory))
        part = log.read(log.start_offset, 1 << 20, log.end_offset, at_least_one=True)
        assert part is not None
        await log.delete_records_before(log.segments[-1].base_offset)
    assert not [name for name in files.list(log.directory) if name.endswith(".deleted")], "not even pinned files"
    part.release()


@pytest.mark.slow
async def test_a_checkpoint_counts_on_a_rolled_segment_only_when_its_name_is_durable() -> None:
    files, clock = MemoryFiles(), HandClock()
    async with opened(files, "/data", clock, clean=False) as directory:
        log = open_log(directory, WEEK)
        append(log)
        await log.flush()
        directory.start_checkpoint(log)
        await settle(directory)
        begin = len(files.trace)
        clock.advance(8 * DAY_MS)
        directory.retention.on_timer()
        await settle(directory)
        steps = len(files.trace)
        assert log.start_offset == log.end_offset
    for step in range(begin, steps + 1):
        for seed in range(10):
            image = CrashImages(files.trace).image(step, random.Random(seed))
            async with opened(image, "/data", clean=False) as directory:
                assert not directory.corrupt, f"after step {step}, seed {seed}"


async def test_deleting_what_retention_just_dropped_waits_until_that_is_on_disk() -> None:
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory, replace(SMALL, retention_bytes=3000))
        await fill(log, 8)
        directory.retention.apply(log)
        start = log.start_offset
        assert start > 0, "retention dropped something"
        await log.delete_records_before(start)
        crashed = CrashImages(files.trace).image(len(files.trace), random.Random(1))
        async with opened(crashed, "/data") as again:
            assert open_log(again).start_offset == start


async def test_the_age_of_delayed_records_counts_from_their_delivery() -> None:
    clock, files = HandClock(), MemoryFiles()
    delayed = replace(SMALL, retention_ms=DAY_MS, delivery_delay_ms=10 * DAY_MS)
    async with opened(files, "/data", clock) as directory:
        log = open_log(directory, delayed)
        await fill(log, 3)
        oldest_ms = log.segments[0].max_timestamp_ms
        clock.advance(oldest_ms + 11 * DAY_MS - START_MS)
        await apply(directory, log)
        assert log.start_offset == 0
        clock.advance(1)
        await apply(directory, log)
        assert log.start_offset > 0


async def test_no_delayed_record_goes_by_size_before_its_delivery() -> None:
    clock, files = HandClock(), MemoryFiles()
    delayed = replace(SMALL, retention_bytes=1, delivery_delay_ms=60_000)
    async with opened(files, "/data", clock) as directory:
        log = open_log(directory, delayed)
        await fill(log, 4)
        await apply(directory, log)
        assert log.start_offset == 0
        due_ms = log.segments[0].max_timestamp_ms + 60_000
        assert directory.retention.due.first_ms() == due_ms + 1, "the next check is when the first segment is due"
        clock.advance(due_ms - START_MS)
        await apply(directory, log)
        assert log.start_offset == 0
        clock.advance(1)
        await apply(directory, log)
        assert len(log.segments) == 3
