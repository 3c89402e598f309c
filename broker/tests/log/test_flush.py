"""The flushed offset, and the effects of a failed flush."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from faulty import FaultyFiles
from log_kit import SMALL, TOPIC, UNFLUSHED, append, batch_of, open_log, opened, read_all, settle
from memory_files import MemoryFiles

from penstock.config.topic import FOREVER
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogDirFailed, LogFull


async def until_flushed(log: PartitionLog) -> None:
    done = asyncio.Event()
    log.on_flushed = lambda log: done.set() if log.flushed_offset >= log.end_offset else None
    await asyncio.wait_for(done.wait(), 60)


async def test_nothing_is_flushed_before_its_file_and_its_directories_are_synced(tmp_path: Path) -> None:
    files = FaultyFiles()
    dirs: list[str] = []
    sync_dir = files.sync_dir
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.sync_dir = lambda path: (dirs.append(path), sync_dir(path))[1]  # type: ignore[method-assign, func-returns-value]
        files.synced.clear()
        append(log)
        assert log.flushed_offset == 0
        await until_flushed(log)
        assert log.flushed_offset == 3
        assert files.synced == [log.segments[0].path]
        assert dirs == [log.directory, str(tmp_path)]
        append(log)
        await until_flushed(log)
        assert len(dirs) == 2, "directories are only synced when names changed"


async def test_many_appends_share_a_flush() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        logs = [open_log(directory, partition=n) for n in range(3)]
        for _ in range(20):
            for log in logs:
                append(log)
        await until_flushed(logs[0])
        assert directory.flusher.rounds == 1
        assert all(log.flushed_offset == 60 for log in logs)


async def test_a_roll_between_flushes_syncs_the_old_segment_too() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        for _ in range(40):
            append(log)
        assert len(log.segments) > 2
        await directory.flusher.wait_idle()
        synced = {op.path for op in files.trace if op.kind == "sync"}
        assert {s.path for s in log.segments} <= synced
        assert log.flushed_offset == log.end_offset


async def test_flush_messages_counts_records() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, flush_messages=10))
        for _ in range(3):
            append(log, batch_of(3))
        await directory.flusher.wait_idle()
        assert directory.flusher.rounds == 0
        append(log, batch_of(3))
        await directory.flusher.wait_idle()
        assert log.flushed_offset == 12


async def test_flush_ms_flushes_what_is_older() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, flush_messages=FOREVER, flush_ms=20))
        append(log)
        assert log.progress.timer is not None
        await until_flushed(log)
        assert log.progress.timer is None, "an idle log has no timer"


async def test_without_flush_settings_nothing_is_flushed_until_somebody_asks() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, UNFLUSHED)
        append(log)
        await directory.flusher.wait_idle()
        assert log.flushed_offset == 0
        await log.flush()
        assert log.flushed_offset == 3


async def test_a_failed_sync_fails_every_waiter_and_is_never_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        failed: list[int] = []
        logs = [open_log(directory, partition=n) for n in range(3)]
        for log in logs:
            log.on_failed = lambda log: failed.append(log.partition)
        await asyncio.gather(*(flush_of(log) for log in logs))
        files.fail("sync", errno.EIO, lambda path: f"/{TOPIC}-1/" in path, times=1)
        append(logs[0])
        append(logs[1])
        with pytest.raises(LogDirFailed, match="Input/output"):
            await logs[1].flush()
        assert sorted(failed) == [0, 1, 2]
        assert logs[0].flushed_offset == logs[1].flushed_offset == 3
        files.synced.clear()
        for log in logs:
            with pytest.raises(LogDirFailed):
                append(log)
            with pytest.raises(LogDirFailed):
                await log.flush()
        with pytest.raises(LogDirFailed):
            open_log(directory, partition=9)
        assert files.synced == []
        assert read_all(logs[0], 0, 3), "what was flushed can still be read"
    assert not (tmp_path / "clean-shutdown").exists(), "a failed directory is not left as clean"


async def flush_of(log: PartitionLog) -> None:
    append(log)
    await log.flush()


async def test_a_round_of_many_files_starts_to_write_all_of_them_before_the_first_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        logs = [open_log(directory, partition=n) for n in range(20)]
        for log in logs:
            append(log)
        await until_flushed(logs[0])
        paths = {log.segments[0].path for log in logs}
        assert directory.flusher.rounds == 1
        assert {path for path, _ in files.written_back} == paths
        assert {syncs for _, syncs in files.written_back} == {0}
        assert sorted(files.synced) == sorted(paths)


@pytest.mark.parametrize("failing", range(10))
async def test_one_failed_sync_among_many_fails_the_round(tmp_path: Path, failing: int) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        logs = [open_log(directory, partition=n) for n in range(20)]
        for log in logs:
            append(log)
        path = logs[failing].segments[0].path
        files.fail("sync", errno.EIO, lambda synced: synced == path, times=1)
        flushes = await asyncio.gather(*(log.flush() for log in logs), return_exceptions=True)
        assert all(isinstance(outcome, LogDirFailed) for outcome in flushes)
        assert {log.flushed_offset for log in logs} == {0}
        assert len(set(files.synced)) == len(files.synced), "no file is synced a second time"


async def test_no_space_on_sync_is_final_too(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.fail("sync", errno.ENOSPC)
        append(log)
        with pytest.raises(LogDirFailed):
            await log.flush()
        assert directory.failed is not None


async def test_a_failed_sync_of_the_directory_counts_as_a_failed_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.fail("sync_dir", errno.EIO)
        append(log)
        with pytest.raises(LogDirFailed):
            await log.flush()
        assert log.flushed_offset == 0


async def test_no_space_on_write_keeps_nothing_of_the_batch_and_passes(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        first = append(log)
        files.fail("append", errno.ENOSPC)
        for _ in range(3):
            with pytest.raises(LogFull, match="no space"):
                append(log)
        assert (log.end_offset, log.size_bytes) == (3, len(first))
        files.heal()
        second = append(log)
        await log.flush()
        assert read_all(log) == first + second
    async with opened(files, str(tmp_path)) as directory:
        assert read_all(open_log(directory)) == first + second


async def test_no_space_for_a_new_segment_passes_too(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(10)]
        files.fail("create", errno.ENOSPC)
        refused = 0
        for _ in range(40):
            try:
                batches.append(append(log))
            except LogFull:
                refused += 1
        assert refused > 10
        files.heal()
        batches += [append(log) for _ in range(30)]
        await log.flush()
        assert read_all(log) == b"".join(batches)


async def test_an_error_on_write_stops_the_directory(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log, other = open_log(directory), open_log(directory, partition=1)
        batch = append(log)
        await log.flush()
        files.fail("append", errno.EIO, times=1)
        with pytest.raises(LogDirFailed):
            append(log)
        with pytest.raises(LogDirFailed):
            append(other)
        files.heal()
    async with opened(files, str(tmp_path)) as directory:
        assert directory.was_unclean
        assert read_all(open_log(directory)) == batch


async def test_old_segments_can_be_dropped_from_a_full_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        while len(log.segments) < 6:
            append(log)
        await log.flush()
        await settle(directory)

        def full(path: str) -> bool:
            return not path.endswith("reserve") and (tmp_path / "reserve").exists()

        files.fail("write_atomic", errno.ENOSPC, full)
        log.reconfigure(replace(SMALL, retention_bytes=3000))
        directory.retention.apply(log)
        await settle(directory)
        assert len(log.segments) < 4
        files.heal()
        assert directory.failed is None


@pytest.mark.parametrize("clean", [True, False])
async def test_a_broker_starts_and_ends_on_a_full_disk(tmp_path: Path, clean: bool) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path), clean=clean) as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(50)]
        await log.flush()
        await settle(directory)
    for operation in ("append", "create", "write_atomic"):
        files.fail(operation, errno.ENOSPC)
    for _ in range(2):
        async with opened(files, str(tmp_path)) as directory:
            log = open_log(directory)
            assert read_all(log) == b"".join(batches)
            assert log.offset_for_timestamp(0, log.end_offset) is not None
            with pytest.raises(LogFull):
                append(log)
    files.heal()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        batches.append(append(log))
        await log.flush()
        assert read_all(log) == b"".join(batches)


@pytest.mark.parametrize("operation", ["write_atomic", "sync_dir"])
async def test_a_disk_that_fails_during_the_shutdown_makes_it_unclean_and_releases_the_directory(
    tmp_path: Path, operation: str
) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        batch = append(log)
        await log.flush()
        await settle(directory)
        log.progress.directory_unsynced = True
        files.fail(operation, errno.EIO)
    files.heal()
    async with opened(files, str(tmp_path)) as directory:
        assert directory.was_unclean
        assert read_all(open_log(directory)) == batch


async def test_logs_that_nobody_flushes_do_not_hold_files_without_bound() -> None:
    async with opened(MemoryFiles(), "/data", max_open_files=20) as directory:
        logs = [open_log(directory, UNFLUSHED, partition=n) for n in range(200)]
        most = 0
        for log in logs:
            append(log)
            await settle(directory)
            most = max(most, directory.pool.open_files)
        assert most < 60
        assert all(read_all(log) for log in logs)


async def test_a_flush_that_began_before_a_truncation_says_nothing_of_the_log_after_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log, other = (open_log(directory, replace(SMALL, segment_bytes=1 << 20), partition=n) for n in range(2))
        for one in (log, other):
            append(one)
            await one.flush()
        first = files.hold(f"{TOPIC}-0/")
        for _ in range(10):
            append(log)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert directory.flusher.running, "the round with all of this is under way"
        append(other)
        second = files.hold(f"{TOPIC}-1/")
        cut = asyncio.ensure_future(log.truncate_to(6))  # requests a second round with the old end offset
        await asyncio.sleep(0)
        first.set()
        await cut
        assert (log.end_offset, log.flushed_offset) == (6, 6)
        third = files.hold(f"{TOPIC}-0/")
        second.set()
        await other.flush()
        assert (log.end_offset, log.flushed_offset) == (6, 6)
        append(log, epoch=2)
        flushed = asyncio.ensure_future(log.flush())
        await asyncio.wait([flushed], timeout=0.1)
        assert not flushed.done(), "its bytes are not on disk"
        assert log.flushed_offset == 6
        third.set()
        await flushed
        assert log.flushed_offset == log.end_offset == 9


async def test_a_flush_that_began_before_a_log_starts_over_says_nothing_of_it_either(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log, other = (open_log(directory, partition=n) for n in range(2))
        append(other)
        append(log)
        await log.flush()
        await other.flush()
        first = files.hold(f"{TOPIC}-0/")
        append(log)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        append(other)
        second = files.hold(f"{TOPIC}-1/")
        anew = asyncio.ensure_future(log.truncate_fully_and_start_at(2))
        await asyncio.sleep(0)
        first.set()
        await anew
        second.set()
        await other.flush()
        assert (log.start_offset, log.end_offset, log.flushed_offset) == (2, 2, 2)


async def test_a_flush_that_messages_demanded_cancels_the_timer_of_the_older_ones() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, flush_messages=4, flush_ms=3_600_000))
        append(log, batch_of(3))
        timer = log.progress.timer
        assert timer is not None
        append(log, batch_of(3))
        await directory.flusher.wait_idle()
        assert timer.cancelled(), "the next records would be flushed too early"
        append(log, batch_of(3))
        assert log.progress.timer not in (None, timer)


async def test_a_flush_timer_that_finds_nothing_unflushed_or_a_closed_log_requests_no_flush() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, flush_messages=FOREVER, flush_ms=3_600_000))
        log.on_flush_timer()
        assert not log.flush_requested
        append(log)
        log.on_flush_timer()
        assert log.flush_requested
        await directory.flusher.wait_idle()
        append(log)
        await log.close()
        assert log.closed
        log.flush_requested = False
        log.unflushed_records = 1
        log.on_flush_timer()
        assert not log.flush_requested


async def test_a_flush_cannot_cover_more_than_was_written() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, UNFLUSHED)
        append(log)
        work = log.start_flush()
        with pytest.raises(AssertionError, match="flushed up to 4, past the end"):
            log.complete_flush(work._replace(end_offset=4))


async def test_a_checkpoint_cannot_cover_more_than_was_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def skipped(log: PartitionLog) -> None:
        pass

    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, UNFLUSHED)
        append(log)
        with monkeypatch.context() as broken:
            broken.setattr(PartitionLog, "flush", skipped)
            with pytest.raises(AssertionError, match=r"a checkpoint up to 3 of .* flushed up to 0"):
                await directory.maintenance.write_checkpoint(log)
