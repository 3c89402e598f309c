"""Turns a producer's batch with scheduled records, or with cancellations, into the scheduled batch that is stored.

Called by `inspection` for topics with `delivery.schedule.enable`, in a thread for large batches. Batches without such
records are stored as they are.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.config.topic import MAX_DELIVERY_DELAY_MS, TopicConfig
from penstock.replica.acceptance import Appended, RejectedRecords
from penstock.wire.batch import BatchHeader
from penstock.wire.errors import ErrorCode
from penstock.wire.primitives import Buffer
from penstock.wire.record import Header, Record
from penstock.wire.records import read_record
from penstock.wire.scheduled_batch import (
    CANCEL,
    CANCELS,
    DELIVER_AFTER,
    DELIVER_AT,
    ORIGIN,
    OWN_OFFSET,
    ScheduledRow,
    build_scheduled,
    encode_body,
    hash_key,
)
from penstock.wire.schema import MalformedMessage

MARKS = tuple(name.encode() for name in (DELIVER_AT, DELIVER_AFTER, CANCEL))
NAMES = (DELIVER_AT, DELIVER_AFTER, CANCEL)
MAX_DIGITS = 19
MIN_SIZE_LIMIT = 1 << 20
"""Decompressed size up to which a scheduled batch is accepted, in bytes, also if max.message.bytes is less."""


class ScheduledRecords(NamedTuple):
    """A producer's batch as a scheduled batch, with its rows. What is due at `now_ms`, when it was inspected, is
    delivered at once."""

    batch: bytearray
    rows: list[ScheduledRow]
    now_ms: int


def schedule_records(
    data: Buffer, header: BatchHeader, config: TopicConfig, topic: str, now_ms: int
) -> ScheduledRecords | Appended | None:
    """Return what to store for a batch with the decompressed records `data`, or why it is refused; None if it schedules
    and cancels nothing. Raises MalformedMessage."""
    content = bytes(data)
    if not any(mark in content for mark in MARKS):
        return None
    records = parse_records(content, header)
    if not any(map(effective_headers, records)):
        return None
    if header.is_transactional:
        message = f'records of a transaction cannot be scheduled in topic "{topic}"; send them without a transaction'
        return Appended(ErrorCode.INVALID_RECORD, message=message)
    limit = max(config.max_message_bytes, MIN_SIZE_LIMIT)
    if len(content) > limit:
        message = f"a batch with scheduled records has {len(content)} bytes uncompressed, the limit is {limit}"
        return Appended(ErrorCode.MESSAGE_TOO_LARGE, message=f"{message}; send smaller batches")
    rows, rejected = [], RejectedRecords()
    for index, record in enumerate(records):
        row = schedule_record(record, now_ms)
        if isinstance(row, str):
            rejected.add(index, row)
        else:
            rows.append(row)
    if rejected.errors:
        reason = f'topic "{topic}" cannot schedule all records of the batch ({rejected.errors[0].message})'
        return rejected.refusal(ErrorCode.INVALID_RECORD, reason)
    return ScheduledRecords(build_scheduled(rows, header, now_ms), rows, now_ms)


def parse_records(content: bytes, header: BatchHeader) -> list[Record]:
    """Return the records of a batch. Raises MalformedMessage."""
    records, at = [], 0
    for index in range(header.record_count):
        try:
            record, at = read_record(content, at, header)
        except IndexError:
            raise MalformedMessage(f"record {index} is truncated") from None
        records.append(record)
    if at != len(content):
        raise MalformedMessage(f"{len(content) - at} bytes follow the last record")
    return records


def effective_headers(record: Record) -> list[Header]:
    """Return the headers by which a record is scheduled or cancels others.

    Those before the header of a delivery have had their effect: the record is a copy of a delivered one, as in dead
    letters, replays and mirrored topics.
    """
    found: list[Header] = []
    for header in record.headers:
        if header[0] in NAMES:
            found.append(header)
        elif header[0] == ORIGIN:
            found.clear()
    return found


def schedule_record(record: Record, now_ms: int) -> ScheduledRow | str:
    """Return the row of a record, or why it is refused."""
    given = effective_headers(record)
    if len(given) > 1:
        return f"the record has several of the headers {', '.join(NAMES)}; it may have one"
    key_hash = hash_key(record.key)
    if not given:
        return ScheduledRow(now_ms, OWN_OFFSET, key_hash, encode_body(record))
    name, value = given[0]
    if name == CANCEL:
        if record.key is None:
            return f"the record has the header {CANCEL} and no key; it cancels the records with its key"
        return ScheduledRow(CANCELS, OWN_OFFSET, key_hash, b"")
    if value is None or not value.isdigit() or len(value) > MAX_DIGITS:
        shown = "null" if value is None else repr(value[:32])[1:]
        return f"the header {name} is {shown}; it must be a number of milliseconds in decimal digits"
    due_ms = int(value) if name == DELIVER_AT else now_ms + int(value)
    if due_ms > now_ms + MAX_DELIVERY_DELAY_MS:
        return f"the header {name} is {int(value)}; a record can be scheduled up to 30 days ahead"
    return ScheduledRow(max(due_ms, now_ms), OWN_OFFSET, key_hash, encode_body(record))
