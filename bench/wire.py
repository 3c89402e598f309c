"""The few Kafka messages that the raw clients send, encoded by hand.

The loads that time single requests must spend as little CPU as possible in the client, and must not share code with the
broker under test. Layouts follow Kafka's message definitions: Metadata 4, Produce 9, Fetch 12, ApiVersions 0, record
batch format 2 (KIP-98).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 9, 12, 4
CLIENT_ID = b"bench"
_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_BATCH_AFTER_CRC = struct.Struct(">hiqqqhii")
BATCH_LENGTH_OFFSET = 8
BATCH_LAST_DELTA_OFFSET = 23
_BATCH_ATTRIBUTES_OFFSET, _BATCH_MAX_TIMESTAMP_OFFSET = 21, 35
CONTROL = 0x20
"""Attribute of batches that consumers skip."""


class WireError(Exception):
    """A response without the expected layout."""


def uvarint(value: int) -> bytes:
    """Encode unsigned LEB128."""
    assert value >= 0, "an unsigned varint cannot hold a negative number"
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Encode a zigzag varint, as in records."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def compact(data: bytes) -> bytes:
    """Encode a compact string or compact bytes: the length plus one, then the data."""
    return uvarint(len(data) + 1) + data


def string(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


def record_batch(
    values: Sequence[bytes], timestamp_ms: int | None = None, headers: Sequence[tuple[bytes, bytes]] | None = None
) -> bytes:
    """Return one uncompressed batch of keyless records with base offset 0 and no producer id.

    `headers` has one header, name and value, for each record. The default timestamp is the current time: retention
    would delete older records.
    """
    assert values, "a batch holds at least one record"
    if timestamp_ms is None:
        timestamp_ms = int(time.time() * 1000)
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value
        body += varint(0) if headers is None else varint(1) + b"".join(varint(len(x)) + x for x in headers[delta])
        records += varint(len(body)) + body
    last = len(values) - 1
    tail = _BATCH_AFTER_CRC.pack(0, last, timestamp_ms, timestamp_ms, -1, -1, -1, len(values)) + records
    length = 9 + len(tail)  # leader epoch, magic and CRC are between the length and the tail
    return struct.pack(">qiibI", 0, length, -1, 2, crc32c(tail)) + tail


def frame(
    api: int, version: int, correlation: int, body: bytes, *, flexible: bool, client_id: bytes = CLIENT_ID
) -> bytes:
    """Return a whole request with its size field."""
    header = struct.pack(">hhi", api, version, correlation) + string(client_id) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def api_versions_request(correlation: int = 0) -> bytes:
    return frame(API_VERSIONS, 0, correlation, b"", flexible=False)


def metadata_request(topics: Sequence[str], correlation: int = 0, *, create: bool = False) -> bytes:
    names = b"".join(string(name.encode()) for name in topics)
    body = struct.pack(">i", len(topics)) + names + (b"\1" if create else b"\0")
    return frame(METADATA, METADATA_VERSION, correlation, body, flexible=False)


def produce_request(
    topic: str,
    batches: Sequence[tuple[int, bytes]],
    correlation: int = 0,
    *,
    acks: int = -1,
    timeout_ms: int = 30_000,
    client_id: bytes = CLIENT_ID,
) -> bytes:
    """Return a Produce request with one batch for each (partition, batch) of one topic."""
    partitions = b"".join(struct.pack(">i", index) + compact(batch) + b"\0" for index, batch in batches)
    topics = uvarint(2) + compact(topic.encode()) + uvarint(len(batches) + 1) + partitions + b"\0"
    body = b"\0" + struct.pack(">hi", acks, timeout_ms) + topics + b"\0"
    return frame(PRODUCE, PRODUCE_VERSION, correlation, body, flexible=True, client_id=client_id)


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    correlation: int = 0,
    *,
    max_wait_ms: int = 500,
    client_id: bytes = CLIENT_ID,
) -> bytes:
    """Return a long-polling Fetch of one partition, without a session."""
    head = struct.pack(">iiiibii", -1, max_wait_ms, 1, 50 << 20, 0, 0, -1)
    wanted = struct.pack(">iiqiqi", partition, -1, offset, -1, -1, 1 << 20) + b"\0"
    topics = uvarint(2) + compact(topic.encode()) + uvarint(2) + wanted + b"\0"
    body = head + topics + uvarint(1) + uvarint(1) + b"\0"
    return frame(FETCH, FETCH_VERSION, correlation, body, flexible=True, client_id=client_id)


class Reader:
    """Reads one response from front to back."""

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position

    def unpack(self, layout: str) -> int:
        values = struct.unpack_from(">" + layout, self.data, self.position)
        self.position += struct.calcsize(">" + layout)
        return int(values[0])

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 35:
                raise WireError("a varint is longer than five bytes")

    def skip(self, size_bytes: int) -> None:
        if size_bytes < 0 or self.position + size_bytes > len(self.data):
            raise WireError("a length reaches beyond the end of the response")
        self.position += size_bytes

    def skip_string(self) -> None:
        self.skip(max(self.unpack("h"), 0))

    def skip_compact(self) -> None:
        self.skip(max(self.uvarint() - 1, 0))

    def skip_tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.skip(self.uvarint())


@dataclass(frozen=True)
class Produced:
    """One partition's part of a Produce response."""

    partition: int
    error: int
    base_offset: int


