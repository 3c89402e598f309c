"""Parses produce requests in place, without copying records, and encodes the responses.

The general codec would create objects for each batch; this parser only records where each batch is. Versions 0 to 2 are
parsed only to be rejected, 3 to 8 use the old encoding, 9 to 13 the compact one with tagged fields; 13 uses topic ids
(KIP-516).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_uvarint, write_uvarint

FIRST_SERVED = 3
FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
MAX_PARTITIONS = 100_000
"""Partitions per request."""

I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
ACKS_TIMEOUT = struct.Struct(">hi")
PARTITION = struct.Struct(">ii")
RESULT = struct.Struct(">ihqqq")
RESULT_V3 = struct.Struct(">ihqq")

Topic = str | UUID


class BatchSlice(NamedTuple):
    """Position of a partition's records in the frame; size -1 for null."""

    partition: int
    start: int
    size: int


@dataclass(slots=True)
class ProduceFrame:
    """A Produce request. Topics are names up to version 12, ids from version 13."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[Topic, list[BatchSlice]]]


class RecordError(NamedTuple):
    """The reason why a record, by its index, causes the batch to be rejected (KIP-467)."""

    batch_index: int
    message: str


class PartitionResult(NamedTuple):
    """A partition's result. `message` and `record_errors` are sent in version 8 and later."""

    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    leader: tuple[int, int] | None = None
    """Pair of (broker id, leader epoch) of the current leader; version 10 and later (KIP-951)."""
    record_errors: tuple[RecordError, ...] = ()


def parse_produce(frame: memoryview, offset: int, version: int) -> ProduceFrame:
    """Parse the request whose body starts at `offset`. Trailing bytes are ignored. Raises MalformedMessage."""
    try:
        parse = parse_compact if version >= FLEXIBLE_FROM else parse_old
        return parse(frame, offset, version)[0]
    except (IndexError, struct.error):
        raise MalformedMessage("the Produce request is truncated") from None
    except UnicodeDecodeError:
        raise MalformedMessage("the Produce request contains a name that is not UTF-8") from None


def parse_old(b: memoryview, o: int, version: int) -> tuple[ProduceFrame, int]:
    """Parse versions 0 to 8. Returns (request, end offset)."""
    size = len(b)
    transactional_id = None
    if version >= FIRST_SERVED:
        transactional_id, o = old_string(b, o, nullable=True)
    acks, timeout_ms = ACKS_TIMEOUT.unpack_from(b, o)
    o += 6
    topic_count = check_count(I32.unpack_from(b, o)[0], size - o)
    o += 4
    topics: list[tuple[Topic, list[BatchSlice]]] = []
    remaining = MAX_PARTITIONS
    for _ in range(topic_count):
        name, o = old_string(b, o, nullable=False)
        partition_count = check_count(I32.unpack_from(b, o)[0], remaining)
        remaining -= partition_count
        o += 4
        batches = []
        for _ in range(partition_count):
            index, length = PARTITION.unpack_from(b, o)
            o += 8
            batches.append(BatchSlice(index, o, length))
            o += check_bounds(length, o, size)
        topics.append((name or "", batches))
    return ProduceFrame(transactional_id, acks, timeout_ms, topics), o


def parse_compact(b: memoryview, o: int, version: int) -> tuple[ProduceFrame, int]:
    """Parse versions 9 to 13. Returns (request, end offset).

    Values that usually have one byte (no transactional id, a short name, no tags) are decoded inline.
    """
    size = len(b)
    transactional_id = None
    if b[o]:
        transactional_id, o = compact_string(b, o, nullable=True)
    else:
        o += 1
    acks, timeout_ms = ACKS_TIMEOUT.unpack_from(b, o)
    topic_count, o = short_uvarint(b, o + 6)
    topic_count = check_count(topic_count - 1, size - o)
    topics: list[tuple[Topic, list[BatchSlice]]] = []
    remaining = MAX_PARTITIONS
    for _ in range(topic_count):
        topic: Topic
        if version >= TOPIC_IDS_FROM:
            topic = UUID(bytes=bytes(b[o : o + check_bounds(16, o, size)]))
            o += 16
        else:
            end = o + b[o]
            if o < end < size and end - o < 0x80:
                topic = str(b[o + 1 : end], "utf-8")
                o = end
            else:
                name, o = compact_string(b, o, nullable=False)
                topic = name or ""
        partition_count, o = short_uvarint(b, o)
        partition_count = check_count(partition_count - 1, remaining)
        remaining -= partition_count
        batches = []
        for _ in range(partition_count):
            (index,) = I32.unpack_from(b, o)
            length, o = read_uvarint(b, o + 4)
            length -= 1
            batches.append(BatchSlice(index, o, length))
            o += check_bounds(length, o, size)
            o = skip_tags(b, o) if b[o] else o + 1
        topics.append((topic, batches))
        o = skip_tags(b, o) if b[o] else o + 1
    return ProduceFrame(transactional_id, acks, timeout_ms, topics), skip_tags(b, o)


