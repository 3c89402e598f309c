"""Where batches end, without looking into them: which of an answer are of a range, and what to fetch next. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock_spark.model.errors import CorruptBatch
from penstock_spark.model.ranges import OffsetRange

PREFIX = struct.Struct(">qiibIhi")
"""Of a batch: base offset, length of what follows it, leader epoch, magic, CRC, attributes, last offset delta."""
OVERHEAD = 12
LEAST_LENGTH = PREFIX.size - OVERHEAD
MAGIC = 2


class BatchSpan(NamedTuple):
    """The first `size_bytes` of an answer are whole batches of the range; after them comes `next_offset`."""

    size_bytes: int
    next_offset: int
    batch_bytes: int
    """How large the batch is that did not come whole; 0 where there is none, or not enough of it to tell."""


def measure(records: memoryview, range_: OffsetRange, asked: int) -> BatchSpan:
    """Of the answer to a fetch at offset `asked`. The range's end is `next_offset` where nothing of it can follow.

    Raises `CorruptBatch` for lengths that cannot be, and for batches that do not follow one another.
    """
    position, next_offset, size, end = 0, asked, len(records), range_.end
    unpack = PREFIX.unpack_from
    while size - position >= PREFIX.size:
        base, length, _, magic, _, _, delta = unpack(records, position)
        if length < LEAST_LENGTH or (magic >= MAGIC and delta < 0):
            raise CorruptBatch(f"{place(range_, base)}: a batch of length {length} with last offset delta {delta}")
        if base >= end:
            return BatchSpan(position, end, 0)
        stop = position + OVERHEAD + length
        if stop > size:
            return BatchSpan(position, next_offset, OVERHEAD + length)
        last = base + delta if magic >= MAGIC else base
        if last < next_offset:
            raise CorruptBatch(f"{place(range_, base)}: a batch up to offset {last} where {next_offset} is next")
        position, next_offset = stop, last + 1
        if next_offset >= end:
            break
    return BatchSpan(position, next_offset, 0)


def place(range_: OffsetRange, offset: int) -> str:
    return f"topic {range_.topic!r}, partition {range_.partition}, offset {offset}"
