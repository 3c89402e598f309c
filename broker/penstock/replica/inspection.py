"""Checks the contents of a producer's batch: whether its records match the header and the topic's requirements, and
whether it must be recompressed for the topic.

The leader calls `inspect_fully` for each batch; `api.inspections` calls these functions in threads for expensive
batches. Nothing here accesses a partition's state, or a batch's offset and leader epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from penstock.config.topic import AS_PRODUCED, ENDS, EVERY_RECORD, NO_VALIDATION, TopicConfig
from penstock.replica.acceptance import Appended, RejectedRecords, is_in_time
from penstock.replica.scheduling import ScheduledRecords, schedule_records
from penstock.wire.batch import (
    ATTRIBUTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CRC,
    CRC_OFFSET,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
    checksum,
)
from penstock.wire.compression import Codec, DecompressedTooLarge, check_frame, compress, decompress
from penstock.wire.errors import ErrorCode
from penstock.wire.primitives import Buffer
from penstock.wire.record_check import RecordShape, check_ends, parse_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 256 << 20
"""Maximum decompressed size of a batch, which is also that of Penstock's consumers."""
MAX_GROWTH = 64
"""Maximum decompressed size of a batch as a multiple of max.message.bytes."""
SCRATCH_BYTES = 2 << 20
"""Size of the buffer for decompressed records that each inspecting thread keeps."""
MAX_CHECKED_RECORDS = 250_000
"""Maximum number of records in a batch for a compacted topic, all of which are parsed."""


NO_KEY = "the record has no key"


class Inspection(NamedTuple):
    """The result of an inspection. `batch` is the recompressed batch to store, None to store the original;
    `scheduled` is stored in its place if it has records for later, or cancels some."""

    refusal: Appended | None = None
    batch: memoryview | None = None
    scheduled: ScheduledRecords | None = None


VALID = Inspection()
thread_local = threading.local()


def scratch() -> bytearray:
    """Return the calling thread's buffer. Its content is valid until the thread inspects the next batch."""
    try:
        return thread_local.scratch  # type: ignore[no-any-return]
    except AttributeError:
        created = thread_local.scratch = bytearray(SCRATCH_BYTES)
        return created


def decompressed_limit(config: TopicConfig) -> int:
    """Return the maximum decompressed size of a batch of the topic, in bytes."""
    return min(MAX_GROWTH * config.max_message_bytes, MAX_DECOMPRESSED_BYTES)


def needs_codec(config: TopicConfig, codec: int) -> bool:
    """Return whether a batch in `codec` must be recompressed for the topic."""
    return config.compression_codec not in (AS_PRODUCED, codec)


def inspect(
    batch: memoryview, header: BatchHeader, config: TopicConfig, topic: str, now_ms: int, max_bytes: int | None = None
) -> Inspection:
    """Inspect a batch. The caller checks the header's own fields. Delivery times are relative to the wall clock's
    `now_ms`.

    Raises DecompressedTooLarge above `max_bytes`, by default the topic's limit.
    """
    codec = header.attributes & CODEC_MASK
    recompress = needs_codec(config, codec)
    is_parsed = config.cleanup_compact or config.delivery_schedule_enable or recompress
    if config.record_validation == NO_VALIDATION and not is_parsed:
        return VALID
    if config.cleanup_compact and header.record_count > MAX_CHECKED_RECORDS:
        message = f'a batch for the compacted topic "{topic}" may have {MAX_CHECKED_RECORDS} records'
        return Inspection(Appended(ErrorCode.MESSAGE_TOO_LARGE, message=message))
    try:
        data: Buffer = batch[HEADER_SIZE:]
        if codec:
            check_frame(codec, data)
            data = decompress(codec, data, decompressed_limit(config) if max_bytes is None else max_bytes, scratch())
        refusal = check_records(data, header, config, topic)
        if refusal is None and config.delivery_schedule_enable:
            scheduled = schedule_records(data, header, config, topic, now_ms)
            if isinstance(scheduled, ScheduledRecords):
                return Inspection(scheduled=scheduled)
            refusal = scheduled
    except DecompressedTooLarge:
        raise
    except MalformedMessage as e:
        return damaged(e)
    if refusal is not None:
        return Inspection(refusal)
    return recompressed(batch, header, data, config) if recompress else VALID


def damaged(error: MalformedMessage) -> Inspection:
    """Return the rejection of a batch that cannot be parsed. Not retriable: as its CRC is valid, a retry has the same
    bytes."""
    return Inspection(Appended(ErrorCode.INVALID_RECORD, message=f"the batch's records are damaged: {error}"))


