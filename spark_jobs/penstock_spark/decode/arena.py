"""Where the records of a group of batches are put one behind the other, to be decoded together. Used by `sections` and
`decoder`.

The memory is used again for the next group: pages that are fresh cost more than what is written to them.
"""

from __future__ import annotations

from penstock.wire.compression import GROWTH_FACTOR, INITIAL_RATIO, MIN_BUFFER_BYTES, decompress_into, too_large
from penstock.wire.primitives import Buffer
from penstock_spark.decode.varints import PADDING, Bytes

FIRST_BYTES = 64 << 10
KEPT_BYTES = 32 << 20
"""What is larger is given back when its group has been decoded."""


class Arena:
    """`size` bytes of records. What is made of them is to be copied out before `clear`."""

    __slots__ = ("_data", "_view", "size")

    def __init__(self) -> None:
        self.size = 0
        self._have(FIRST_BYTES)

    def put(self, records: Buffer) -> None:
        """Appends a copy."""
        end = self.size + len(records)
        if end + PADDING > len(self._data):
            self._grow(len(records))
        self._view[self.size : end] = records
        self.size = end

    def put_decompressed(self, codec: int, records: Buffer, max_bytes: int) -> int:
        """Appends what `records` stand for, and says how many bytes that is. Raises MalformedMessage where there are
        more than `max_bytes`, or they are damaged. Allocates as `compression.decompress` does."""
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
        """All of it. Valid until the next call of anything else."""
        end = self.size + PADDING
        self._view[self.size : end] = bytes(PADDING)
        return Bytes(self._data, self.size)

    def clear(self) -> None:
        self.size = 0
        if len(self._data) > KEPT_BYTES:
            self._have(FIRST_BYTES)

    def _grow(self, room: int) -> None:
        old = self._view[: self.size]
        self._have(max(self.size + room + PADDING, min(2 * len(self._data), KEPT_BYTES)))
        self._view[: self.size] = old

    def _have(self, capacity: int) -> None:
        self._data = bytearray(capacity)
        self._view = memoryview(self._data)
