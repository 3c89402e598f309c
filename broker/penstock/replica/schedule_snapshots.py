"""Snapshots of what waits in topics with scheduled records, so that a new leader replays only the end of its log.

Each replica of such a partition, leader or not, brings its snapshot up to date in a thread when the log has grown.
`scheduled_delivery` starts from it. A snapshot that is damaged, or of a log that was truncated, is ignored: the whole
log is replayed.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from crc32c import crc32c

from penstock.log.epochs import EpochHistory
from penstock.log.partition_log import PartitionLog
from penstock.log.scheduled_records import replay_schedule
from penstock.log.search import LogSearch
from penstock.log.types import LogError
from penstock.replica.partition import Partition
from penstock.replica.schedule_index import WIDTH, ScheduleIndex
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

FILE_NAME = "scheduled.snapshot"
FORMAT = 1
HEAD = struct.Struct(">4sBqiq")
MAGIC = b"PSCH"
BUCKET = struct.Struct(">qi")
CRC = struct.Struct(">I")
NUMBER_BYTES = 8
CHECK_S = 60.0
"""Interval between checks of how far the logs have grown."""
MIN_OFFSETS = 250_000
"""Growth of a log, in offsets, after which its snapshot is brought up to date. Bounds what a new leader replays."""

logger = get_logger("penstock.replica")


class ScheduleSource(NamedTuple):
    """What is read of a log, in any thread, to find out what waits."""

    files: Files
    path: str
    search: LogSearch
    epochs: list[tuple[int, int]]
    start_offset: int
    end_offset: int


def source_of(log: PartitionLog, *, is_durable: bool = False) -> ScheduleSource:
    """Return what is read of a log as it is now, with `is_durable` of what a crash leaves."""
    end_offset = log.flushed_offset if is_durable else log.end_offset
    path, epochs = f"{log.directory}/{FILE_NAME}", log.epochs.entries()
    return ScheduleSource(log.host.files, path, log.new_search(), epochs, log.start_offset, end_offset)


def load_schedule(source: ScheduleSource, is_over: Callable[[], bool] = bool) -> ScheduleIndex:
    """Return what waits, from the snapshot and the log after it; a part of it if `is_over` returns True before. Raises
    CorruptLog, LogError."""
    index, from_offset = read_snapshot(source)
    replay_schedule(source.search, max(from_offset, source.start_offset), source.end_offset, index, is_over)
    index.forget_below(source.start_offset)
    return index


def update_snapshot(source: ScheduleSource, is_over: Callable[[], bool] = bool) -> None:
    """Write a snapshot of the log as far as it is known, unless `is_over` returns True before. Raises CorruptLog,
    LogError, OSError."""
    index = load_schedule(source, is_over)
    if is_over():
        return
    index.finish_sweeps()
    epoch = EpochHistory(source.epochs).epoch_at(source.end_offset - 1)
    parts = [HEAD.pack(MAGIC, FORMAT, source.end_offset, epoch, index.lowest_location)]
    for key, rows in index.minutes.items():
        parts += (BUCKET.pack(key, len(rows)), rows.tobytes())
    data = b"".join(parts)
    source.files.write_atomic(source.path, data + CRC.pack(crc32c(data)))


def read_snapshot(source: ScheduleSource) -> tuple[ScheduleIndex, int]:
    """Return the snapshot and the offset at which it ends; an empty index and the start of the log without a usable
    one. Raises LogError if the disk fails."""
    empty = ScheduleIndex(), source.start_offset
    try:
        data = source.files.read(source.path)
    except FileNotFoundError:
        return empty
    except OSError as e:
        raise LogError(f'cannot read "{source.path}": {e}') from e
    try:
        index, end_offset, epoch = decode_snapshot(data)
    except ValueError as e:
        logger.warning("ignoring a damaged snapshot of scheduled records", path=source.path, reason=str(e))
        return empty
    # Logs with the same epoch at an offset are equal up to it: the log was not truncated below the snapshot's end.
    is_of_log = end_offset <= source.end_offset and EpochHistory(source.epochs).epoch_at(end_offset - 1) == epoch
    return (index, end_offset) if is_of_log and end_offset >= source.start_offset else empty


def decode_snapshot(data: bytes) -> tuple[ScheduleIndex, int, int]:
    """Return (index, end offset, leader epoch at the end). Raises ValueError."""
    end = len(data) - CRC.size
    if end < HEAD.size or CRC.unpack_from(data, end)[0] != crc32c(memoryview(data)[:end]):
        raise ValueError("CRC mismatch")
    magic, version, end_offset, epoch, lowest_location = HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, FORMAT):
        raise ValueError(f"format {version}; this version reads {FORMAT}")
    index, at = ScheduleIndex(), HEAD.size
    while at < end:
        if at + BUCKET.size > end:
            raise ValueError("it ends within a header")
        key, count = BUCKET.unpack_from(data, at)
        at += BUCKET.size
        stop = at + count * NUMBER_BYTES
        if count < 0 or count % WIDTH or stop > end or key in index.minutes:
            raise ValueError(f"invalid records of minute {key}")
        rows = array("q")
        rows.frombytes(data[at:stop])
        index.add_minute(key, rows)
        at = stop
    index.lowest_location = lowest_location
    return index, end_offset, epoch


class ScheduleSnapshots:
    """Keeps the snapshots of this broker's replicas. The timer runs only while there are such replicas."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self.spawn = spawn
        self.check_s, self.min_offsets = CHECK_S, MIN_OFFSETS
        self.roles: dict[Partition, int] = {}
        """Roles of partitions that may have scheduled records, with the end of their snapshot as far as it is known."""
        self.timer: asyncio.TimerHandle | None = None
        self.closed = False

    def add(self, role: Partition) -> None:
        """Keep the snapshot of a partition if its topic may have scheduled records."""
        if not role.config.delivery_schedule_enable:
            self.roles.pop(role, None)
        elif role not in self.roles:
            self.roles[role] = role.log.start_offset
            self.set_timer()

    def remove(self, role: Partition) -> None:
        """Forget a role that has ended."""
        self.roles.pop(role, None)

    def set_timer(self) -> None:
        """Start the timer if it is needed and does not run."""
        if self.roles and self.timer is None and not self.closed:
            self.timer = asyncio.get_running_loop().call_later(self.check_s, self.on_timer)

    def on_timer(self) -> None:
        """Update the snapshots of the logs that have grown."""
        self.spawn(self.update_grown())

    async def update_grown(self) -> None:
        """Update one snapshot after the other, each in a thread."""
        try:
            for role, known_end in list(self.roles.items()):
                log = role.log
                if self.closed or role not in self.roles or log.closed:
                    continue
                if log.flushed_offset - known_end < self.min_offsets:
                    continue
                # What a crash loses would be written again with other records at the same offsets.
                source = source_of(log, is_durable=True)
                try:
                    await asyncio.get_running_loop().run_in_executor(
                        None, partial(update_snapshot, source, self.is_closed)
                    )
                except (LogError, OSError) as e:
                    logger.warning("cannot write a snapshot of scheduled records", path=source.path, reason=str(e))
                if role in self.roles:
                    self.roles[role] = source.end_offset
        finally:
            self.timer = None
            self.set_timer()

    def is_closed(self) -> bool:
        """Return whether the broker stops. Called in threads."""
        return self.closed

    def close(self) -> None:
        """Stop the timer."""
        self.closed = True
        if self.timer is not None:
            self.timer.cancel()
