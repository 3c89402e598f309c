"""The header of a record batch (format v2): read in place, verified, stamped. Called for each batch on the hot path.

Layout, 61 bytes: base offset i64, batch length i32 (of what follows it), leader epoch i32, magic i8, CRC-32C u32 (of
all that follows it), attributes i16, last offset delta i32, base timestamp i64, max timestamp i64, producer id i64,
producer epoch i16, base sequence i32, record count i32.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.wire.primitives import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LENGTH_OVERHEAD = 12
"""Bytes of base offset and length, which the batch length does not include."""
CRC_OFFSET = 17
CRC_START = 21
SMALLEST_RECORD = 7

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

BASE_OFFSET = struct.Struct(">q")
BATCH_LENGTH = struct.Struct(">i")
LEADER_EPOCH = struct.Struct(">i")
CRC = struct.Struct(">I")
ATTRIBUTES = struct.Struct(">h")
MAX_TIMESTAMP = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The fields of a batch header; times in ms since the epoch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the batch, including its header."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Return the offset of the batch's last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Return the codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        """Return whether this is a control batch."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)


def read_header(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """Return the header at `offset`. Raises struct.error if fewer than 61 bytes are left."""
    return BatchHeader._make(HEADER.unpack_from(buffer, offset))


def checksum(buffer: memoryview, offset: int, size: int) -> int:
    """Return the CRC of the batch of `size` bytes at `offset`."""
    return crc32c(buffer[offset + CRC_START : offset + size])


def stamp(buffer: memoryview | bytearray, offset: int, base_offset: int, leader_epoch: int) -> None:
    """Write the fields that the leader assigns, which the CRC does not cover."""
    BASE_OFFSET.pack_into(buffer, offset, base_offset)
    LEADER_EPOCH.pack_into(buffer, offset + LENGTH_OVERHEAD, leader_epoch)


def stamp_log_append_time(buffer: memoryview, offset: int, size: int, attributes: int, now_ms: int) -> None:
    """Set the timestamp of all records to `now_ms` and update the CRC."""
    ATTRIBUTES.pack_into(buffer, offset + CRC_START, attributes | LOG_APPEND_TIME)
    MAX_TIMESTAMP.pack_into(buffer, offset + 35, now_ms)
    CRC.pack_into(buffer, offset + CRC_OFFSET, checksum(buffer, offset, size))
