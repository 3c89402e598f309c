"""Validates a produced batch by its header and CRC, without reading its records. On the hot path."""

from __future__ import annotations

from crc32c import crc32c

from penstock.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    SMALLEST_RECORD,
    TRANSACTIONAL,
    BatchHeader,
)
from penstock.wire.compression import MAX_RATIO
from penstock.wire.errors import ErrorCode

MAGIC = 2
OLD_MAGIC = (0, 1)
MAGIC_OFFSET = 16
MIN_LENGTH = 14
"""Minimum batch length in any format, in bytes."""
new = tuple.__new__
"""Faster than `BatchHeader._make`, which checks the number of fields."""
KNOWN_ATTRIBUTES = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


def validate_batch(batch: memoryview, max_message_bytes: int) -> BatchHeader | ErrorCode:
    """Return the header if `batch`, a partition's data in a produce request, is a single valid batch, else the error.

    The record count is checked against the maximum expansion of the codec, so that a few bytes that claim billions of
    records are rejected without decompressing them.
    """
    size = len(batch)
    if size < HEADER_SIZE:
        return truncated_batch_error(batch)
    header = HEADER.unpack_from(batch)
    (
        _,
        length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        _,
        _,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = header
    if magic != MAGIC:
        return ErrorCode.INVALID_RECORD if magic in OLD_MAGIC else ErrorCode.CORRUPT_MESSAGE
    if length + LENGTH_OVERHEAD != size:
        return ErrorCode.CORRUPT_MESSAGE if length + LENGTH_OVERHEAD < HEADER_SIZE else ErrorCode.INVALID_RECORD
    if size > max_message_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    if crc32c(batch[CRC_START:]) != crc:
        return ErrorCode.CORRUPT_MESSAGE
    codec = attributes & CODEC_MASK
    if codec >= len(MAX_RATIO):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if count < 1 or count != last_offset_delta + 1 or attributes & ~KNOWN_ATTRIBUTES or attributes & CONTROL:
        return ErrorCode.INVALID_RECORD
    if count * SMALLEST_RECORD > (size - HEADER_SIZE) * MAX_RATIO[codec]:
        return ErrorCode.INVALID_RECORD
    if attributes & LOG_APPEND_TIME:
        return ErrorCode.INVALID_TIMESTAMP
    if producer_id >= 0:
        if producer_epoch < 0 or base_sequence < 0:
            return ErrorCode.INVALID_RECORD
    elif producer_id < -1 or attributes & TRANSACTIONAL:
        return ErrorCode.INVALID_RECORD
    return new(BatchHeader, header)


def truncated_batch_error(batch: memoryview) -> ErrorCode:
    """Return the error for fewer bytes than a batch header, as Kafka's batch reader does."""
    if len(batch) < LENGTH_OVERHEAD:
        return ErrorCode.INVALID_RECORD
    if int.from_bytes(batch[8:LENGTH_OVERHEAD], "big", signed=True) < MIN_LENGTH:
        return ErrorCode.CORRUPT_MESSAGE
    is_known = len(batch) <= MAGIC_OFFSET or batch[MAGIC_OFFSET] in (*OLD_MAGIC, MAGIC)
    return ErrorCode.INVALID_RECORD if is_known else ErrorCode.CORRUPT_MESSAGE
