"""Finds batch boundaries without decoding: which batches of a response belong to a range, and the next fetch. No I/O.

Called by `range_fetch`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.client.errors import DamagedBatch
from penstock.client.types import OffsetRange

PREFIX = struct.Struct(">qiibIhi")
"""Start of a batch: base offset, length of the rest, leader epoch, magic, CRC, attributes, last offset delta."""
OVERHEAD = 12
MIN_LENGTH = PREFIX.size - OVERHEAD
MAGIC = 2


class BatchSpan(NamedTuple):
    """The first `size_bytes` of a response are complete batches of the range; `next_offset` follows them."""

    size_bytes: int
    next_offset: int
    batch_bytes: int
    """Size of the first incomplete batch; 0 if there is none, or if its header is incomplete."""


def measure(records: memoryview, range_: OffsetRange, fetch_offset: int) -> BatchSpan:
    """Measure the response to a fetch at `fetch_offset`. `next_offset` is the range's end if nothing of it can follow.

    Raises `DamagedBatch` for impossible lengths, and for batches that are not in order.
    """
    position, next_offset, size, end = 0, fetch_offset, len(records), range_.end
    unpack = PREFIX.unpack_from
    while size - position >= PREFIX.size:
        base, length, _, magic, _, _, delta = unpack(records, position)
        if length < MIN_LENGTH or (magic >= MAGIC and delta < 0):
            raise DamagedBatch(
                f"{position_text(range_, base)}: batch of length {length} with last offset delta {delta}"
            )
        if base >= end:
            return BatchSpan(position, end, 0)
        stop = position + OVERHEAD + length
        if stop > size:
            return BatchSpan(position, next_offset, OVERHEAD + length)
        last = base + delta if magic >= MAGIC else base
        if last < next_offset:
            raise DamagedBatch(f"{position_text(range_, base)}: batch ends at offset {last}, but {next_offset} is next")
        position, next_offset = stop, last + 1
        if next_offset >= end:
            break
    return BatchSpan(position, next_offset, 0)


def position_text(range_: OffsetRange, offset: int) -> str:
    """Return topic, partition and offset for a message."""
    return f'topic "{range_.topic}", partition {range_.partition}, offset {offset}'
