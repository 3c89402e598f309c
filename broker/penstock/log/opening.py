"""Locks, inspects and recovers a data directory at start, and marks a clean shutdown. Called by `LogDirectory`; blocks.

A clean shutdown leaves `checkpoints`, the checkpoints of all partitions, and `clean-shutdown`, which holds that file's
CRC. With both, no other file is read. Otherwise each partition is recovered from the newer of its own checkpoint and
the one in the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from crc32c import crc32c

from penstock.log import checkpoint as checkpoints
from penstock.log.checkpoint import DamagedCheckpoint, Key
from penstock.log.deferred_syncs import DeferredSyncs, SyncAll
from penstock.log.index import PendingEntries
from penstock.log.index_files import write_indexes
from penstock.log.meta import DirectoryMeta, claim
from penstock.log.recovery import recover
from penstock.log.segment import DELETED, Segment
from penstock.log.transient_errors import NO_SPACE, RESERVE_NAME
from penstock.log.types import BatchState, CorruptLog, LogError
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

LOCK_NAME = ".lock"
CLEAN_NAME = "clean-shutdown"
QUARANTINE_NAME = "quarantine"
PARTITION_NAME = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(\d{1,10})")

logger = get_logger(__name__)


class DirectoryInUse(LogError):
    """Another process holds the directory's lock; the message names the directory."""


class RecoveryCancelled(LogError):
    """Recovery was stopped because the broker shuts down; the next start recovers the rest."""


@dataclass
class OpenedDirectory:
    """The state of a data directory as found at start."""

    meta: DirectoryMeta
    was_unclean: bool
    table: dict[Key, bytes]
    unrecovered: list[Key] = field(default_factory=list)
    checkpoints: dict[Key, bytes] = field(default_factory=dict)
    corrupt: dict[Key, CorruptLog] = field(default_factory=dict)
    torn_bytes: dict[Key, int] = field(default_factory=dict)
    cancelled: bool = False
    """Set to stop `recover_all` after the current partition."""


def lock_directory(files: Files, path: str) -> None:
    """Create the directory if needed and lock it for this process. Raises DirectoryInUse, OSError."""
    missing, ancestor = [], path
    while ancestor and not files.exists(ancestor):
        ancestor = os.path.dirname(ancestor)
        missing.append(ancestor or ".")
    files.make_dir(path)
    for parent in missing:
        files.sync_dir(parent)
    try:
        files.lock(f"{path}/{LOCK_NAME}")
    except BlockingIOError as e:
        raise DirectoryInUse(f'"{path}" is in use by another process; stop it or use another directory') from e


def inspect_directory(
    files: Files, path: str, cluster_id: str, broker_id: int, new_id: Callable[[], UUID]
) -> OpenedDirectory:
    """Read the clean-shutdown marker and the checkpoint table, and list the partitions that need recovery.

    Raises WrongDirectory, OSError.
    """
    meta, is_new = claim(files, path, cluster_id, broker_id, new_id)
    table, table_crc = read_table(files, path)
    clean = table is not None and read_clean_mark(files, path) == table_crc
    keys = [key for key in map(parse_partition, files.list(path)) if key is not None]
    opened = OpenedDirectory(meta, not (clean or is_new), table or {})
    if clean:
        opened.checkpoints = {key: opened.table[key] for key in keys if key in opened.table}
    opened.unrecovered = [key for key in keys if key not in opened.checkpoints]
    return opened


def recover_all(
    files: Files,
    path: str,
    opened: OpenedDirectory,
    make_state: Callable[[], BatchState],
    clock: Clock,
    sync_all: SyncAll,
) -> None:
    """Recover the partitions listed in `unrecovered`, durably; a damaged partition does not stop the others.

    Removes the clean-shutdown marker: a crash from here on is an unclean shutdown. Raises OSError, RecoveryCancelled.
    """
    if files.exists(f"{path}/{CLEAN_NAME}"):
        files.remove(f"{path}/{CLEAN_NAME}")
        files.sync_dir(path)
    read_bytes = 0
    keys, opened.unrecovered = opened.unrecovered, []
    syncs = DeferredSyncs(sync_all)
    try:
        for key in keys:
            if opened.cancelled:
                raise RecoveryCancelled(f'recovery of "{path}" stopped: the broker is shutting down')
            read_bytes += recover_partition(files, path, opened, key, make_state(), clock.wall_ms(), syncs)
        syncs.run()
    finally:
        syncs.close()
    opened.table = {}
    if keys:
        # A second crash then does not have to read the same data again.
        try:
            write_table(files, path, opened.checkpoints)
        except OSError as e:
            if e.errno not in NO_SPACE:
                raise
            logger.warning("no space for recovery checkpoints; a crash now repeats the recovery", path=path)
        logger.info("partitions recovered", path=path, partitions=len(keys), read_bytes=read_bytes)


