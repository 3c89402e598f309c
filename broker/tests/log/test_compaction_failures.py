"""A failed compaction is retried later. It damages no log, leaves no files, and does not stop the log directory."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from faulty import FaultyFiles
from log_kit import SMALL, Digest, append, batch_of, open_log, opened, read_all, settle

from penstock.log import checkpoint
from penstock.log.compaction.cleaner import cleaned_name
from penstock.log.compaction.job import CompactionJob, CompactionResult
from penstock.log.compaction.runner import ProcessRunner, ThreadRunner
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment
from penstock.runtime.files import Files

PLAIN = replace(SMALL, cleanup_delete=False)
COMPACT = replace(PLAIN, cleanup_compact=True, min_cleanable_dirty_ratio=0.0)


async def dirty(directory: LogDirectory) -> PartitionLog:
    """Return a log that is due for compaction."""
    log = open_log(directory, PLAIN)
    while len(log.segments) < 5:
        append(log, batch_of(2))
    await log.flush()
    await settle(directory)
    return log


def leftovers(files: Files, log: PartitionLog) -> list[str]:
    return [name for name in files.list(log.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]


@pytest.mark.integration
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENOENT])
async def test_a_worker_that_cannot_be_started_puts_compaction_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tries: list[int] = []

    async def no_process(*arguments: object, **options: object) -> None:
        tries.append(number)
        raise OSError(number, os.strerror(number))

    files = FaultyFiles()
    async with opened(files, str(tmp_path), compaction=ProcessRunner()) as directory:
        log = await dirty(directory)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", no_process)
            log.reconfigure(COMPACT)
            await settle(directory)
        assert tries
        assert directory.failed is None
        assert log in directory.compactor.timers, "it is looked at again"
        before = log.size_bytes
        directory.compactor.enqueue(log)
        await settle(directory)
        assert log.size_bytes < before


@pytest.mark.parametrize(
    ("operation", "number", "where"),
    [
        ("sync_dir", errno.EMFILE, ""),
        ("rename", errno.ENOSPC, ".index."),
        ("write_atomic", errno.ENOSPC, "checkpoint"),
        ("write_atomic", errno.EMFILE, "checkpoint"),
    ],
)
async def test_a_swap_that_fails_for_now_leaves_nothing_that_a_later_checkpoint_makes_count(
    tmp_path: Path, operation: str, number: int, where: str
) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path), clean=False) as directory:
        log = await dirty(directory)
        content, before = read_all(log), log.size_bytes
        files.fail(operation, number, lambda path: where in path, 2)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert directory.failed is None
        if operation == "sync_dir":
            assert log.size_bytes < before, "it waits for a descriptor"
            content = read_all(log)
        else:
            assert (log.size_bytes, log.compacted_until, read_all(log)) == (before, 0, content)
        assert leftovers(files, log) == []
        files.heal()
        for _ in range(3):
            await directory.maintenance.checkpoint(log)
    async with opened(files, str(tmp_path), make_state=Digest) as directory:
        assert not directory.corrupt
        assert read_all(open_log(directory, PLAIN)) == content


async def test_a_swap_whose_checkpoint_is_in_place_but_for_a_descriptor_counts(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path), clean=False) as directory:
        log = await dirty(directory)
        before, known = log.size_bytes, log.sequence

        def is_new(path: str) -> bool:
            own = Path(path, checkpoint.FILE_NAME)
            return own.exists() and checkpoint.decode(own.read_bytes()).sequence > known

        files.fail("sync_dir", errno.EMFILE, is_new, 2)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert files.failures == 2
        assert directory.failed is None
        assert log.size_bytes < before
        content = read_all(log)
    async with opened(files, str(tmp_path)) as directory:
        assert not directory.corrupt
        assert read_all(open_log(directory, PLAIN)) == content


async def test_a_swap_that_cannot_be_ended_once_it_counts_stops_the_directory(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = await dirty(directory)
        files.fail("rename", errno.ENOSPC, lambda path: path.endswith(".swap"))
        log.reconfigure(COMPACT)
        await settle(directory)
        assert directory.failed is not None
        files.heal()
    async with opened(files, str(tmp_path)) as directory:
        assert not directory.corrupt
        assert open_log(directory, PLAIN).compacted_until > 0


class DyingWorker(ThreadRunner):
    """A worker that dies after a part of its job, as if the OOM killer had ended it."""

    async def run(self, job: CompactionJob) -> CompactionResult:
        for source in job.sources[:2]:
            segment = Segment(job.directory, source.base_offset)
            for path in (segment.path, segment.index_path):
                self.files.open(cleaned_name(path, job.name), create=True).append(random.Random(1).randbytes(1000))
        return CompactionResult(job.name, error="the compaction worker died")


async def test_what_a_dead_worker_has_written_goes_at_once(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path), compaction=DyingWorker(files)) as directory:
        log = await dirty(directory)
        content = read_all(log)
        files.fail("list", errno.EMFILE, times=1)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert leftovers(files, log) == []
        assert read_all(log) == content
