"""What a topic's settings say to a batch that is sound in itself. Used by the leader for each batch."""

from __future__ import annotations

from typing import NamedTuple

from penstock.config.values import TopicConfig
from penstock.runtime.clock import Clock
from penstock.wire.batch import BatchHeader
from penstock.wire.errors import ErrorCode
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage

MAX_GROWTH = 8
"""How many times max.message.bytes a batch may grow to where the broker has to look inside (keys of compacted topics).
That happens on the event loop, so what it costs is bounded, by the number of records too."""
MAX_CHECKED_RECORDS = 250_000


class Appended(NamedTuple):
    """The outcome of an append. `required_offset` is what the high watermark must reach for acks=all."""

    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    required_offset: int = -1
    message: str | None = None


def check_times(config: TopicConfig, clock: Clock, header: BatchHeader) -> Appended | None:
    """Bounds on the client's timestamps (KIP-937), by the batch's first and largest."""
    if config.message_timestamp_log_append or header.max_timestamp_ms < 0:
        return None
    now_ms = clock.wall_ms()
    if header.max_timestamp_ms - now_ms > config.message_timestamp_after_max_ms:
        message = f"timestamp {header.max_timestamp_ms} is too far ahead of the broker's clock, {now_ms}"
    elif now_ms - min(header.base_timestamp_ms, header.max_timestamp_ms) > config.message_timestamp_before_max_ms:
        message = f"timestamp {header.base_timestamp_ms} is too far behind the broker's clock, {now_ms}"
    else:
        return None
    return Appended(ErrorCode.INVALID_TIMESTAMP, message=message)


def check_keys(config: TopicConfig, topic: str, batch: memoryview, header: BatchHeader) -> Appended | None:
    """A compacted topic takes no record without a key: nothing could ever replace it."""
    if header.record_count > MAX_CHECKED_RECORDS:
        message = f"a batch for compacted topic {topic} may have {MAX_CHECKED_RECORDS} records"
        return Appended(ErrorCode.MESSAGE_TOO_LARGE, message=message)
    try:
        most = MAX_GROWTH * config.max_message_bytes
        if all(r.key is not None for r in iterate_records(batch, header, most)):
            return None
    except MalformedMessage as e:  # its CRC is right, so sending it again would not help
        return Appended(ErrorCode.INVALID_RECORD, message=str(e))
    return Appended(ErrorCode.INVALID_RECORD, message=f"topic {topic} is compacted: each record needs a key")


def explain(error: ErrorCode) -> str:
    """What is wrong with a batch, for clients that show a message."""
    return {
        ErrorCode.CORRUPT_MESSAGE: "the batch's bytes do not match its CRC or its sizes",
        ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes",
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "only record batches in format 2 are taken",
        ErrorCode.INVALID_RECORD: "the batch's header contradicts itself",
    }.get(error, error.name)
