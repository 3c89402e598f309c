"""Leaves records out of a batch, as compaction does: offsets, timestamps and the producer's fields stay as they are.

Called for Fetch requests with a filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.wire.batch import (
    CODEC_MASK,
    CRC,
    CRC_OFFSET,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    SMALLEST_RECORD,
    BatchHeader,
    checksum,
)
from penstock.wire.compression import compress, decompress
from penstock.wire.primitives import Buffer
from penstock.wire.record import Record
from penstock.wire.records import read_record
from penstock.wire.schema import MalformedMessage


class FilteredBatch(NamedTuple):
    """A batch with the records that are left, and what it cost: the bytes of its records, decompressed."""

    data: Buffer
    record_count: int
    decoded_bytes: int


def filter_batch(
    batch: memoryview, header: BatchHeader, matches: Callable[[Record], bool], max_bytes: int
) -> FilteredBatch:
    """Return a batch with the matching records only; the batch itself if all match.

    The caller has verified the CRC. Raises MalformedMessage, DecompressedTooLarge.
    """
    data = decompress(header.codec, batch[HEADER_SIZE:], max_bytes)
    data = data if isinstance(data, bytes) else bytes(data)
    count = header.record_count
    if count < 0 or count * SMALLEST_RECORD > len(data):
        raise MalformedMessage(f"a batch with {count} records in {len(data)} bytes")
    kept: list[bytes] = []
    offset = 0
    try:
        for _ in range(count):
            record, end = read_record(data, offset, header)
            if matches(record):
                kept.append(data[offset:end])
            offset = end
    except IndexError as e:
        raise MalformedMessage(f"batch at offset {header.base_offset} is damaged: {e}") from None
    if offset != len(data):
        raise MalformedMessage(f"{len(data) - offset} bytes follow the records of batch at {header.base_offset}")
    if len(kept) == count:
        return FilteredBatch(batch, count, len(data))
    return FilteredBatch(rebuild_batch(header, kept), len(kept), len(data))


def rebuild_batch(header: BatchHeader, records: list[bytes]) -> bytes:
    """Return a batch with a part of its encoded records, in the same codec; one without records is not compressed."""
    body = compress(header.codec, b"".join(records)) if records else b""
    attributes = header.attributes if records else header.attributes & ~CODEC_MASK
    size = HEADER_SIZE + len(body)
    changed = header._replace(
        batch_length=size - LENGTH_OVERHEAD, record_count=len(records), attributes=attributes, crc=0
    )
    out = bytearray(size)
    HEADER.pack_into(out, 0, *changed)
    out[HEADER_SIZE:] = body
    CRC.pack_into(out, CRC_OFFSET, checksum(memoryview(out), 0, size))
    return bytes(out)