def recover_partition(
    files: Files, path: str, opened: OpenedDirectory, key: Key, state: BatchState, now_ms: int, syncs: DeferredSyncs
) -> int:
    """Recover a partition, or list it as damaged; return the number of bytes read. Raises OSError."""
    try:
        recovered = recover(files, f"{path}/{key[0]}-{key[1]}", state, opened.table.get(key), now_ms, syncs)
    except CorruptLog as e:
        logger.error("partition is damaged and stays offline", reason=str(e))
        opened.corrupt[key] = e
        return 0
    opened.checkpoints[key] = checkpoints.encode(recovered.checkpoint)
    if recovered.torn_bytes:
        opened.torn_bytes[key] = recovered.torn_bytes
    return recovered.read_bytes


def parse_partition(name: str) -> Key | None:
    """Return the partition that a directory name belongs to, None for other names."""
    match = PARTITION_NAME.fullmatch(name)
    return (UUID(match[1]), int(match[2])) if match is not None and int(match[2]) < 1 << 31 else None


def is_deleted_partition(name: str) -> bool:
    """Return whether a directory belongs to a deleted partition."""
    return name.endswith(DELETED) and parse_partition(name.split(".")[0]) is not None


def read_table(files: Files, path: str) -> tuple[dict[Key, bytes] | None, int]:
    """Return (checkpoints by partition, CRC of the file); (None, 0) if there is no valid table."""
    name = f"{path}/{checkpoints.TABLE_NAME}"
    try:
        data = files.read(name)
        return dict(checkpoints.decode_table(data)), crc32c(data)
    except FileNotFoundError:
        return None, 0
    except DamagedCheckpoint as e:
        logger.warning("checkpoint table is damaged; recovering from partition checkpoints", path=name, reason=str(e))
        return None, 0


def read_clean_mark(files: Files, path: str) -> int | None:
    """Return the table's CRC that a clean shutdown recorded, None if the shutdown was unclean."""
    try:
        data = files.read(f"{path}/{CLEAN_NAME}")
    except FileNotFoundError:
        return None
    text = data[:32].decode("ascii", "replace").strip()
    return int(text, 16) if re.fullmatch("[0-9a-f]{8}", text) else None


def write_table(files: Files, path: str, entries: dict[Key, bytes]) -> int:
    """Write the checkpoints of all partitions and return the file's CRC."""
    data = checkpoints.encode_table(entries.items())
    files.write_atomic(f"{path}/{checkpoints.TABLE_NAME}", data)
    return crc32c(data)


def mark_clean(files: Files, path: str, entries: dict[Key, bytes], unsynced: Sequence[str] = ()) -> bool:
    """Mark a clean shutdown, after all data is on disk; return whether it succeeded. Runs in any thread.

    Directories in `unsynced` contain files that the entries refer to. On a full disk the reserve is deleted. If the
    disk is still full, or fails, the next start recovers.
    """
    try:
        for directory in unsynced:
            files.sync_dir(directory)
        try:
            write_marker(files, path, entries)
        except OSError as e:
            if e.errno not in NO_SPACE or not files.exists(f"{path}/{RESERVE_NAME}"):
                raise
            files.remove(f"{path}/{RESERVE_NAME}")
            write_marker(files, path, entries)
    except OSError as e:
        logger.error("cannot mark the shutdown as clean; the next start recovers", path=path, reason=str(e))
        return False
    return True


def write_marker(files: Files, path: str, entries: dict[Key, bytes]) -> None:
    """Write the checkpoints of all partitions, then the marker with their CRC."""
    crc = write_table(files, path, entries)
    files.write_atomic(f"{path}/{CLEAN_NAME}", f"{crc:08x}\n".encode())


def write_pending(files: Files, pending: list[tuple[Segment, PendingEntries]]) -> None:
    """Write index entries at a clean shutdown; lost ones are rebuilt."""
    for segment, entries in pending:
        try:
            write_indexes(files, segment, entries, sync=False)
        except OSError as e:
            logger.warning("cannot write index", path=segment.index_path, reason=str(e))


def quarantine(files: Files, path: str, name: str) -> str:
    """Move a partition's directory to `quarantine/` and return its new path."""
    target = f"{path}/{QUARANTINE_NAME}/{name}"
    files.make_dir(f"{path}/{QUARANTINE_NAME}")
    number = 1
    while files.exists(target):
        number += 1
        target = f"{path}/{QUARANTINE_NAME}/{name}.{number}"
    files.rename(f"{path}/{name}", target)
    files.sync_dir(path)
    logger.warning("partition moved to quarantine", moved_to=target)
    return target
