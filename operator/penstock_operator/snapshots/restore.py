"""Restores a snapshot into a member's volume: the tasks `fetch`, before etcdutl, and `install`, after it.

The volume has these names below `target`, where KEY is that of the restore:
  data              the data of the member
  restore-KEY.db    the fetched snapshot
  restored-KEY      what etcdutl made of it
  before-KEY        the data before the restore, which is kept until the next one
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from penstock_operator.snapshots.destinations import DirectoryDestination, SnapshotDestination, flush_directory
from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.integrity import Digest
from penstock_operator.snapshots.manifest import (
    CONTENT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SnapshotManifest,
    complete_snapshots,
    parse_manifest,
)
from penstock_operator.snapshots.tasks import SnapshotTask, TaskResult, newest

DATA, BEFORE = "data", "before-"
LEFT = ("restore-*", "restored-*")
"""Files of interrupted restores."""
SPACE_FACTOR = 2
"""Free space that a restore needs, in sizes of the snapshot: it is stored, and etcdutl writes a database from it."""
RESERVE_BYTES = 130 << 20
"""Free space that it needs besides: etcdutl preallocates segments of the write-ahead log of 64 MB."""


def fetch_snapshot(task: SnapshotTask, destination: SnapshotDestination) -> TaskResult:
    """Copy a snapshot to `target` and verify it; without `target`, only verify it. Raises `SnapshotError`."""
    complete = complete_snapshots(destination.files())
    if task.snapshot not in complete:
        found = f"the newest ones are {', '.join(newest(complete)[:3])}" if complete else "there are no snapshots"
        raise SnapshotError(f'snapshot "{task.snapshot}" does not exist: {found}')
    manifest, copied = read_manifest(task, destination), Digest()
    chunks = copied.counted(destination.read(task.snapshot + CONTENT))
    if task.target:
        folder = Path(task.target)
        prepare_folder(folder, task.restore, manifest.size_bytes)
        DirectoryDestination(folder).write(restore_file(task.restore), chunks)
    else:
        for _ in chunks:
            pass
    if (copied.size_bytes, copied.sha256) != (manifest.size_bytes, manifest.sha256):
        raise SnapshotError(
            f'snapshot "{task.snapshot}" is damaged: its {copied.size_bytes:,} bytes have another SHA-256 than its'
            " manifest says; use another snapshot"
        )
    copied.check_etcd_checksum()
    return TaskResult(
        name=task.snapshot, size_bytes=manifest.size_bytes, sha256=manifest.sha256, stored=newest(complete)
    )


def read_manifest(task: SnapshotTask, destination: SnapshotDestination) -> SnapshotManifest:
    """Return the manifest of the snapshot, which must be one of this cluster. Raises `SnapshotError`."""
    body = bytearray()
    for chunk in destination.read(task.snapshot + MANIFEST):
        body += chunk
        if len(body) > MAX_MANIFEST_BYTES:
            raise SnapshotError(
                f'the manifest of snapshot "{task.snapshot}" has more than {MAX_MANIFEST_BYTES:,} bytes'
            )
    manifest = parse_manifest(task.snapshot, bytes(body))
    if manifest.cluster_id and task.cluster_id and manifest.cluster_id != task.cluster_id:
        raise SnapshotError(
            f'snapshot "{task.snapshot}" is one of another cluster: its cluster id is "{manifest.cluster_id}" instead'
            f' of "{task.cluster_id}", and brokers would refuse it; use another snapshot'
        )
    return manifest


def prepare_folder(folder: Path, restore: str, size_bytes: int) -> None:
    """Delete what earlier restores left, and check the free space. Raises `SnapshotError`."""
    try:
        former = [path for path in folder.glob(f"{BEFORE}*") if path.name != BEFORE + restore]
        for left in (*former, *(path for pattern in LEFT for path in folder.glob(pattern))):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        found = os.statvfs(folder)
    except OSError as e:
        raise SnapshotError(f'cannot use "{folder}": {e.strerror or e}') from None
    free, needed = found.f_bavail * found.f_frsize, SPACE_FACTOR * size_bytes + RESERVE_BYTES
    if free < needed:
        raise SnapshotError(
            f"the member's volume has {free:,} bytes free, and the restore needs {needed:,}; increase etcd.storage.size"
        )


def restore_file(restore: str) -> str:
    """Return the name of a fetched snapshot."""
    return f"restore-{restore}{CONTENT}"


def restored_directory(restore: str) -> str:
    """Return the name of the directory into which etcdutl restores."""
    return f"restored-{restore}"


def install_restored(task: SnapshotTask) -> TaskResult:
    """Replace a member's data by what etcdutl restored, and keep the former data. It may be repeated, also after an
    interruption. Raises `SnapshotError`."""
    folder = Path(task.target)
    data, before, restored = folder / DATA, folder / f"{BEFORE}{task.restore}", restored_directory(task.restore)
    try:
        if (folder / restored / "member").is_dir():
            replace_data(data, before, folder / restored)
        elif not (before.exists() and (data / "member").is_dir()):
            raise SnapshotError(f'etcdutl restored nothing to "{folder / restored}"; see the log of its container')
        flush_directory(folder)
        (folder / restore_file(task.restore)).unlink(missing_ok=True)
    except OSError as e:
        raise SnapshotError(f'cannot replace the data in "{folder}": {e.strerror or e}') from None
    return TaskResult(name=task.snapshot)


def replace_data(data: Path, before: Path, restored: Path) -> None:
    """Move the data to `before`, which exists from then on, and the restored data to its place."""
    if not before.exists():
        if data.exists():
            data.rename(before)
        else:
            before.mkdir()
        flush_directory(before.parent)
    elif data.exists():  # written by a member that started meanwhile: the data before the restore is in `before`
        shutil.rmtree(data)
    restored.rename(data)
