"""A folder of Parquet files to which batches are added exactly once, as whoever lists the folder sees it.

Used by `writing` in the driver. No Spark, no Arrow: files, names and the order of steps.

    root/date=2013-01-01/part-<wr>-0000000007-....parquet   <wr> is how `writer` begins
    root/_penstock/<writer>/lock                      held by the driver that writes
    root/_penstock/<writer>/staging/7/...             files of batch 7, before they count
    root/_penstock/<writer>/0000000007.json           batch 7 counts: which files, and where to

Tasks write to staging. When all have ended, the driver writes the batch's record, in one step and never over an
existing one: from then on the batch counts. Then its files are renamed into place, and staging is removed. A batch that
runs again after a crash finds its record, renames what is still in staging, and is done; without a record it begins
anew, and what staging held is removed. `writer` is the id of the streaming query, which a checkpoint keeps: another
checkpoint is another writer, whose batches have nothing to do with these. Names that begin with `_` are ignored by
everything that reads folders of Parquet.
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
LOCK_PATIENCE_S = 20.0
"""How long a driver waits for one before it that is ending."""
LOCK_POLL_S = 0.1
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
"""What file systems say that have no locks."""


_locks: dict[Path, int] = {}
"""Those that this process keeps: a query that starts again in it goes on."""
OTHER_DRIVER = "another driver writes with the same checkpoint"


class FolderConflict(PenstockSparkError):
    """The folder knows more than the checkpoint does, or somebody else writes as the same writer."""


class CommitRecord(msgspec.Struct, frozen=True):
    """What a batch (or a compaction) does to the folder. Paths are relative to the root."""

    staging: str
    adds: list[str]
    removes: list[str] = []
    touched: list[str] = []
    """Partition folders that got files since they were compacted."""
    rows: int = 0


class ParquetFolder:
    """One writer's way into a folder."""

    def __init__(self, root: Path, writer: str) -> None:
        assert WRITER.fullmatch(writer), f"{writer!r} is no id of a query"
        self.root = root
        self._state = root / STATE / writer
        self._touched: set[str] = set()

    @property
    def tag(self) -> str:
        """In the names of this writer's files: nobody else compacts them."""
        return self._state.name[:TAG_CHARS]

    def claim(self, patience_s: float = LOCK_PATIENCE_S) -> None:
        """Keeps drivers of other processes with the same checkpoint out until this process ends, or `release`. On file
        systems without locks it does nothing. Raises `FolderConflict`."""
        path = self._state / "lock"
        if path in _locks:
            return
        self._state.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not locked(lock, patience_s):
                raise FolderConflict(
                    f"{self.root}: another driver with the same checkpoint is writing here. End it first, or give this "
                    "job a checkpoint of its own"
                )
        except BaseException:
            os.close(lock)
            raise
        _locks[path] = lock

    def release(self) -> None:
        """Lets others in. Idempotent."""
        lock = _locks.pop(self._state / "lock", None)
        if lock is not None:
            os.close(lock)

    def open(self) -> None:
        """Makes the folder; finishes what a crash left unfinished. Raises `OSError`."""
        self._state.mkdir(parents=True, exist_ok=True)
        sync_up({self._state}, self.root.parent)
        for path in self._state.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        compaction = self._read(self._state / "compaction.json")
        if compaction is not None:
            self._finish_compaction(compaction, after_crash=True)
        for batch in self._batches():
            record = self._read(self._path(batch))
            assert record is not None, f"{self._path(batch)} was there a moment ago"
            self._put_in_place(record, after_crash=True)
            self._touched = set(record.touched)

    def begin(self, batch: int) -> Path | None:
        """Where tasks write batch `batch`; None where it counts already. Raises `FolderConflict`."""
        known = self._batches()
        if known and known[-1] > batch:
            raise FolderConflict(
                f"{self.root} has batch {known[-1]} of this checkpoint, which is at batch {batch}: the checkpoint was "
                "set back. Put the newer one in place, or begin a new checkpoint (and folder)"
            )
        if batch in known:
            return None
        staging = self._state / "staging" / str(batch)
        shutil.rmtree(self._state / "staging", ignore_errors=True)
        staging.mkdir(parents=True)
        sync_up({staging}, self._state)
        return staging

    def commit(self, batch: int, files: Sequence[str], rows: int) -> None:
        """Makes the batch count. `files` are relative to what `begin` returned, and to the root; they are on disk, and
        so are the names of the folders that they are in, up to what `begin` returned. Raises `FolderConflict` where
        another driver with the same checkpoint, which no lock kept out, has interfered."""
        self._touched.update(str(Path(f).parent) for f in files)
        if len(self._touched) > MAX_TOUCHED:
            self._touched.clear()
        staging = f"{self._relative()}/staging/{batch}"
        record = CommitRecord(staging, list(files), [], sorted(self._touched), rows)
        if any(not (self.root / staging / name).exists() for name in files):
            raise FolderConflict(f"{self.root}: files of batch {batch} are gone: {OTHER_DRIVER}")
        if any(known > batch for known in self._batches()):
            raise FolderConflict(f"{self.root} has a batch after {batch} already: {OTHER_DRIVER}")
        if not self._write(self._path(batch), record, exclusive=True):
            raise FolderConflict(f"{self.root}: batch {batch} was written by somebody else: {OTHER_DRIVER}")
        self._put_in_place(record)
        for old in self._batches():
            if old < batch:
                self._path(old).unlink(missing_ok=True)

    def rows(self, batch: int) -> int:
        """The rows of a batch whose record is still there."""
        record = self._read(self._path(batch))
        return record.rows if record is not None else 0

    # Compaction

    def touched(self) -> list[str]:
        """Partition folders to look at, relative to the root."""
        return sorted(self._touched)

    def compaction_staging(self) -> Path:
        staging = self._state / "staging" / "compaction"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        sync_up({staging}, self._state)
        return staging

    def replace(self, adds: Sequence[str], removes: Sequence[str]) -> None:
        """Files in `compaction_staging` take the place of `removes`. Between the two steps of each, one who lists the
        folder may see rows twice; who needs more than that takes a Delta table. As with `commit`, files and the names
        of their folders are on disk."""
        record = CommitRecord(f"{self._relative()}/staging/compaction", list(adds), list(removes))
        self._write(self._state / "compaction.json", record, exclusive=False)
        self._finish_compaction(record)

    def compacted(self) -> None:
        """What was touched has been looked at. The next record says so; until then it is looked at again."""
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
            raise FolderConflict(f"{path} is damaged: {e}") from None

    def _write(self, path: Path, record: CommitRecord, *, exclusive: bool) -> bool:
        """A whole file or none, on disk when this returns. False where it was there already."""
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
                    raise FolderConflict(f"{staging / name} is gone: {OTHER_DRIVER}") from None
                # Renamed before the crash; by now a compaction may have taken it in.
        self._sync(moved)
        shutil.rmtree(staging, ignore_errors=True)

    def _sync(self, files: Iterable[Path]) -> None:
        """Folders of these files up to the root: any of them may be new."""
        sync_up({path.parent for path in files}, self.root)


def locked(lock: int, patience_s: float) -> bool:
    """Takes a lock on an open file, or finds that there are no locks here; False where somebody else keeps it."""
    deadline = time.monotonic() + patience_s
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
    """Names in these directories, and in those above them up to `top`, are on disk when this returns."""
    found: set[Path] = set()
    for folder in folders:
        assert folder == top or top in folder.parents, f"{folder} is not below {top}"
        found.update({folder, top}, (above for above in folder.parents if top in above.parents))
    for folder in found:
        sync_directory(folder)


def sync_directory(path: Path) -> None:
    """Names in a directory are on disk when this returns."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
