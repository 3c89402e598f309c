"""Encodes fetch responses as a list of parts, so that records can be sent from files without copying.

`records` parts are provided by the caller (a segment slice or bytes); only their size is needed. Versions 4 to 18.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.wire.varint import write_uvarint

SESSIONS_FROM = 7
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
SIZE_AND_CORRELATION = struct.Struct(">ii")
FLEXIBLE_HEAD = struct.Struct(">iixihi")
"""Start of a response in a flexible version: size, correlation id, no tags, throttle time, error, session id."""
HEAD = struct.Struct(">iiihi")
OLD_HEAD = struct.Struct(">iii")
"""Start of a response before version 7, without sessions."""
I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")
PARTITION = struct.Struct(">ihqq")
PLAIN = struct.Struct(">ihqqqxi")
"""Partition in a flexible version without aborted transactions: index, error, high watermark, last stable offset, log
start offset, preferred read replica."""
EPOCH_END = struct.Struct(">iq")
LEADER = struct.Struct(">ii")


class StoredRecords(Protocol):
    """Records that are stored elsewhere."""

    size: int


class FetchedPartition(NamedTuple):
    """A partition in a fetch response."""

    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: StoredRecords | None = None
    aborted: Sequence[tuple[int, int]] | None = None
    """Pairs of (producer id, first offset) of aborted transactions; None for read_uncommitted."""
    diverging: tuple[int, int] | None = None
    """Pair of (epoch, end offset) where the follower's log diverges; version 12 and later."""
    leader: tuple[int, int] | None = None
    """Pair of (broker id, leader epoch) of the current leader; version 12 and later."""
    preferred_read_replica: int = -1


def encode_fetch_response(
    correlation_id: int,
    version: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[FetchedPartition]]],
) -> list[bytearray | StoredRecords]:
    """Return the parts of the response frame, including the size field."""
    flexible = version >= FLEXIBLE_FROM
    if flexible:
        current = bytearray(FLEXIBLE_HEAD.pack(0, correlation_id, 0, error, session_id))
    elif version >= SESSIONS_FROM:
        current = bytearray(HEAD.pack(0, correlation_id, 0, error, session_id))
    else:
        current = bytearray(OLD_HEAD.pack(0, correlation_id, 0))
    parts: list[bytearray | StoredRecords] = [current]
    array_length(current, len(topics), flexible)
    inside = outside = 0
    for topic, partitions in topics:
        topic_key(current, topic, flexible)
        array_length(current, len(partitions), flexible)
        for p in partitions:
            if flexible and p.aborted is None:
                current += PLAIN.pack(p[0], p[1], p[2], p[3], p[4], p.preferred_read_replica)
            else:
                partition_head(current, p, version, flexible)
            records = p.records
            size = 0 if records is None else records.size
            array_length(current, size, flexible)
            if size:
                assert records is not None, "records with a size exist"
                inside += len(current)
                outside += size
                current = bytearray()
                parts += (records, current)
            if flexible:
                if p.diverging is None and p.leader is None:
                    current.append(0)
                else:
                    partition_tags(current, p)
        if flexible:
            current.append(0)
    if flexible:
        current.append(0)
    first = parts[0]
    assert isinstance(first, bytearray)
    SIZE_AND_CORRELATION.pack_into(first, 0, inside + len(current) + outside - 4, correlation_id)
    return parts


def set_throttle_time(parts: Sequence[bytearray | StoredRecords], version: int, throttle_ms: int) -> None:
    """Write the throttle time into a response of `encode_fetch_response`."""
    first = parts[0]
    assert isinstance(first, bytearray), "a response starts with its head"
    I32.pack_into(first, 9 if version >= FLEXIBLE_FROM else 8, throttle_ms)


def array_length(out: bytearray, length: int, flexible: bool) -> None:
    """Append an array length."""
    if not flexible:
        out += I32.pack(length)
    elif length < 0x7F:
        out.append(length + 1)
    else:
        write_uvarint(out, length + 1)


def topic_key(out: bytearray, topic: str | UUID, flexible: bool) -> None:
    """Append a topic's name or id."""
    if isinstance(topic, UUID):
        out += topic.bytes
        return
    name = topic.encode()
    size = len(name)
    if not flexible:
        out += I16.pack(size)
    elif size < 0x7F:
        out.append(size + 1)
    else:
        write_uvarint(out, size + 1)
    out += name


def partition_head(out: bytearray, p: FetchedPartition, version: int, flexible: bool) -> None:
    """Append a partition's fields up to the length of its records."""
    out += PARTITION.pack(p.partition, p.error, p.high_watermark, p.last_stable_offset)
    if version >= 5:
        out += I64.pack(p.log_start_offset)
    if p.aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        array_length(out, len(p.aborted), flexible)
        for producer_id, first_offset in p.aborted:
            out += struct.pack(">qq", producer_id, first_offset) + (b"\0" if flexible else b"")
    if version >= 11:
        out += I32.pack(p.preferred_read_replica)


def partition_tags(out: bytearray, p: FetchedPartition) -> None:
    """Append a partition's tagged fields. It has at least one."""
    out.append((p.diverging is not None) + (p.leader is not None))
    if p.diverging is not None:
        out += b"\x00\x0d" + EPOCH_END.pack(*p.diverging) + b"\0"
    if p.leader is not None:
        out += b"\x01\x09" + LEADER.pack(*p.leader) + b"\0"
