"""A folder with exactly-once batches, whatever step the driver dies at."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from penstock_spark.jobs.run import folder as folder_module
from penstock_spark.jobs.run.compaction import compact_folder
from penstock_spark.jobs.run.data_files import DataFileWriter, OpenDataFile
from penstock_spark.jobs.run.folder import FolderConflict, ParquetFolder
from penstock_spark.jobs.spec.specs import CompactionSpec

COMPACT = CompactionSpec(min_files=2)
SCHEMA = pa.schema([("row", pa.int64())])


class Died(BaseException):
    """The driver died at a step."""


def write(staging: Path, batch: int, parts: int = 2) -> list[str]:
    """Write files like a task; the names differ from run to run."""
    names = []
    for part in range(parts):
        name = f"k={part}/part-{staging.parents[1].name}-{batch}-{random.getrandbits(64):x}.parquet"
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"row": [batch * 10 + part]}), staging / name)
        names.append(name)
    return names


def run(root: Path, batches: range, writer: str = "w") -> None:
    """Run batches like a driver, from its start."""
    folder = ParquetFolder(root, writer)
    folder.open()
    for batch in batches:
        staging = folder.start_batch(batch)
        if staging is not None:
            folder.commit(batch, write(staging, batch), 2)
        if batch % 2:
            compact_folder(folder, COMPACT, "none")


def rows(root: Path) -> Counter[int]:
    return Counter(ds.dataset(root, format="parquet", partitioning="hive").to_table()["row"].to_pylist())


def everything(batches: range) -> Counter[int]:
    return Counter(batch * 10 + part for batch in batches for part in range(2))


def test_a_batch_that_runs_again_adds_nothing(tmp_path: Path) -> None:
    run(tmp_path, range(3))
    run(tmp_path, range(2, 5))
    assert rows(tmp_path) == everything(range(5))


def test_a_batch_that_never_counted_is_written_anew(tmp_path: Path) -> None:
    run(tmp_path, range(1))
    folder = ParquetFolder(tmp_path, "w")
    folder.open()
    staging = folder.start_batch(1)
    assert staging is not None
    write(staging, 1)
    run(tmp_path, range(1, 2))
    assert rows(tmp_path) == everything(range(2))
    assert not list(tmp_path.rglob("staging/*"))


def test_two_checkpoints_do_not_take_each_others_batches_for_their_own(tmp_path: Path) -> None:
    run(tmp_path, range(1), "one")
    run(tmp_path, range(1), "two")
    assert rows(tmp_path) == everything(range(1)) + everything(range(1))


def test_a_checkpoint_that_was_set_back_is_refused(tmp_path: Path) -> None:
    run(tmp_path, range(5))
    with pytest.raises(FolderConflict, match="has batch 4 of this checkpoint, which is at batch 2"):
        run(tmp_path, range(2, 3))


def test_a_second_driver_with_the_same_checkpoint_cannot_add_the_batch_again(tmp_path: Path) -> None:
    first, second = ParquetFolder(tmp_path, "w"), ParquetFolder(tmp_path, "w")
    first.open()
    second.open()
    second.start_batch(0)
    staging = first.start_batch(0)
    assert staging is not None
    first.commit(0, write(staging, 0), 2)
    with pytest.raises(FolderConflict, match="by another process"):
        second.commit(0, [], 0)
    assert rows(tmp_path) == everything(range(1))


def test_files_of_a_batch_that_another_driver_took_away_are_missed_before_the_batch_counts(tmp_path: Path) -> None:
    first, second = ParquetFolder(tmp_path, "w"), ParquetFolder(tmp_path, "w")
    first.open()
    second.open()
    staging = first.start_batch(0)
    assert staging is not None
    files = write(staging, 0)
    second.start_batch(0)
    with pytest.raises(FolderConflict, match="files of batch 0 are missing"):
        first.commit(0, files, 2)
    run(tmp_path, range(1))
    assert rows(tmp_path) == everything(range(1))


def test_a_driver_that_was_overtaken_adds_no_batch_again(tmp_path: Path) -> None:
    first = ParquetFolder(tmp_path, "w")
    first.open()
    first.start_batch(0)
    run(tmp_path, range(2))
    late = tmp_path / "_penstock" / "w" / "staging" / "0"
    late.mkdir(parents=True)
    with pytest.raises(FolderConflict, match="has a batch after 0 already"):
        first.commit(0, write(late, 0), 2)
    assert rows(tmp_path) == everything(range(2))


@pytest.mark.integration
def test_the_driver_of_another_process_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys; from penstock_spark.jobs.run.folder import ParquetFolder;"
        "ParquetFolder(pathlib.Path(sys.argv[1]), 'w').claim(); print('claimed', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "claimed\n"
    folder = ParquetFolder(tmp_path, "w")
    ParquetFolder(tmp_path, "another").claim()
    with pytest.raises(FolderConflict, match="another driver with the same checkpoint is writing"):
        folder.claim(timeout_s=0)
    other.kill()
    other.communicate()
    folder.claim()
    ParquetFolder(tmp_path, "w").claim()  # a query that starts again in this process
    folder.release()


def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(folder_module.fcntl, "flock", refuse)
    folder = ParquetFolder(tmp_path, "w")
    folder.claim()
    folder.release()


def test_two_jobs_that_compact_one_folder_at_a_time_leave_each_others_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for writer in ("one", "two"):
        for batch in range(3):
            run(tmp_path, range(batch, batch + 1), writer)
    one, two = ParquetFolder(tmp_path, "one"), ParquetFolder(tmp_path, "two")
    one.open()
    two.open()
    for folder in (one, two):
        folder._touched.update({"k=0", "k=1"})
    real = ParquetFolder.replace

    def late(folder: ParquetFolder, adds: list[str], removes: list[str]) -> None:
        """Compact the folder a second time between the first compaction's read and its replacement of files."""
        if folder is one and two.touched():
            compact_folder(two, COMPACT, "none")
        real(folder, adds, removes)

    monkeypatch.setattr(ParquetFolder, "replace", late)
    assert compact_folder(one, COMPACT, "none") > 0
    assert rows(tmp_path) == everything(range(3)) + everything(range(3))


