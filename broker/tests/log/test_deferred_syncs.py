"""Syncs of recovered partitions are shared, complete and bounded."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from faulty import FaultyFiles

from penstock.log.deferred_syncs import MAX_PENDING_BYTES, MAX_PENDING_FILES, DeferredSyncs
from penstock.log.flusher import Flusher
from penstock.runtime.files import File


class Pending:
    """Deferred syncs of files in a directory, and the paths of each run."""

    def __init__(self, path: Path) -> None:
        self.files, self.path = FaultyFiles(), path
        self.runs: list[tuple[list[str], list[str]]] = []
        self.flusher = Flusher(self.files, lambda error: None)
        self.syncs = DeferredSyncs(self.sync_all)

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        self.runs.append(([file.path for file in files], list(directories)))
        self.flusher.sync_all(files, directories)

    def add(self, number: int, written_bytes: int = 1) -> File:
        file = self.files.open(f"{self.path}/{number}", create=True)
        self.syncs.add_file(file, written_bytes)
        return file  # type: ignore[no-any-return]


@pytest.fixture
def pending(tmp_path: Path) -> Pending:
    return Pending(tmp_path)


def test_a_run_syncs_all_files_and_each_directory_once_and_closes_the_files(pending: Pending) -> None:
    opened = [pending.add(number) for number in range(9)]
    for _ in range(2):
        pending.syncs.add_directory(str(pending.path))
    assert not pending.runs
    pending.syncs.run()
    paths = [file.path for file in opened]
    assert pending.runs == [(paths, [str(pending.path)])]
    assert sorted(pending.files.synced) == sorted(paths)
    assert all(file.fileno() < 0 for file in opened)
    pending.syncs.run()
    assert len(pending.runs) == 1, "nothing is pending"


def test_few_files_are_open_at_once(pending: Pending) -> None:
    for number in range(2 * MAX_PENDING_FILES + 1):
        pending.add(number)
    assert [len(files) for files, _ in pending.runs] == [MAX_PENDING_FILES] * 2
    assert len(pending.syncs.files) == 1


def test_few_bytes_are_unsynced_at_once(pending: Pending) -> None:
    for number in range(5):
        pending.add(number, MAX_PENDING_BYTES // 2)
    assert [len(files) for files, _ in pending.runs] == [2, 2]


def test_a_failed_sync_is_reported_and_closes_the_files(pending: Pending) -> None:
    opened = [pending.add(number) for number in range(9)]
    pending.files.fail("sync", errno.EIO, lambda path: path.endswith("/7"))
    with pytest.raises(OSError, match="Input/output error"):
        pending.syncs.run()
    assert all(file.fileno() < 0 for file in opened)