def produce_response(frame_body: bytes | memoryview) -> Iterator[Produced]:
    """Yield the partitions of a Produce response; `frame_body` starts with the correlation id."""
    reader = Reader(frame_body, 4)
    reader.skip_tags()
    for _ in range(reader.uvarint() - 1):
        reader.skip_compact()
        for _ in range(reader.uvarint() - 1):
            partition, error, base = reader.unpack("i"), reader.unpack("h"), reader.unpack("q")
            reader.skip(16)
            for _ in range(max(reader.uvarint() - 1, 0)):
                reader.skip(4)
                reader.skip_compact()
                reader.skip_tags()
            reader.skip_compact()
            reader.skip_tags()
            yield Produced(partition, error, base)
        reader.skip_tags()


@dataclass(frozen=True)
class Fetched:
    """Response to a Fetch of one partition; `next_offset` is -1 without a batch.

    The batches are between the positions `start` and `end` of the response.
    """

    error: int
    high_watermark: int
    next_offset: int
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


def fetch_response(frame_body: bytes | memoryview) -> Fetched:
    """Return the partition of a Fetch response that has one or none."""
    reader = Reader(frame_body, 4)
    reader.skip_tags()
    reader.skip(4)
    error = reader.unpack("h")
    reader.skip(4)
    if error or reader.uvarint() < 2:
        return Fetched(error, -1, -1)
    reader.skip_compact()
    if reader.uvarint() < 2:
        return Fetched(error, -1, -1)
    reader.skip(4)
    error, high_watermark = reader.unpack("h"), reader.unpack("q")
    reader.skip(16)
    for _ in range(max(reader.uvarint() - 1, 0)):
        reader.skip(16)
        reader.skip_tags()
    reader.skip(4)
    size_bytes = max(reader.uvarint() - 1, 0)
    start, end = reader.position, reader.position + size_bytes
    return Fetched(error, high_watermark, _after_last_batch(reader, size_bytes), start, end)


def first_bytes(data: bytes | memoryview, start: int, end: int, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield, for each record of the whole batches in a range, its batch's largest timestamp and the beginning of its
    value. Control batches are skipped, as by consumers; the others have to be uncompressed.
    """
    while start + _BATCH_HEADER.size <= end:
        (length,) = struct.unpack_from(">i", data, start + BATCH_LENGTH_OFFSET)
        after = start + 12 + length
        if after > end:
            return
        (attributes,) = struct.unpack_from(">h", data, start + _BATCH_ATTRIBUTES_OFFSET)
        (timestamp_ms,) = struct.unpack_from(">q", data, start + _BATCH_MAX_TIMESTAMP_OFFSET)
        reader = Reader(data, start + _BATCH_HEADER.size)
        while not attributes & CONTROL and reader.position < after:
            size = reader.uvarint() >> 1
            following = reader.position + size
            reader.skip(1)
            for _ in range(2):  # the deltas of timestamp and offset
                reader.uvarint()
            key_size = reader.uvarint()
            reader.skip(0 if key_size & 1 else key_size >> 1)
            reader.uvarint()
            yield timestamp_ms, bytes(data[reader.position : reader.position + size_bytes])
            reader.position = following
        start = after


def _after_last_batch(reader: Reader, size_bytes: int) -> int:
    """Return the offset after the last whole batch; ignore a partial one at the end, as clients do."""
    end, position, following = reader.position + size_bytes, reader.position, -1
    while position + _BATCH_HEADER.size <= end:
        base, length = struct.unpack_from(">qi", reader.data, position)
        if position + 12 + length > end:
            break
        last_delta = struct.unpack_from(">i", reader.data, position + BATCH_LAST_DELTA_OFFSET)[0]
        following = base + last_delta + 1
        position += 12 + length
    return following


def metadata_response(frame_body: bytes) -> dict[str, tuple[int, int]]:
    """Return for each topic its error code and the number of partitions that have a leader and no error."""
    reader = Reader(frame_body, 4)
    reader.skip(4)
    for _ in range(reader.unpack("i")):
        reader.skip(4)
        reader.skip_string()
        reader.skip(4)
        reader.skip_string()
    reader.skip_string()
    reader.skip(4)
    topics: dict[str, tuple[int, int]] = {}
    for _ in range(reader.unpack("i")):
        error, size = reader.unpack("h"), reader.unpack("h")
        name = bytes(reader.data[reader.position : reader.position + size]).decode()
        reader.skip(size + 1)
        topics[name] = (error, _led_partitions(reader))
    return topics


def _led_partitions(reader: Reader) -> int:
    led = 0
    for _ in range(reader.unpack("i")):
        error = reader.unpack("h")
        reader.skip(4)
        leader = reader.unpack("i")
        reader.skip(4 * reader.unpack("i"))
        reader.skip(4 * reader.unpack("i"))
        led += error == 0 and leader >= 0
    return led