def inspect_fully(
    batch: memoryview,
    header: BatchHeader,
    config: TopicConfig,
    topic: str,
    now_ms: int,
    checks_only_ends: bool = False,
) -> Inspection:
    """Inspect a batch with the topic's decompression limit; reject batches above it.

    `checks_only_ends` is the config's property if the caller has it at hand: most small batches need no more.
    """
    try:
        if checks_only_ends and not header.attributes & CODEC_MASK:
            check_ends(batch[HEADER_SIZE:], header.record_count, header.last_offset_delta)
            return VALID
        return inspect(batch, header, config, topic, now_ms)
    except DecompressedTooLarge as e:
        message = f"{e}; the limit is {MAX_GROWTH} times max.message.bytes and 256 MiB: send smaller batches"
        return Inspection(Appended(ErrorCode.MESSAGE_TOO_LARGE, message=message))
    except MalformedMessage as e:
        return damaged(e)


def check_records(data: Buffer, header: BatchHeader, config: TopicConfig, topic: str) -> Appended | None:
    """Check decompressed records as thoroughly as the topic asks. Raises MalformedMessage."""
    count, last = header.record_count, header.last_offset_delta
    if not config.cleanup_compact and config.record_validation != EVERY_RECORD:
        if config.record_validation == ENDS:
            check_ends(data, count, last)
        return None
    rejected = RejectedRecords()
    for index, shape in enumerate(parse_records(data, count, last)):
        if config.cleanup_compact and not shape.has_key:
            rejected.add(index, NO_KEY)
    reason = f'topic "{topic}" is compacted and needs a key in each record'
    return rejected.refusal(ErrorCode.INVALID_RECORD, reason)


def check_times(batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> Appended | None:
    """Find the records whose timestamps are out of the topic's bounds, for a batch whose header says that some are."""
    why = (
        f"timestamps must be at most {config.message_timestamp_after_max_ms} ms after and"
        f" {config.message_timestamp_before_max_ms} ms before the broker's clock, {now_ms}"
    )
    rejected = RejectedRecords()

    def add(index: int, shape: RecordShape) -> None:
        timestamp_ms = header.base_timestamp_ms + shape.timestamp_delta_ms
        if not is_in_time(config, now_ms, timestamp_ms):
            rejected.add(index, f"timestamp {timestamp_ms} is out of bounds")

    try:
        visit_records(batch, header, decompressed_limit(config), add)
    except MalformedMessage:
        return Appended(ErrorCode.INVALID_TIMESTAMP, message=why)
    return rejected.refusal(ErrorCode.INVALID_TIMESTAMP, why)


def visit_records(
    batch: memoryview, header: BatchHeader, max_bytes: int, visit: Callable[[int, RecordShape], None]
) -> None:
    """Call `visit` with the index and shape of each record. Raises MalformedMessage."""
    data = decompress(header.codec, batch[HEADER_SIZE:], max_bytes)
    for index, shape in enumerate(parse_records(data, header.record_count, header.last_offset_delta)):
        visit(index, shape)


def recompressed(batch: memoryview, header: BatchHeader, data: Buffer, config: TopicConfig) -> Inspection:
    """Recompress the records with the topic's codec into a new batch."""
    codec = config.compression_codec
    body = compress(codec, data, level(config))
    size = HEADER_SIZE + len(body)
    if size > config.max_message_bytes:
        message = (
            f"the batch has {size} bytes as {Codec(codec).name.lower()}, max.message.bytes is"
            f" {config.max_message_bytes}; send smaller batches"
        )
        return Inspection(Appended(ErrorCode.MESSAGE_TOO_LARGE, message=message))
    out = bytearray(size)
    out[:HEADER_SIZE] = batch[:HEADER_SIZE]
    out[HEADER_SIZE:] = body
    view = memoryview(out)
    BATCH_LENGTH.pack_into(out, 8, size - LENGTH_OVERHEAD)
    ATTRIBUTES.pack_into(out, CRC_START, header.attributes & ~CODEC_MASK | codec)
    CRC.pack_into(out, CRC_OFFSET, checksum(view, 0, size))
    return Inspection(None, view)


def level(config: TopicConfig) -> int | None:
    """Return the compression level of the topic's codec, None for the codec's default."""
    if config.compression_codec == Codec.GZIP:
        return None if config.compression_gzip_level < 0 else config.compression_gzip_level
    if config.compression_codec == Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if config.compression_codec == Codec.ZSTD else None
