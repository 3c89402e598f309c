"""A lack of descriptors is transient; any other flush error fails the log directory. No caller waits forever."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from faulty import FaultyFiles
from log_kit import SMALL, append, open_log, opened, read_all

from penstock.log.types import LogDirFailed, LogFull


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_too_many_open_files_refuse_an_append_and_pass(tmp_path: Path, number: int) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.fail("create", number)
        with pytest.raises(LogFull):
            append(log)
        assert directory.failed is None
        files.heal()
        written = append(log)
        await log.flush()
        assert read_all(log) == written


async def test_too_many_open_files_refuse_a_roll_and_pass(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory, SMALL)
        written = [append(log)]
        while log.size_bytes + len(written[0]) <= SMALL.segment_bytes:
            written.append(append(log))
        files.fail("create", errno.EMFILE)
        with pytest.raises(LogFull):
            append(log)
        files.heal()
        written.append(append(log))
        await log.flush()
        assert directory.failed is None
        assert len(log.segments) == 2
        assert read_all(log) == b"".join(written)


async def test_a_flush_waits_for_a_descriptor_to_sync_a_directory_with(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.fail("sync_dir", errno.EMFILE, times=2)
        append(log)
        await log.flush()
        assert files.failures == 2
        assert directory.failed is None
        assert log.flushed_offset == log.end_offset


async def test_a_flush_that_ends_in_any_exception_fails_who_waits(tmp_path: Path) -> None:
    files = FaultyFiles()

    def no_thread(path: str) -> None:
        raise RuntimeError("can't start new thread")

    async with opened(files, str(tmp_path), clean=False) as directory:
        log = open_log(directory)
        append(log)
        files.sync_dir = no_thread  # type: ignore[method-assign]
        with pytest.raises(LogDirFailed, match="can't start new thread"):
            await asyncio.wait_for(log.flush(), 60)
        with pytest.raises(LogDirFailed):
            append(log)


async def test_a_log_that_cannot_say_what_is_unsynced_stops_the_directory_at_once(tmp_path: Path) -> None:
    async with opened(FaultyFiles(), str(tmp_path), clean=False) as directory:
        log = open_log(directory)
        append(log)
        assert log.active is not None
        assert log.active.file is not None
        log.active.file.close()
        log.active.file = None
        with pytest.raises(LogDirFailed, match="closed before it was synced"):
            await asyncio.wait_for(log.flush(), 60)


async def test_an_append_after_a_read_goes_on_with_the_indexes_that_were_there(tmp_path: Path) -> None:
    config = replace(SMALL, segment_bytes=1 << 20)
    async with opened(FaultyFiles(), str(tmp_path)) as directory:
        log = open_log(directory, config)
        for _ in range(100):
            append(log)
        assert log.active is not None
        assert log.active.indexes is not None
        entries = len(log.active.indexes.offsets)
        assert entries > 5
    async with opened(FaultyFiles(), str(tmp_path)) as directory:
        log = open_log(directory, config)
        assert len(read_all(log)) == log.size_bytes
        append(log)
        assert log.active is not None
        assert log.active.indexes is not None
        assert len(log.active.indexes.offsets) >= entries
