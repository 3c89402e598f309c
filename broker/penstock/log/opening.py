"""What happens to a data directory when a broker starts and ends: lock, whose it is, clean mark, recovery.

Called by `LogDir`; blocks. A clean shutdown leaves `checkpoints`, the checkpoints of all partitions, and
`clean-shutdown`, which holds that file's CRC. With both nothing else is read. Without, each partition is recovered from
the newer of its own checkpoint and the one in the table.
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
from penstock.log.index import PendingEntries
from penstock.log.index_files import write_indexes
from penstock.log.meta import PartitionMeta, claim
from penstock.log.recovery import recover
from penstock.log.segment import DELETED, Segment
from penstock.log.space import NO_SPACE, RESERVE_NAME
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
    """Another process has the directory; the message names it."""


class RecoveryGivenUp(LogError):
    """The broker is told to end: what is not recovered yet is left to the next start."""


@dataclass
class OpenedLog:
    """A directory as it was found."""

    meta: PartitionMeta
    was_unclean: bool
    table: dict[Key, bytes]
    unrecovered: list[Key] = field(default_factory=list)
    checkpoints: dict[Key, bytes] = field(default_factory=dict)
    corrupt: dict[Key, CorruptLog] = field(default_factory=dict)
    torn_bytes: dict[Key, int] = field(default_factory=dict)
    given_up: bool = False
    """Whether `recover_all` is to end with the partition at hand."""


def lock_directory(files: Files, path: str) -> None:
    """Makes the directory this process's alone. Raises DirectoryInUse, OSError."""
    missing, there = [], path
    while there and not files.exists(there):
        there = os.path.dirname(there)
        missing.append(there or ".")
    files.make_dir(path)
    for parent in missing:
        files.sync_dir(parent)
    try:
        files.lock(f"{path}/{LOCK_NAME}")
    except BlockingIOError as e:
        raise DirectoryInUse(f"{path} is in use by another process: stop that one, or use another directory") from e


def look(files: Files, path: str, cluster_id: str, broker_id: int) -> OpenedLog:
    """What is there: the checkpoints that count as they are, and which partitions must be recovered.

    Raises WrongDirectory, OSError.
    """
    meta, fresh = claim(files, path, cluster_id, broker_id)
    table, table_crc = read_table(files, path)
    clean = table is not None and read_clean_mark(files, path) == table_crc
    keys = [key for key in map(parse_partition, files.list(path)) if key is not None]
    opened = OpenedLog(meta, not (clean or fresh), table or {})
    if clean:
        opened.checkpoints = {key: opened.table[key] for key in keys if key in opened.table}
    opened.unrecovered = [key for key in keys if key not in opened.checkpoints]
    return opened


def recover_all(files: Files, path: str, opened: OpenedLog, make_state: Callable[[], BatchState], clock: Clock) -> None:
    """Recovers what was not left clean; a partition that is damaged does not stop the others.

    Raises OSError, RecoveryGivenUp. From here on the directory is in use: a crash now is an unclean end.
    """
    if files.exists(f"{path}/{CLEAN_NAME}"):
        files.remove(f"{path}/{CLEAN_NAME}")
        files.sync_dir(path)
    read_bytes = 0
    keys, opened.unrecovered = opened.unrecovered, []
    for key in keys:
        if opened.given_up:
            raise RecoveryGivenUp(f"{path}: the broker is told to end")
        directory = f"{path}/{key[0]}-{key[1]}"
        try:
            recovered = recover(files, directory, make_state(), opened.table.get(key), clock.wall_ms())
        except CorruptLog as e:
            logger.error("a partition is damaged and stays offline", reason=str(e))
            opened.corrupt[key] = e
            continue
        opened.checkpoints[key] = checkpoints.encode(recovered.checkpoint)
        read_bytes += recovered.read_bytes
        if recovered.torn_bytes:
            opened.torn_bytes[key] = recovered.torn_bytes
    opened.table = {}
    if keys:
        # What was found counts from now on: a second crash need not read it again.
        try:
            write_table(files, path, opened.checkpoints)
        except OSError as e:
            if e.errno not in NO_SPACE:
                raise
            logger.warning("no space is left for what recovery found: a crash now means to read it again", path=path)
        logger.info("partitions recovered", path=path, partitions=len(keys), read_bytes=read_bytes)