def short_uvarint(b: memoryview, o: int) -> tuple[int, int]:
    """Return (value, end offset) of an unsigned varint that usually has one byte."""
    value = b[o]
    return (value, o + 1) if value < 0x80 else read_uvarint(b, o)


def check_count(value: int, limit: int) -> int:
    """Return an element count, 0 for null. Raises MalformedMessage if it is too large."""
    if value > limit or value > MAX_PARTITIONS:
        raise MalformedMessage(f"the Produce request has {value} elements")
    return max(value, 0)


def check_bounds(length: int, offset: int, size: int) -> int:
    """Return a length, 0 for null. Raises MalformedMessage if it exceeds the frame."""
    if offset + length > size:
        raise MalformedMessage("the Produce request is truncated")
    return max(length, 0)


def old_string(b: memoryview, o: int, nullable: bool) -> tuple[str | None, int]:
    """Return (string or None for null, end offset) in the old encoding."""
    (length,) = I16.unpack_from(b, o)
    o += 2
    if length < 0:
        check_nullable(nullable)
        return None, o
    return str(b[o : o + check_bounds(length, o, len(b))], "utf-8"), o + length


def compact_string(b: memoryview, o: int, nullable: bool) -> tuple[str | None, int]:
    """Return (string or None for null, end offset) in the compact encoding."""
    length, o = read_uvarint(b, o)
    length -= 1
    if length < 0:
        check_nullable(nullable)
        return None, o
    return str(b[o : o + check_bounds(length, o, len(b))], "utf-8"), o + length


def check_nullable(nullable: bool) -> None:
    """Raise MalformedMessage for null unless it is allowed."""
    if not nullable:
        raise MalformedMessage("a topic in the Produce request has no name")


def skip_tags(b: memoryview, o: int) -> int:
    """Return the offset after tagged fields, which are ignored."""
    number = b[o]
    o += 1
    if number == 0:
        return o
    if number > 127:
        number, o = read_uvarint(b, o - 1)
    while number:
        number -= 1
        _, o = read_uvarint(b, o)
        length, o = read_uvarint(b, o)
        o += check_bounds(length, o, len(b))
    return o


def encode_produce_response(
    correlation_id: int, version: int, topics: list[tuple[Topic, list[PartitionResult]]]
) -> bytearray:
    """Return the response frame, including the size field, for versions 0 to 13."""
    out = bytearray(8)
    if version >= FLEXIBLE_FROM:
        encode_compact(out, version, topics)
    else:
        encode_old(out, version, topics)
    PARTITION.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def set_throttle_time(frame: bytearray, version: int, throttle_ms: int) -> None:
    """Write the throttle time into a response of `encode_produce_response`; version 0 has none."""
    if version >= 1:
        I32.pack_into(frame, len(frame) - (5 if version >= FLEXIBLE_FROM else 4), throttle_ms)


def encode_old(out: bytearray, version: int, topics: list[tuple[Topic, list[PartitionResult]]]) -> None:
    """Append the response body for versions 0 to 8."""
    out += I32.pack(len(topics))
    for topic, results in topics:
        assert isinstance(topic, str), topic
        name = topic.encode()
        out += I16.pack(len(name)) + name + I32.pack(len(results))
        for r in results:
            if version >= 5:
                out += RESULT.pack(r.partition, r.error, r.base_offset, r.log_append_time_ms, r.log_start_offset)
            elif version >= 2:
                out += RESULT_V3.pack(r.partition, r.error, r.base_offset, r.log_append_time_ms)
            else:
                out += struct.pack(">ihq", r.partition, r.error, r.base_offset)
            if version >= 8:
                message = None if r.message is None else r.message.encode()
                out += I32.pack(len(r.record_errors))
                for index, reason in r.record_errors:
                    text = reason.encode()
                    out += I32.pack(index) + I16.pack(len(text)) + text
                out += b"\xff\xff" if message is None else I16.pack(len(message)) + message
    if version >= 1:
        out += b"\0\0\0\0"


def encode_compact(out: bytearray, version: int, topics: list[tuple[Topic, list[PartitionResult]]]) -> None:
    """Append the response header's tags and the body for versions 9 to 13."""
    out.append(0)  # no tags in the response header
    write_uvarint(out, len(topics) + 1)
    for topic, results in topics:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            name = topic.encode()
            write_uvarint(out, len(name) + 1)
            out += name
        write_uvarint(out, len(results) + 1)
        for r in results:
            out += RESULT.pack(r.partition, r.error, r.base_offset, r.log_append_time_ms, r.log_start_offset)
            write_uvarint(out, len(r.record_errors) + 1)
            for index, reason in r.record_errors:
                text = reason.encode()
                out += I32.pack(index)
                write_uvarint(out, len(text) + 1)
                out += text
                out.append(0)
            if r.message is None:
                out.append(0)
            else:
                message = r.message.encode()
                write_uvarint(out, len(message) + 1)
                out += message
            if r.leader is None or version < 10:
                out.append(0)
            else:
                out += b"\x01\x00\x09" + struct.pack(">ii", *r.leader) + b"\0"
        out.append(0)
    out += b"\0\0\0\0\0"  # throttle time, no tags
