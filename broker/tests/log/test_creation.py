"""The directory and first segment of a partition are created off the event loop, for many partitions at once."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty import FaultyFiles
from log_kit import SMALL, append, batch_of, open_log, opened, read_all, settle

from penstock.log import creation
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogDirFailed, LogFull

DEADLINE_S = 60.0
FIRST = f"{0:020d}.log"


class HeldFiles(FaultyFiles):
    """The real file system; threads that create directories wait for `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.released.set()
        self.at_once = 0
        self.most_at_once = 0

    def make_dir(self, path: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            assert self.released.wait(DEADLINE_S), "a directory was held up for good"
            self.at_once -= 1
        super().make_dir(path)


async def made(*logs: PartitionLog) -> None:
    """Wait until no creation is pending for the logs."""
    for log in logs:
        while log.creation is not None:
            await asyncio.wait([log.creation])


async def described(*logs: PartitionLog) -> None:
    """Wait until all descriptions are written."""
    async with asyncio.timeout(DEADLINE_S):
        while any(log.host.creations.pending_descriptions or log.host.creations.running for log in logs):  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)


def prepared(log: PartitionLog) -> asyncio.Future[None]:
    future = log.prepare()
    assert future is not None, f"{log} has what it needs"
    return future


async def test_a_prepared_log_is_appended_to_without_making_anything_on_the_event_loop(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        await asyncio.wait([prepared(log)])
        assert log.prepare() is None
        batch = append(log)
        await log.flush()
        assert read_all(log) == batch
        assert log.flushed_offset == 3
    makers = {name: maker for name, maker in files.made_by.items() if name.startswith(log.directory)}
    assert set(makers) == {log.directory, *(f"{log.directory}/{name}" for name in (FIRST, "partition.json"))}
    assert all(maker.startswith("penstock-create") for maker in makers.values()), makers


async def test_an_append_that_was_not_prepared_makes_what_it_needs(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        batch = append(log)
        assert files.made_by[log.directory] == threading.main_thread().name
        await log.flush()
        assert read_all(log) == batch


async def test_what_waits_is_made_together_and_what_comes_meanwhile_by_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[list[int]] = []
    create_all = creation.create_all

    def noted(files: Any, pending: Any) -> Any:
        jobs.append([log.partition for log, _ in pending])
        return create_all(files, pending)

    monkeypatch.setattr(creation, "create_all", noted)
    files = HeldFiles()
    async with opened(files, str(tmp_path)) as directory:
        logs = [open_log(directory, partition=n) for n in range(9)]
        files.released.clear()
        for log in logs[:3]:
            prepared(log)
        while not jobs:
            await asyncio.sleep(0)
        for log in logs[3:]:
            assert prepared(log) is log.prepare(), "one future for all who wait for a log"
        files.released.set()
        await made(*logs)
        assert jobs == [[0, 1, 2], [3, 4, 5, 6, 7, 8]]
        assert files.most_at_once == 1, "one job at a time"
        assert all(log.active is not None for log in logs)


async def test_a_job_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "MAX_JOB_LOGS", 4)
    async with opened(FaultyFiles(), str(tmp_path)) as directory:
        logs = [open_log(directory, partition=n) for n in range(9)]
        futures = [prepared(log) for log in logs]
        await asyncio.wait([futures[3]])
        assert [log.active is not None for log in logs] == [n < 4 for n in range(9)]
        await made(*logs)


# Failed creations


@pytest.mark.parametrize(
    ("operation", "number"), [("make_dir", errno.ENOSPC), ("create", errno.ENOSPC), ("create", errno.EMFILE)]
)
async def test_what_cannot_be_made_for_now_refuses_one_append_and_is_tried_again(
    tmp_path: Path, operation: str, number: int
) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log, other = open_log(directory), open_log(directory, partition=1)
        files.fail(operation, number, lambda path: log.directory in path)
        await asyncio.wait([prepared(log), prepared(other)])
        with pytest.raises(LogFull, match="cannot create"):
            append(log)
        assert (log.end_offset, log.size_bytes, log.active) == (0, 0, None)
        append(other)
        files.heal()
        await asyncio.wait([prepared(log)])
        batch = append(log)
        await log.flush()
        assert read_all(log) == batch


async def test_an_error_that_does_not_pass_stops_the_log_directory(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.fail("make_dir", errno.EIO)
        await asyncio.wait([prepared(log)])
        assert directory.failed is not None
        with pytest.raises(LogDirFailed):
            append(log)
        assert log.prepare() is None, "nothing is pending"
        with pytest.raises(LogDirFailed):
            await log.ensure_prepared()


async def test_who_waits_is_told_when_no_thread_does_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(files: Any, pending: Any) -> Any:
        raise RuntimeError("can't start new thread")

    async with opened(FaultyFiles(), str(tmp_path)) as directory:
        log = open_log(directory)
        with monkeypatch.context() as patch:
            patch.setattr(creation, "create_all", no_thread)
            with pytest.raises(LogFull, match="new thread"):
                await log.ensure_prepared()
        await log.ensure_prepared()
        append(log)


async def test_a_description_that_finds_no_space_is_done_without(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        files.fail("create", errno.ENOSPC, lambda path: path.endswith(".json"))
        log = open_log(directory)
        await log.ensure_prepared()
        append(log)
        await described(log)
        assert directory.failed is None
        await log.flush()


# Created files without data


@pytest.mark.parametrize("clean", [True, False])
async def test_what_was_made_and_never_written_to_is_a_log_without_data(tmp_path: Path, clean: bool) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path), clean=clean) as directory:
        log = open_log(directory)
        await log.ensure_prepared()
        assert (log.start_offset, log.end_offset, log.flushed_offset) == (0, 0, 0)
        assert directory.partition_bytes(log.topic_id, 0) == 0
        assert read_all(log) == b""
        assert directory.retention.apply(log) == 0
        await log.flush()
        await directory.maintenance.checkpoint(log)
        await log.delete_records_before(0)
        await log.truncate_to(0)
    async with opened(files, str(tmp_path)) as directory:
        assert not directory.corrupt
        assert directory.partition_bytes(log.topic_id, 0) == 0
        log = open_log(directory)
        assert (log.start_offset, log.end_offset) == (0, 0)
        batch = append(log)
        await log.flush()
        assert read_all(log) == batch


@pytest.mark.parametrize("leftover", [[], [FIRST], [FIRST, "partition.json"]])
async def test_a_crash_while_it_was_made_leaves_a_log_without_data(tmp_path: Path, leftover: list[str]) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        name = open_log(directory).directory
    async with opened(files, str(tmp_path), clean=False):
        pass
    Path(name).mkdir()
    for file in leftover:
        Path(name, file).touch()
    async with opened(files, str(tmp_path)) as directory:
        assert not directory.corrupt
        log = open_log(directory)
        assert (log.start_offset, log.end_offset) == (0, 0)
        made_on_loop = len(files.made_by)
        await log.ensure_prepared()
        batch = append(log)
        await log.flush()
        assert read_all(log) == batch
        makers = list(files.made_by.values())[made_on_loop:]
        assert threading.main_thread().name not in makers
    async with opened(files, str(tmp_path)) as directory:
        assert read_all(open_log(directory)) == batch


async def test_what_was_made_and_never_written_to_is_deleted(tmp_path: Path) -> None:
    async with opened(FaultyFiles(), str(tmp_path)) as directory:
        log = open_log(directory)
        await log.ensure_prepared()
        await directory.delete_partition(log.topic_id, 0)
        await gone(directory, log)


async def test_a_directory_whose_file_could_not_be_made_is_deleted(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        files.fail("create", errno.EMFILE)
        log = open_log(directory)
        await asyncio.wait([prepared(log)])
        assert Path(log.directory).is_dir()
        await directory.delete_partition(log.topic_id, 0)
        await gone(directory, log)


async def gone(directory: LogDirectory, log: PartitionLog) -> None:
    """Wait until the topic has no files."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        await settle(directory)
        left = [name for name in directory.files.list(directory.path) if str(log.topic_id) in name]
        if not left:
            return
        assert asyncio.get_running_loop().time() < deadline, f"{left} is left"
        await asyncio.sleep(0.001)


# Concurrent operations


async def test_deleting_waits_for_what_is_being_made(tmp_path: Path) -> None:
    files = HeldFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory, config=replace(SMALL, file_delete_delay_ms=0))
        files.released.clear()
        future = prepared(log)
        deletion = directory.delete_partition(log.topic_id, 0)
        await asyncio.sleep(0.01)
        assert not deletion.done()
        files.released.set()
        await deletion
        assert future.done()
        assert log.closed
        await gone(directory, log)


async def test_closing_a_log_waits_for_what_is_being_made_and_it_opens_again(tmp_path: Path) -> None:
    files = HeldFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.released.clear()
        prepared(log)
        directory.release(log.topic_id, 0)
        await asyncio.sleep(0.01)
        assert not log.closed
        files.released.set()
        await settle(directory)
        assert log.closed
        again = open_log(directory)
        await again.ensure_prepared()
        batch = append(again)
        await again.flush()
        assert read_all(again) == batch


async def test_an_append_that_did_not_wait_is_not_lost_to_what_is_being_made(tmp_path: Path) -> None:
    files = HeldFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.released.clear()
        future = prepared(log)
        batch = append(log)
        files.released.set()
        await asyncio.wait([future])
        await log.flush()
        assert (log.end_offset, len(log.segments)) == (3, 1)
        assert read_all(log) == batch
    async with opened(files, str(tmp_path)) as directory:
        assert read_all(open_log(directory)) == batch


async def test_what_no_job_has_begun_with_is_not_made_when_the_log_directory_closes(tmp_path: Path) -> None:
    files = HeldFiles()
    async with opened(files, str(tmp_path)) as directory:
        begun, late = open_log(directory), open_log(directory, partition=1)
        files.released.clear()
        first = prepared(begun)
        while not files.at_once:
            await asyncio.sleep(0)
        second = prepared(late)
        closing = asyncio.ensure_future(directory.close())
        await asyncio.wait([second])
        assert not first.done()
        with pytest.raises(LogFull, match="shutting down"):
            append(late)
        files.released.set()
        await closing
        assert first.done()
        assert Path(begun.directory, FIRST).exists()
        assert not Path(late.directory).exists()
        assert late.prepare() is None, "nothing is made in a directory that was closed"


async def test_starting_over_where_nothing_was_written_makes_nothing_on_the_event_loop(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path), clean=False) as directory:
        log, compacted = open_log(directory), open_log(directory, partition=1)
        await log.truncate_fully_and_start_at(500)
        await compacted.permit_gaps()
        await log.ensure_prepared()
        batch = append(log)
        await log.flush()
        assert (log.start_offset, log.end_offset) == (500, 503)
        assert not [
            name for name in files.made_by if files.made_by[name] == threading.main_thread().name and "-" in name
        ]
    async with opened(files, str(tmp_path)) as directory:
        log, compacted = open_log(directory), open_log(directory, partition=1)
        assert (log.start_offset, log.end_offset) == (500, 503)
        assert read_all(log) == batch
        assert compacted.gaps


async def test_a_cancelled_waiter_leaves_the_others_waiting(tmp_path: Path) -> None:
    files = HeldFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.released.clear()
        one, other = (asyncio.ensure_future(log.ensure_prepared()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.wait([one])
        files.released.set()
        await other
        append(log, batch_of(1))


async def test_the_description_names_the_topic_and_is_written_for_each_partition(tmp_path: Path) -> None:
    async with opened(FaultyFiles(), str(tmp_path)) as directory:
        logs = [open_log(directory, partition=n) for n in range(70)]
        for log in logs:
            prepared(log)
        await made(*logs)
        await described(*logs)
        for log in logs:
            about = json.loads(Path(log.directory, creation.DESCRIPTION_NAME).read_text())
            assert about == {"topic": "events", "topic_id": str(log.topic_id), "partition": log.partition}


async def test_descriptions_wait_until_nothing_else_is_asked_for_and_are_written_at_the_latest_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "DESCRIPTION_DELAY_S", 3600)
    async with opened(FaultyFiles(), str(tmp_path)) as directory:
        log = open_log(directory)
        await log.ensure_prepared()
        await settle(directory)
        assert not Path(log.directory, creation.DESCRIPTION_NAME).exists()
    assert Path(log.directory, creation.DESCRIPTION_NAME).exists()


async def test_a_log_that_was_appended_to_before_its_turn_gets_no_second_segment(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path / "data")) as directory:
        log = open_log(directory)
        waiting = log.prepare()
        append(log, batch_of(2))
        append(log, batch_of(3))
        assert waiting is not None
        await waiting
        await settle(directory)
        assert [name for name in files.list(log.directory) if name.endswith(".log")] == ["00000000000000000000.log"]
