"""A folder of Parquet files with exactly-once batches, as seen by readers that list the folder.

Called by `sinks` in the driver. Uses neither Spark nor Arrow: only files, names and the order of steps.

    root/date=2013-01-01/part-<wr>-0000000007-....parquet   <wr> is the start of `writer`
    root/_penstock/<writer>/lock                      held by the driver that writes
    root/_penstock/<writer>/staging/7/...             files of batch 7 before its commit
    root/_penstock/<writer>/0000000007.json           commit record of batch 7: its files and their targets

Tasks write to staging. When all tasks are finished, the driver writes the batch's commit record atomically, never over
an existing one: this commits the batch. Then it renames the files into place and removes staging. A batch that runs
again after a crash finds its record and renames what is left in staging; without a record it starts from the beginning,
with an empty staging. `writer` is the id of the streaming query, which the checkpoint keeps: another checkpoint is
another writer with independent batches. Readers of Parquet folders ignore names that start with `_`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from penstock_spark.model.errors import PenstockSparkError

STATE = "_penstock"
RECORD = re.compile(r"(\d{10})\.json")
WRITER = re.compile(r"[A-Za-z0-9-]{1,64}")
MAX_TOUCHED = 100_000
TAG_CHARS = 8
LOCK_TIMEOUT_S = 20.0
"""Time that a driver waits for the lock of an earlier driver that is shutting down."""
LOCK_POLL_S = 0.1
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
"""Errors of file systems without locks."""


_locks: dict[Path, int] = {}
"""Locks that this process holds; a query that restarts in it keeps them."""
OTHER_DRIVER = "another driver writes with the same checkpoint"


class FolderConflict(PenstockSparkError):
    """The folder is ahead of the checkpoint, or another process writes as the same writer."""


class CommitRecord(msgspec.Struct, frozen=True):
    """What a batch or a compaction changes in the folder. Paths are relative to the root."""

    staging: str
    adds: list[str]
    removes: list[str] = []
    touched: list[str] = []
    """Partition folders with new files since their last compaction."""
    rows: int = 0


class ParquetFolder:
    """One writer's access to a folder."""

    def __init__(self, root: Path, writer: str) -> None:
        assert WRITER.fullmatch(writer), f"{writer!r} is not the id of a query"
        self.root = root
        self._state = root / STATE / writer
        self._touched: set[str] = set()

    @property
    def tag(self) -> str:
        """Part of the names of this writer's files; only this writer compacts them."""
        return self._state.name[:TAG_CHARS]

    def claim(self, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Lock the writer against other processes until this process ends or calls `release`.

        Does nothing on file systems without locks. Raises `FolderConflict` after `timeout_s`.
        """
        path = self._state / "lock"
        if path in _locks:
            return
        self._state.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not acquire_lock(lock, timeout_s):
                raise FolderConflict(
                    f'"{self.root}": another driver with the same checkpoint is writing; stop it, or give this job a '
                    "checkpoint of its own"
                )
        except BaseException:
            os.close(lock)
            raise
        _locks[path] = lock

    def release(self) -> None:
        """Release the lock. Idempotent."""
        lock = _locks.pop(self._state / "lock", None)
        if lock is not None:
            os.close(lock)

    def open(self) -> None:
        """Create the folder; complete what a crash interrupted. Raises `OSError`."""
        self._state.mkdir(parents=True, exist_ok=True)
        sync_up({self._state}, self.root.parent)
        for path in self._state.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        compaction = self._read(self._state / "compaction.json")
        if compaction is not None:
            self._finish_compaction(compaction, after_crash=True)
        for batch in self._batches():
            record = self._read(self._path(batch))
            assert record is not None, f"{self._path(batch)} was listed"
            self._put_in_place(record, after_crash=True)
            self._touched = set(record.touched)

    def start_batch(self, batch: int) -> Path | None:
        """Return the staging directory of a batch; None if it is committed already. Raises `FolderConflict`."""
        known = self._batches()
        if known and known[-1] > batch:
            raise FolderConflict(
                f'"{self.root}" has batch {known[-1]} of this checkpoint, which is at batch {batch}: the checkpoint '
                "was set back; restore the newer one, or use a new checkpoint and folder"
            )
        if batch in known:
            return None
        staging = self._state / "staging" / str(batch)
        shutil.rmtree(self._state / "staging", ignore_errors=True)
        staging.mkdir(parents=True)
        sync_up({staging}, self._state)
        return staging

    def commit(self, batch: int, files: Sequence[str], rows: int) -> None:
        """Commit a batch. Raises `FolderConflict` if another driver with the same checkpoint has interfered.

        `files` are relative to the staging directory and to the root. They and their directories are already synced.
        """
        self._touched.update(str(Path(f).parent) for f in files)
        if len(self._touched) > MAX_TOUCHED:
            self._touched.clear()
        staging = f"{self._relative()}/staging/{batch}"
        record = CommitRecord(staging, list(files), [], sorted(self._touched), rows)
        if any(not (self.root / staging / name).exists() for name in files):
            raise FolderConflict(f'"{self.root}": files of batch {batch} are missing: {OTHER_DRIVER}')
        if any(known > batch for known in self._batches()):
            raise FolderConflict(f'"{self.root}" has a batch after {batch} already: {OTHER_DRIVER}')
        if not self._write(self._path(batch), record, exclusive=True):
            raise FolderConflict(f'"{self.root}": batch {batch} was committed by another process: {OTHER_DRIVER}')
        self._put_in_place(record)
        for old in self._batches():
            if old < batch:
                self._path(old).unlink(missing_ok=True)

    def rows(self, batch: int) -> int:
        """Return the number of rows of a batch whose record is kept, else 0."""
        record = self._read(self._path(batch))
        return record.rows if record is not None else 0

    # Compaction

    def touched(self) -> list[str]:
        """Return partition folders with files that were not considered for compaction, relative to the root."""
        return sorted(self._touched)

    def compaction_staging(self) -> Path:
        """Return an empty staging directory for a compaction."""
        staging = self._state / "staging" / "compaction"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        sync_up({staging}, self._state)
        return staging

    def replace(self, adds: Sequence[str], removes: Sequence[str]) -> None:
        """Replace `removes` by files in `compaction_staging`; files and directories are synced, as for `commit`.

        A reader that lists the folder during the replacement may see rows twice; use a Delta table where that matters.
        """
        record = CommitRecord(f"{self._relative()}/staging/compaction", list(adds), list(removes))
        self._write(self._state / "compaction.json", record, exclusive=False)
        self._finish_compaction(record)

    def compacted(self) -> None:
        """Clear the list of touched folders. The next commit record stores this; until then they are checked again."""
        self._touched.clear()

    def _finish_compaction(self, record: CommitRecord, *, after_crash: bool = False) -> None:
        self._put_in_place(record, after_crash=after_crash)
        for name in record.removes:
            (self.root / name).unlink(missing_ok=True)
        self._sync({self.root / name for name in record.removes})
        (self._state / "compaction.json").unlink(missing_ok=True)

    # Files

    def _relative(self) -> str:
        return str(self._state.relative_to(self.root))

    def _path(self, batch: int) -> Path:
        return self._state / f"{batch:010d}.json"

    def _batches(self) -> list[int]:
        return sorted(int(m[1]) for name in os.listdir(self._state) if (m := RECORD.fullmatch(name)))

    def _read(self, path: Path) -> CommitRecord | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=CommitRecord)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as e:
            raise FolderConflict(f'"{path}" is corrupt: {e}') from None

    def _write(self, path: Path, record: CommitRecord, *, exclusive: bool) -> bool:
        """Write a file atomically and sync it. Return False if it exists and `exclusive` is set."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as f:
            f.write(msgspec.json.encode(record))
            f.flush()
            os.fsync(f.fileno())
        try:
            if exclusive:
                os.link(temporary, path)
            else:
                os.replace(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
        return True

    def _put_in_place(self, record: CommitRecord, *, after_crash: bool = False) -> None:
        staging = self.root / record.staging
        moved = set()
        for name in record.adds:
            target = self.root / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staging / name, target)
                moved.add(target)
            except FileNotFoundError:
                if not after_crash:
                    raise FolderConflict(f'"{staging / name}" is missing: {OTHER_DRIVER}') from None
                # Renamed before the crash; a compaction may have replaced it since.
        self._sync(moved)
        shutil.rmtree(staging, ignore_errors=True)

    def _sync(self, files: Iterable[Path]) -> None:
        """Sync the directories of these files up to the root: any of them may be new."""
        sync_up({path.parent for path in files}, self.root)


def acquire_lock(lock: int, timeout_s: float) -> bool:
    """Lock an open file; True also on file systems without locks. False if another process holds the lock."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_POLL_S)
        except OSError as e:
            if e.errno not in NO_LOCKS:
                raise
            return True
        else:
            return True


def sync_up(folders: Iterable[Path], top: Path) -> None:
    """Sync these directories and those above them, up to `top`."""
    found: set[Path] = set()
    for folder in folders:
        assert folder == top or top in folder.parents, f"{folder} is not below {top}"
        found.update({folder, top}, (above for above in folder.parents if top in above.parents))
    for folder in found:
        sync_directory(folder)


def sync_directory(path: Path) -> None:
    """fsync a directory; one that does not exist is ignored."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
