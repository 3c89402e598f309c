"""Brings the indexes of a segment into memory: from its files where they are what was written, else from its batches.

Called by reads and searches for sealed segments and when a log is appended to again after a restart.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Protocol

from crc32c import crc32c

from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY, Indexes, OffsetIndex, PendingEntries, TimeIndex
from penstock.log.scan import BadBatch, walk
from penstock.log.segment import Segment
from penstock.log.types import CorruptLog
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

DEFAULT_INTERVAL_BYTES = 4096
DEFAULT_CACHE_BYTES = 32 << 20

logger = get_logger(__name__)


def load_indexes(files: Files, segment: Segment) -> Indexes:
    """The indexes of `segment`, which are not in memory. May be called in any thread.

    Raises CorruptLog where the batches themselves are damaged, OSError where they cannot be read.
    """
    try:
        return read_indexes(files, segment)
    except (ValueError, FileNotFoundError) as e:
        logger.warning("an index is damaged: it is built anew from the log", segment=segment.path, reason=str(e))
        return rebuild_indexes(files, segment)


def read_indexes(files: Files, segment: Segment) -> Indexes:
    """Raises ValueError where the files are not what the segment's row says."""
    offset_bytes = head(files, segment.index_path, segment.offset_entries * OFFSET_ENTRY.size)
    time_bytes = head(files, segment.time_index_path, segment.time_entries * TIME_ENTRY.size)
    if crc32c(offset_bytes) != segment.offset_crc or crc32c(time_bytes) != segment.time_crc:
        raise ValueError("the CRC does not match the entries")
    indexes = Indexes()
    indexes.offsets = OffsetIndex.decode(offset_bytes, segment.size)
    indexes.times = TimeIndex.decode(time_bytes)
    indexes.offset_written, indexes.time_written = segment.offset_entries, segment.time_entries
    indexes.offset_crc, indexes.time_crc = segment.offset_crc, segment.time_crc
    return indexes


def head(files: Files, path: str, size: int) -> bytes:
    """The first `size` bytes of a file; raises ValueError where it has fewer."""
    if not size:
        return b""
    file = files.open(path, read_only=True)
    try:
        data = file.read_at(0, size)
    finally:
        file.close()
    if len(data) != size:
        raise ValueError(f"{path} has {len(data)} bytes where {size} were written")
    return data


def rebuild_indexes(files: Files, segment: Segment) -> Indexes:
    """Reads the headers of all batches of a segment."""
    shadow = Segment("", segment.base_offset)
    shadow.indexes = Indexes()
    file = files.open(segment.path, read_only=True)
    try:
        for position, header, _ in walk(file, 0, segment.size, segment.base_offset):
            shadow.note(position, header.base_offset, header.max_timestamp_ms, DEFAULT_INTERVAL_BYTES)
    except BadBatch as e:
        raise CorruptLog(f"{segment.path}: {e}") from e
    finally:
        file.close()
    if segment.sealed:
        shadow.seal(segment.aged_ms)
    assert shadow.indexes is not None
    return shadow.indexes


def write_indexes(files: Files, segment: IndexPaths, pending: PendingEntries, sync: bool) -> None:
    """Appends entries to the files of a segment. May be called in any thread; raises OSError."""
    for path, at, data in (
        (segment.index_path, pending.offset_at, pending.offset_bytes),
        (segment.time_index_path, pending.time_at, pending.time_bytes),
    ):
        if not data and at:
            continue
        file = files.open(path, create=True)
        try:
            file.truncate(at)
            if data:
                file.append(data)
            if sync:
                file.sync()
        finally:
            file.close()


class IndexPaths(Protocol):
    """A segment, or whatever else has index files."""

    @property
    def index_path(self) -> str: ...

    @property
    def time_index_path(self) -> str: ...


class IndexCache:
    """The indexes of sealed segments that were read lately, within a number of bytes. Used on the event loop only."""

    def __init__(self, files: Files, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.files = files
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.held: OrderedDict[Segment, int] = OrderedDict()

    def get(self, segment: Segment) -> Indexes:
        """Raises CorruptLog and OSError."""
        indexes = segment.indexes
        if indexes is None:
            indexes = load_indexes(self.files, segment)
            self.keep(segment, indexes)
            if indexes.offset_written < len(indexes.offsets):
                self.repair(segment, indexes)
        elif segment in self.held:
            self.held.move_to_end(segment)
        return indexes

    def keep(self, segment: Segment, indexes: Indexes) -> None:
        """Holds indexes for the next read; those of the active segment are the log's own."""
        segment.indexes = indexes
        if not segment.sealed or segment in self.held:
            return
        size = self.held[segment] = 8 * len(indexes.offsets) + 12 * len(indexes.times) + 200
        self.held_bytes += size
        while self.held_bytes > self.max_bytes and len(self.held) > 1:
            oldest, size = self.held.popitem(last=False)
            oldest.indexes = None
            self.held_bytes -= size

    def repair(self, segment: Segment, indexes: Indexes) -> None:
        """Writes indexes that were built anew; where that fails they will be built once more."""
        with contextlib.suppress(OSError):
            write_indexes(self.files, segment, indexes.take_unwritten(), sync=False)
        segment.note_written_indexes()

    def forget(self, segment: Segment) -> None:
        self.held_bytes -= self.held.pop(segment, 0)
        segment.indexes = None