@pytest.mark.slow
def test_every_row_is_there_once_whatever_step_the_driver_dies_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that changes the disk is a step; a driver dies before each of them in turn, then another continues."""
    steps = 0
    left = -1

    def counted(name: str) -> None:
        original = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            nonlocal steps, left
            steps += 1
            if left == 0:
                raise Died
            left -= 1
            return original(*args, **kwargs)

        monkeypatch.setattr(folder_module.os, name, call)

    for name in ("rename", "link", "replace", "unlink", "mkdir", "fsync"):
        counted(name)
    run(tmp_path / "whole", range(4))
    total = steps
    assert total > 50
    for step in range(total):
        root = tmp_path / f"step-{step}"
        left = step
        done = 0
        try:
            run(root, range(4))
        except Died:
            # Spark's log is at the last batch reported as finished, or after it.
            done = committed(root)
        left = -1
        run(root, range(max(0, done), 4))
        assert rows(root) == everything(range(4)), f"died at step {step}"


class Durable:
    """Records the names in each directory at its last sync, which survive a loss of power."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names: dict[str, set[str]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._synced)

    def _synced(self, handle: int) -> None:
        self._fsync(handle)
        path = os.readlink(f"/proc/self/fd/{handle}")
        if os.path.isdir(path):
            self._names[path] = set(os.listdir(path))

    def lacks(self, path: Path, top: Path) -> list[Path]:
        """Return the parts of a path, from `top` on, that a loss of power would remove."""
        steps = [path, *path.parents]
        return [p for p in steps[: steps.index(top)] if p.name not in self._names.get(str(p.parent), set())]


def test_a_loss_of_power_takes_no_name_of_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged files must be durable before a record names them, and files in their final places before its deletion."""
    durable, root = Durable(monkeypatch), tmp_path / "new" / "root"
    folder = ParquetFolder(root, "w")

    checked = []

    def checks(name: str) -> None:
        original = getattr(os, name)

        def call(source: Path, target: Path) -> None:
            record = msgspec.json.decode(Path(source).read_bytes(), type=folder_module.CommitRecord)
            staged = [root / record.staging / added for added in record.adds]
            assert not [path for each in staged for path in durable.lacks(each, tmp_path / "new")]
            checked.append(len(staged))
            original(source, target)

        monkeypatch.setattr(folder_module.os, name, call)

    checks("link")
    checks("replace")
    (tmp_path / "new").mkdir()
    folder.open()
    for batch in range(2):
        staging = folder.start_batch(batch)
        assert staging is not None
        writer = DataFileWriter(str(staging), "p", SCHEMA, (), "none", 1)
        part = OpenDataFile(LocalFileSystem(), writer, SCHEMA, f"a=1/b=2/part-w-{batch}.parquet", {})
        part.add(pa.table({"row": [batch]}))
        folder.commit(batch, [part.finish().path], 1)
        assert not durable.lacks(root / f"a=1/b=2/part-w-{batch}.parquet", tmp_path / "new")
    assert compact_folder(folder, COMPACT, "none") == 2
    (compacted,) = root.rglob("*.parquet")
    assert not durable.lacks(compacted, tmp_path / "new")
    assert checked == [1, 1, 1]


def committed(root: Path) -> int:
    """Return the batch with which Spark would start again; it may repeat the one that has a record."""
    names = [p.stem for p in (root / "_penstock" / "w").glob("0*.json")] if root.exists() else []
    return max(map(int, names), default=0)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    run(tmp_path, range(1))
    (tmp_path / "_penstock/w/0000000000.json").write_text("{")
    with pytest.raises(FolderConflict, match="is corrupt"):
        run(tmp_path, range(1, 2))
