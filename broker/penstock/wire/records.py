"""Reads the records in batches (format v2), and re-exports what writes and validates batches.

The broker only calls `validate_batch` for each produced batch; the client, log compaction and searches by timestamp
read and write records.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.wire.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    SMALLEST_RECORD,
    BatchHeader,
    checksum,
    read_header,
)
from penstock.wire.batch_builder import BatchBuilder, build_batch, record_size_bound
from penstock.wire.batch_check import validate_batch
from penstock.wire.compression import Codec, compress, decompress
from penstock.wire.primitives import Buffer
from penstock.wire.record import Header, Record
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong

__all__ = [
    "BatchBuilder",
    "Codec",
    "Header",
    "Record",
    "build_batch",
    "compress",
    "decompress",
    "iterate_batches",
    "iterate_records",
    "record_size_bound",
    "validate_batch",
]

MAGIC = 2
NULL = 1
"""Length -1 in zigzag encoding."""
ATTRIBUTES = BatchHeader._fields.index("attributes")
LAST_OFFSET_DELTA = BatchHeader._fields.index("last_offset_delta")
BASE_TIMESTAMP = BatchHeader._fields.index("base_timestamp_ms")
MAX_HEADERS = 10_000
"""Headers per record."""


def iterate_batches(buffer: Buffer, check_crc: bool = True) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each batch in `buffer` with its header, as a view.

    A truncated last batch is ignored, as in fetch responses. Raises MalformedMessage.
    """
    view = memoryview(buffer)
    offset, end = 0, len(view)
    while end - offset >= HEADER_SIZE:
        header = read_header(view, offset)
        size = header.batch_length + LENGTH_OVERHEAD
        if header.magic != MAGIC:
            raise MalformedMessage(f"batch at offset {header.base_offset} has format {header.magic}, not {MAGIC}")
        if size < HEADER_SIZE:
            raise MalformedMessage(f"batch at offset {header.base_offset} has an invalid size of {size} bytes")
        if size > end - offset:
            return
        batch = view[offset : offset + size]
        if check_crc and checksum(batch, 0, size) != header.crc:
            raise MalformedMessage(f"batch at offset {header.base_offset} has an invalid CRC")
        yield header, batch
        offset += size


def iterate_records(batch: memoryview, header: BatchHeader, max_decompressed_bytes: int) -> Iterator[Record]:
    """Yield the records of one batch, given with its header. Raises MalformedMessage, at the latest at the damaged
    record.

    Keys and values are copies. The CRC is not verified.
    """
    data = decompress(header.codec, batch[HEADER_SIZE:], max_decompressed_bytes)
    data = data if isinstance(data, bytes) else bytes(data)
    count = header.record_count
    if count < 0 or count * SMALLEST_RECORD > len(data):
        raise MalformedMessage(f"a batch with {count} records in {len(data)} bytes")
    offset = 0
    for index in range(count):
        try:
            record, offset = read_record(data, offset, header)
        except IndexError as e:
            raise MalformedMessage(f"record {index} of batch at offset {header.base_offset} is damaged: {e}") from None
        yield record
    if offset != len(data):
        raise MalformedMessage(f"{len(data) - offset} bytes follow the records of batch at {header.base_offset}")


def read_record(data: bytes, offset: int, header: BatchHeader) -> tuple[Record, int]:
    """Return (record, end offset). Raises MalformedMessage, IndexError.

    Decodes one-byte numbers inline: this is the consumer's hot path.
    """
    size, offset = read_varlong(data, offset)
    end = offset + size
    if size < SMALLEST_RECORD - 1 or end > len(data):
        raise MalformedMessage(f"a record of {size} bytes with {len(data) - offset} bytes left")
    timestamp_delta, offset = read_varlong(data, offset + 1)
    offset_delta = data[offset]
    if offset_delta < 0x80:
        offset_delta = (offset_delta >> 1) ^ -(offset_delta & 1)
        offset += 1
    else:
        offset_delta, offset = read_varlong(data, offset)
    if not 0 <= offset_delta <= header[LAST_OFFSET_DELTA]:
        raise MalformedMessage(
            f"a record with offset delta {offset_delta} in a batch with last offset delta {header.last_offset_delta}"
        )
    if data[offset] == NULL:
        key = None
        offset += 1
    else:
        key, offset = read_bytes(data, offset, end)
    value, offset = read_bytes(data, offset, end)
    headers: tuple[Header, ...] = ()
    if data[offset] == 0:
        offset += 1
    else:
        count, offset = read_varlong(data, offset)
        headers, offset = read_headers(data, offset, end, count)
    if offset != end:
        raise MalformedMessage("a record whose fields do not match its size")
    if header[ATTRIBUTES] & LOG_APPEND_TIME:
        timestamp_ms = header.max_timestamp_ms
    else:
        timestamp_ms = header[BASE_TIMESTAMP] + timestamp_delta
    return Record(header[0] + offset_delta, timestamp_ms, key, value, headers), end


def read_headers(data: bytes, offset: int, end: int, count: int) -> tuple[tuple[Header, ...], int]:
    """Return (headers, end offset). Raises MalformedMessage."""
    if not 0 < count <= MAX_HEADERS or count * 2 > end - offset:
        raise MalformedMessage(f"a record with {count} headers")
    headers = []
    for _ in range(count):
        key, offset = read_bytes(data, offset, end)
        value, offset = read_bytes(data, offset, end)
        if key is None:
            raise MalformedMessage("a record with a header without a key")
        headers.append((key.decode(errors="surrogateescape"), value))
    return tuple(headers), offset


def read_bytes(data: bytes, offset: int, end: int) -> tuple[bytes | None, int]:
    """Return (bytes or None for null, end offset)."""
    size = data[offset]
    offset += 1
    if size < 0x80:
        size = (size >> 1) ^ -(size & 1)
    else:
        size, offset = read_varlong(data, offset - 1)
    if size < 0:
        if size != -1:
            raise MalformedMessage(f"a record with a length of {size}")
        return None, offset
    stop = offset + size
    if stop > end:
        raise MalformedMessage(f"a record with a field of {size} bytes and {end - offset} bytes left")
    return data[offset:stop], stop
