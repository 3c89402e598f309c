"""Loads the indexes of a segment from their files, or rebuilds them from the batches if the files do not match.

Called by reads and searches of sealed segments, and by the first append after a restart.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Protocol

from crc32c import crc32c

from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY, Indexes, OffsetIndex, PendingEntries, TimeIndex
from penstock.log.scan import BadBatch, scan_headers
from penstock.log.segment import Segment
from penstock.log.types import CorruptLog
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

DEFAULT_INTERVAL_BYTES = 4096
DEFAULT_CACHE_BYTES = 32 << 20

logger = get_logger(__name__)


def load_indexes(files: Files, segment: Segment) -> Indexes:
    """Return the indexes of a segment that are not in memory. Runs in any thread.

    Raises CorruptLog if the batches are damaged, OSError if they cannot be read.
    """
    try:
        return read_indexes(files, segment)
    except (ValueError, FileNotFoundError) as e:
        logger.warning("index is damaged; rebuilding it from the segment", segment=segment.path, reason=str(e))
        return rebuild_indexes(files, segment)


def read_indexes(files: Files, segment: Segment) -> Indexes:
    """Read the index files. Raises ValueError if they do not match the segment's row."""
    offset_bytes = read_head(files, segment.index_path, segment.offset_entries * OFFSET_ENTRY.size)
    time_bytes = read_head(files, segment.time_index_path, segment.time_entries * TIME_ENTRY.size)
    if crc32c(offset_bytes) != segment.offset_crc or crc32c(time_bytes) != segment.time_crc:
        raise ValueError("CRC mismatch")
    indexes = Indexes()
    indexes.offsets = OffsetIndex.decode(offset_bytes, segment.size)
    indexes.times = TimeIndex.decode(time_bytes)
    indexes.offset_written, indexes.time_written = segment.offset_entries, segment.time_entries
    indexes.offset_crc, indexes.time_crc = segment.offset_crc, segment.time_crc
    return indexes


def read_head(files: Files, path: str, size: int) -> bytes:
    """Return the first `size` bytes of a file. Raises ValueError if the file is shorter."""
    if not size:
        return b""
    file = files.open(path, read_only=True)
    try:
        data = file.read_at(0, size)
    finally:
        file.close()
    if len(data) != size:
        raise ValueError(f'"{path}" has {len(data)} bytes, expected {size}')
    return data


def rebuild_indexes(files: Files, segment: Segment) -> Indexes:
    """Build the indexes from all batch headers of a segment. Raises CorruptLog, OSError."""
    shadow = Segment("", segment.base_offset)
    shadow.indexes = Indexes()
    file = files.open(segment.path, read_only=True)
    try:
        for position, header, _ in scan_headers(file, 0, segment.size, segment.base_offset):
            shadow.add_batch(position, header.base_offset, header.max_timestamp_ms, DEFAULT_INTERVAL_BYTES)
    except BadBatch as e:
        raise CorruptLog(f"{segment.path}: {e}") from e
    finally:
        file.close()
    if segment.sealed:
        shadow.seal(segment.aged_ms)
    assert shadow.indexes is not None
    return shadow.indexes


def write_indexes(files: Files, segment: IndexPaths, pending: PendingEntries, sync: bool) -> None:
    """Append entries to a segment's index files. Runs in any thread; raises OSError."""
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
    """The paths of a segment's index files."""

    @property
    def index_path(self) -> str:
        """Path of the offset index."""

    @property
    def time_index_path(self) -> str:
        """Path of the time index."""


class IndexCache:
    """Indexes of recently read sealed segments, bounded in bytes. Used on the event loop only."""

    def __init__(self, files: Files, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.files = files
        self.max_bytes = max_bytes
        self.cached_bytes = 0
        self.cached: OrderedDict[Segment, int] = OrderedDict()
        """Size in bytes by segment, least recently used first."""

    def get(self, segment: Segment) -> Indexes:
        """Return a segment's indexes. Raises CorruptLog and OSError."""
        indexes = segment.indexes
        if indexes is None:
            indexes = load_indexes(self.files, segment)
            self.put(segment, indexes)
            if indexes.offset_written < len(indexes.offsets):
                self.rewrite(segment, indexes)
        elif segment in self.cached:
            self.cached.move_to_end(segment)
        return indexes

    def put(self, segment: Segment, indexes: Indexes) -> None:
        """Cache the indexes of a sealed segment; those of the active segment belong to the log."""
        segment.indexes = indexes
        if not segment.sealed or segment in self.cached:
            return
        size = self.cached[segment] = 8 * len(indexes.offsets) + 12 * len(indexes.times) + 200
        self.cached_bytes += size
        while self.cached_bytes > self.max_bytes and len(self.cached) > 1:
            oldest, size = self.cached.popitem(last=False)
            oldest.indexes = None
            self.cached_bytes -= size

    def rewrite(self, segment: Segment, indexes: Indexes) -> None:
        """Write rebuilt indexes; if that fails, the next load rebuilds them again."""
        with contextlib.suppress(OSError):
            write_indexes(self.files, segment, indexes.pop_unwritten(), sync=False)
        segment.record_written_indexes()

    def forget(self, segment: Segment) -> None:
        """Remove a segment's indexes from memory."""
        self.cached_bytes -= self.cached.pop(segment, 0)
        segment.indexes = None
