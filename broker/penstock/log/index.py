"""The sparse indexes of a segment: offset to position, and timestamp to offset. Filled by appends, asked by reads.

On disk they have Kafka's formats, big-endian: `.index` is (relative offset i32, position i32), `.timeindex` is
(largest timestamp so far i64, relative offset of the batch that has it i32). An index holds no truth of its own:
whoever reads one from disk compares its CRC with the checkpoint's and builds it anew from the log where they differ.
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
"""Entries after which a segment counts as full, so that an index in memory is bounded (8 MiB)."""
NATIVE_IS_LITTLE = sys.byteorder == "little"


class OffsetIndex:
    """Positions of batches by the base offset of each, relative to the segment's; both rise."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: array[int] = array("i")
        self.positions: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def floor(self, relative_offset: int) -> int:
        """The position of the last indexed batch that begins at or before an offset; 0 where there is none."""
        at = bisect_right(self.offsets, relative_offset)
        return self.positions[at - 1] if at else 0

    def last_between(self, after: int, until: int) -> tuple[int, int] | None:
        """(relative offset, position) of the last entry with after < position <= until."""
        at = bisect_right(self.positions, until) - 1
        if at < 0 or self.positions[at] <= after:
            return None
        return self.offsets[at], self.positions[at]

    def truncate(self, position: int) -> None:
        """Forgets what lies at `position` and behind it."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:]

    def encode(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as on disk."""
        both = array("i", bytes(8 * (len(self.positions) - first)))
        both[0::2] = self.offsets[first:]
        both[1::2] = self.positions[first:]
        if NATIVE_IS_LITTLE:
            both.byteswap()
        return both.tobytes()

    @classmethod
    def decode(cls, data: bytes, segment_bytes: int) -> OffsetIndex:
        """Raises ValueError where it cannot be the index of a segment of that size."""
        if len(data) % OFFSET_ENTRY.size:
            raise ValueError(f"{len(data)} bytes are no whole number of index entries")
        both = array("i", data)
        if NATIVE_IS_LITTLE:
            both.byteswap()
        index = cls()
        index.offsets, index.positions = both[0::2], both[1::2]
        for column in (index.offsets, index.positions):
            if column and not (column[0] >= 0 and all(map(lt, column, column[1:]))):
                raise ValueError("index entries do not rise")
        if index.positions and index.positions[-1] >= segment_bytes:
            raise ValueError("an index entry lies past the end of its segment")
        return index


class TimeIndex:
    """The largest timestamp up to a batch, and that batch's base offset relative to the segment's; both rise."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        # A search in another thread goes by the number of offsets, so they come second.
        self.timestamps.append(timestamp_ms)
        self.offsets.append(relative_offset)

    def last_timestamp(self) -> int:
        return self.timestamps[-1] if self.timestamps else -1

    def floor(self, timestamp_ms: int) -> int:
        """A relative offset before which every timestamp is smaller than `timestamp_ms`."""
        at = bisect_left(self.timestamps, timestamp_ms, 0, len(self.offsets))
        return self.offsets[at - 1] if at else 0

    def truncate(self, relative_offset: int) -> None:
        """Forgets batches that begin at `relative_offset` or behind it."""
        keep = bisect_left(self.offsets, relative_offset)
        del self.timestamps[keep:], self.offsets[keep:]

    def encode(self, first: int = 0) -> bytes:
        pack = TIME_ENTRY.pack
        return b"".join(map(pack, self.timestamps[first:], self.offsets[first:]))

    @classmethod
    def decode(cls, data: bytes) -> TimeIndex:
        """Raises ValueError where it cannot be a time index."""
        if len(data) % TIME_ENTRY.size:
            raise ValueError(f"{len(data)} bytes are no whole number of time index entries")
        index = cls()
        for timestamp_ms, relative_offset in TIME_ENTRY.iter_unpack(data):
            index.add(timestamp_ms, relative_offset)
        for column in (index.timestamps, index.offsets):
            if column and not (column[0] >= 0 and all(map(lt, column, column[1:]))):
                raise ValueError("time index entries do not rise")
        return index


class Indexes:
    """Both indexes of a segment, and how much of each is already in its file."""

    __slots__ = ("offset_crc", "offset_written", "offsets", "time_crc", "time_written", "times")

    def __init__(self) -> None:
        self.offsets = OffsetIndex()
        self.times = TimeIndex()
        self.offset_written = self.time_written = 0
        self.offset_crc = self.time_crc = 0
        """Of the entries written, as continued by each write."""

    def add(self, relative_offset: int, position: int, max_timestamp_ms: int, max_relative_offset: int) -> None:
        """Notes a batch, and the largest timestamp so far where it has grown since the last entry."""
        self.offsets.add(relative_offset, position)
        self.note_time(max_timestamp_ms, max_relative_offset)

    def note_time(self, max_timestamp_ms: int, max_relative_offset: int) -> None:
        times = self.times
        if max_timestamp_ms > times.last_timestamp() and (not times.offsets or max_relative_offset > times.offsets[-1]):
            times.add(max_timestamp_ms, max_relative_offset)

    @property
    def unwritten(self) -> int:
        """Entries of the offset index that are not in its file."""
        return len(self.offsets) - self.offset_written

    def take_unwritten(self) -> PendingEntries:
        """What is to be appended to the files; counts as written from now on."""
        offsets, times = self.offsets.encode(self.offset_written), self.times.encode(self.time_written)
        pending = PendingEntries(
            self.offset_written * OFFSET_ENTRY.size, offsets, self.time_written * TIME_ENTRY.size, times
        )
        self.offset_crc, self.time_crc = crc32c(offsets, self.offset_crc), crc32c(times, self.time_crc)
        self.offset_written, self.time_written = len(self.offsets), len(self.times)
        return pending

    def truncate(self, position: int, relative_offset: int) -> None:
        """Forgets the batches from `position` on; the files are to be written from their beginning."""
        self.offsets.truncate(position)
        self.times.truncate(relative_offset)
        self.offset_written = self.time_written = 0
        self.offset_crc = self.time_crc = 0


class PendingEntries:
    """Bytes of both indexes, and where in their files they belong."""

    __slots__ = ("offset_at", "offset_bytes", "time_at", "time_bytes")

    def __init__(self, offset_at: int, offset_bytes: bytes, time_at: int, time_bytes: bytes) -> None:
        self.offset_at, self.offset_bytes = offset_at, offset_bytes
        self.time_at, self.time_bytes = time_at, time_bytes

    @property
    def empty(self) -> bool:
        return not (self.offset_bytes or self.time_bytes)