def parse_partition(name: str) -> Key | None:
    """The partition that a directory belongs to; None for other names."""
    match = PARTITION_NAME.fullmatch(name)
    return (UUID(match[1]), int(match[2])) if match is not None and int(match[2]) < 1 << 31 else None


def is_doomed(name: str) -> bool:
    """Whether a directory is one of a deleted partition."""
    return name.endswith(DELETED) and parse_partition(name.split(".")[0]) is not None


def read_table(files: Files, path: str) -> tuple[dict[Key, bytes] | None, int]:
    """(checkpoints by partition, the file's CRC); None where there is no sound table."""
    name = f"{path}/{checkpoints.TABLE_NAME}"
    try:
        data = files.read(name)
        return dict(checkpoints.decode_table(data)), crc32c(data)
    except FileNotFoundError:
        return None, 0
    except DamagedCheckpoint as e:
        logger.warning("the table of checkpoints is damaged: more is read instead", path=name, reason=str(e))
        return None, 0


def read_clean_mark(files: Files, path: str) -> int | None:
    """The CRC of the table that a clean shutdown left; None where the shutdown was not clean."""
    try:
        data = files.read(f"{path}/{CLEAN_NAME}")
    except FileNotFoundError:
        return None
    text = data[:32].decode("ascii", "replace").strip()
    return int(text, 16) if re.fullmatch("[0-9a-f]{8}", text) else None


def write_table(files: Files, path: str, entries: dict[Key, bytes]) -> int:
    """Writes the checkpoints of all partitions at once; returns the file's CRC."""
    data = checkpoints.encode_table(entries.items())
    files.write_atomic(f"{path}/{checkpoints.TABLE_NAME}", data)
    return crc32c(data)


def mark_clean(files: Files, path: str, entries: dict[Key, bytes], unsynced: Sequence[str] = ()) -> bool:
    """The last thing of a clean shutdown, when all data is on disk; whether it was done. May be called in any thread.

    Directories that are `unsynced` name files that the entries vouch for. On a full disk the reserve is given up; where
    even that is too little, the next start will recover.
    """
    for directory in unsynced:
        files.sync_dir(directory)
    for _ in range(2):
        try:
            crc = write_table(files, path, entries)
            files.write_atomic(f"{path}/{CLEAN_NAME}", f"{crc:08x}\n".encode())
            return True
        except OSError as e:
            if e.errno not in NO_SPACE:
                raise
            if files.exists(f"{path}/{RESERVE_NAME}"):
                files.remove(f"{path}/{RESERVE_NAME}")
    logger.warning("no space is left to mark the shutdown as clean", path=path)
    return False


def write_pending(files: Files, pending: list[tuple[Segment, PendingEntries]]) -> None:
    """Index entries at a clean shutdown; where they get lost the index is built anew."""
    for segment, entries in pending:
        try:
            write_indexes(files, segment, entries, sync=False)
        except OSError as e:
            logger.warning("an index was not written", path=segment.index_path, reason=str(e))


def quarantine(files: Files, path: str, name: str) -> str:
    """Moves a partition's directory out of the way; returns where to."""
    target = f"{path}/{QUARANTINE_NAME}/{name}"
    files.make_dir(f"{path}/{QUARANTINE_NAME}")
    number = 1
    while files.exists(target):
        number += 1
        target = f"{path}/{QUARANTINE_NAME}/{name}.{number}"
    files.rename(f"{path}/{name}", target)
    files.sync_dir(path)
    logger.warning("a partition was moved to quarantine", moved_to=target)
    return target
