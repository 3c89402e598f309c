"""The sparse indexes of a segment: offset to position, and timestamp to offset. Filled by appends, used by reads.

The files have Kafka's big-endian formats: `.index` holds (relative offset i32, position i32), `.timeindex` holds
(largest timestamp so far i64, relative offset of its batch i32). An index is derived data: readers compare its CRC with
the checkpoint and rebuild it from the segment on mismatch.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import lt

from crc32c import crc32c

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
MAX_ENTRIES = 1 << 20
"""Entries at which a segment is full; bounds an index in memory to 8 MiB."""
NATIVE_IS_LITTLE = sys.byteorder == "little"


class OffsetIndex:
    """Batch positions by base offset relative to the segment's; both columns increase."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: array[int] = array("i")
        self.positions: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, relative_offset: int, position: int) -> None:
        """Append an entry."""
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def floor(self, relative_offset: int) -> int:
        """Return the position of the last indexed batch that starts at or before an offset, else 0."""
        at = bisect_right(self.offsets, relative_offset)
        return self.positions[at - 1] if at else 0

    def last_between(self, after: int, until: int) -> tuple[int, int] | None:
        """Return (relative offset, position) of the last entry with after < position <= until."""
        at = bisect_right(self.positions, until) - 1
        if at < 0 or self.positions[at] <= after:
            return None
        return self.offsets[at], self.positions[at]

    def truncate(self, position: int) -> None:
        """Remove entries at or after `position`."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:]

    def encode(self, first: int = 0) -> bytes:
        """Return the entries from number `first` on in the file format."""
        both = array("i", bytes(8 * (len(self.positions) - first)))
        both[0::2] = self.offsets[first:]
        both[1::2] = self.positions[first:]
        if NATIVE_IS_LITTLE:
            both.byteswap()
        return both.tobytes()

    @classmethod
    def decode(cls, data: bytes, segment_bytes: int) -> OffsetIndex:
        """Parse an index file. Raises ValueError if it cannot belong to a segment of `segment_bytes`."""
        if len(data) % OFFSET_ENTRY.size:
            raise ValueError(f"size {len(data)} is not a multiple of the index entry size")
        both = array("i", data)
        if NATIVE_IS_LITTLE:
            both.byteswap()
        index = cls()
        index.offsets, index.positions = both[0::2], both[1::2]
        for column in (index.offsets, index.positions):
            if column and not (column[0] >= 0 and all(map(lt, column, column[1:]))):
                raise ValueError("index entries are out of order")
        if index.positions and index.positions[-1] >= segment_bytes:
            raise ValueError("an index entry is past the end of the segment")
        return index


class TimeIndex:
    """The largest timestamp up to a batch, and that batch's relative base offset; both columns increase."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Append an entry."""
        # Searches in other threads use the number of offsets, so these are appended last.
        self.timestamps.append(timestamp_ms)
        self.offsets.append(relative_offset)

    def last_timestamp(self) -> int:
        """Return the last entry's timestamp in ms, -1 if there is none."""
        return self.timestamps[-1] if self.timestamps else -1

    def floor(self, timestamp_ms: int) -> int:
        """Return a relative offset before which every timestamp is smaller than `timestamp_ms`."""
        at = bisect_left(self.timestamps, timestamp_ms, 0, len(self.offsets))
        return self.offsets[at - 1] if at else 0

    def truncate(self, relative_offset: int) -> None:
        """Remove batches that start at or after `relative_offset`."""
        keep = bisect_left(self.offsets, relative_offset)
        del self.timestamps[keep:], self.offsets[keep:]

    def encode(self, first: int = 0) -> bytes:
        """Return the entries from number `first` on in the file format."""
        pack = TIME_ENTRY.pack
        return b"".join(map(pack, self.timestamps[first:], self.offsets[first:]))

    @classmethod
    def decode(cls, data: bytes) -> TimeIndex:
        """Parse a time index file. Raises ValueError if it cannot be one."""
        if len(data) % TIME_ENTRY.size:
            raise ValueError(f"size {len(data)} is not a multiple of the time index entry size")
        index = cls()
        for timestamp_ms, relative_offset in TIME_ENTRY.iter_unpack(data):
            index.add(timestamp_ms, relative_offset)
        for column in (index.timestamps, index.offsets):
            if column and not (column[0] >= 0 and all(map(lt, column, column[1:]))):
                raise ValueError("time index entries are out of order")
        return index


class Indexes:
    """Both indexes of a segment, and how much of each is already in its file."""

    __slots__ = ("offset_crc", "offset_written", "offsets", "time_crc", "time_written", "times")

    def __init__(self) -> None:
        self.offsets = OffsetIndex()
        self.times = TimeIndex()
        self.offset_written = self.time_written = 0
        self.offset_crc = self.time_crc = 0
        """CRC-32C of the written entries, extended by each write."""

    def add(self, relative_offset: int, position: int, max_timestamp_ms: int, max_relative_offset: int) -> None:
        """Add a batch, and the largest timestamp so far if it has grown since the last entry."""
        self.offsets.add(relative_offset, position)
        self.add_time(max_timestamp_ms, max_relative_offset)

    def add_time(self, max_timestamp_ms: int, max_relative_offset: int) -> None:
        """Add a time index entry if the timestamp and offset both exceed the last entry's."""
        times = self.times
        if max_timestamp_ms > times.last_timestamp() and (not times.offsets or max_relative_offset > times.offsets[-1]):
            times.add(max_timestamp_ms, max_relative_offset)

    @property
    def unwritten(self) -> int:
        """Entries of the offset index that are not in its file."""
        return len(self.offsets) - self.offset_written

    def pop_unwritten(self) -> PendingEntries:
        """Return the entries to append to the files, and count them as written."""
        offsets, times = self.offsets.encode(self.offset_written), self.times.encode(self.time_written)
        pending = PendingEntries(
            self.offset_written * OFFSET_ENTRY.size, offsets, self.time_written * TIME_ENTRY.size, times
        )
        self.offset_crc, self.time_crc = crc32c(offsets, self.offset_crc), crc32c(times, self.time_crc)
        self.offset_written, self.time_written = len(self.offsets), len(self.times)
        return pending

    def truncate(self, position: int, relative_offset: int) -> None:
        """Remove the batches from `position` on; the files must be rewritten from the start."""
        self.offsets.truncate(position)
        self.times.truncate(relative_offset)
        self.offset_written = self.time_written = 0
        self.offset_crc = self.time_crc = 0


class PendingEntries:
    """Unwritten bytes of both index files, with their file positions."""

    __slots__ = ("offset_at", "offset_bytes", "time_at", "time_bytes")

    def __init__(self, offset_at: int, offset_bytes: bytes, time_at: int, time_bytes: bytes) -> None:
        self.offset_at, self.offset_bytes = offset_at, offset_bytes
        self.time_at, self.time_bytes = time_at, time_bytes

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.offset_bytes or self.time_bytes)
