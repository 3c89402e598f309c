"""Buffer for the records of several batches, which are decoded together. Used by `sections` and `decoder`.

The memory is reused for the next group: fresh pages cost more than the writes to them.
"""

from __future__ import annotations

from penstock.client.batches import GROWTH_FACTOR, INITIAL_RATIO, MIN_BUFFER_BYTES, Buffer, decompress_into, too_large
from penstock_spark.decode.varints import PADDING, Bytes

INITIAL_BYTES = 64 << 10
MAX_KEPT_BYTES = 32 << 20
"""Larger buffers are freed after their group."""


class Arena:
    """`size` bytes of records. Decoded data must be copied out before `clear`."""

    __slots__ = ("_data", "_view", "size")

    def __init__(self) -> None:
        self.size = 0
        self._allocate(INITIAL_BYTES)

    def put(self, records: Buffer) -> None:
        """Append a copy of records."""
        end = self.size + len(records)
        if end + PADDING > len(self._data):
            self._grow(len(records))
        self._view[self.size : end] = records
        self.size = end

    def put_decompressed(self, codec: int, records: Buffer, max_bytes: int) -> int:
        """Append decompressed records and return their size. Raises `MalformedMessage` if they are damaged or larger
        than `max_bytes`. Allocates as `compression.decompress` does."""
        room = min(max_bytes, max(len(records) * INITIAL_RATIO, MIN_BUFFER_BYTES))
        while True:
            if self.size + room + PADDING > len(self._data):
                self._grow(room)
            end = min(self.size + max_bytes, len(self._data) - PADDING)
            taken = decompress_into(codec, records, self._view[self.size : end])
            if taken is not None:
                self.size += taken
                return taken
            room = end - self.size
            if room >= max_bytes:
                raise too_large(max_bytes)
            room = min(max_bytes, room * GROWTH_FACTOR)

    def source(self) -> Bytes:
        """Return all records. Valid until the next call of any other method."""
        end = self.size + PADDING
        self._view[self.size : end] = bytes(PADDING)
        return Bytes(self._data, self.size)

    def clear(self) -> None:
        """Remove all records; free a large buffer."""
        self.size = 0
        if len(self._data) > MAX_KEPT_BYTES:
            self._allocate(INITIAL_BYTES)

    def _grow(self, room: int) -> None:
        old = self._view[: self.size]
        self._allocate(max(self.size + room + PADDING, min(2 * len(self._data), MAX_KEPT_BYTES)))
        self._view[: self.size] = old

    def _allocate(self, capacity: int) -> None:
        self._data = bytearray(capacity)
        self._view = memoryview(self._data)
