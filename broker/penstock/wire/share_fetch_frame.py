"""Encodes ShareFetch responses as a list of parts, so that records can be sent from files without copying.

`records` parts are provided by the caller (a segment slice); only their size is needed. Versions 1 and 2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.wire.errors import ErrorCode
from penstock.wire.fetch_frame import StoredRecords
from penstock.wire.varint import write_uvarint

HEAD = struct.Struct(">iiBihBi")
"""Size, correlation id, no tags of the response header, throttle time, error, no error message, lock timeout in ms."""
I32 = struct.Struct(">i")
THROTTLE_POSITION = 9
PARTITION = struct.Struct(">ihBh")
"""Index, error, no message, error of the acknowledgements."""
LEADER = struct.Struct(">iiB")
"""Id and epoch of the leader, no tags."""
ACQUIRED = struct.Struct(">qqhB")
NO_LEADER = (-1, -1)


class SharedPartition(NamedTuple):
    """A partition in a ShareFetch response."""

    partition: int
    error: int = ErrorCode.NONE
    acknowledge_error: int = ErrorCode.NONE
    acknowledge_message: str | None = None
    leader: tuple[int, int] = NO_LEADER
    """(broker id, leader epoch) of the current leader, if an error sends the member there."""
    records: StoredRecords | None = None
    acquired: Sequence[tuple[int, int, int]] = ()
    """(first offset, last offset, delivery count) of adjacent records that the member holds."""


class ShareFetchHead(NamedTuple):
    """The fields of a response that concern no partition."""

    correlation_id: int
    error: int = ErrorCode.NONE
    lock_timeout_ms: int = 0


def encode_share_fetch_response(
    head: ShareFetchHead, topics: Sequence[tuple[UUID, Sequence[SharedPartition]]] = ()
) -> list[bytearray | StoredRecords]:
    """Return the parts of the response frame, including the size field."""
    first = current = bytearray(HEAD.pack(0, head.correlation_id, 0, 0, head.error, 0, head.lock_timeout_ms))
    parts: list[bytearray | StoredRecords] = [current]
    size = 0
    write_uvarint(current, len(topics) + 1)
    for topic_id, partitions in topics:
        current += topic_id.bytes
        write_uvarint(current, len(partitions) + 1)
        for shared in partitions:
            current += PARTITION.pack(shared[0], shared[1], 0, shared[2])
            message = (shared.acknowledge_message or "").encode()
            write_uvarint(current, len(message) + 1 if message else 0)
            current += message + LEADER.pack(*shared.leader, 0)
            records = shared.records
            write_uvarint(current, 1 if records is None else records.size + 1)
            if records is not None:
                size += len(current) + records.size
                current = bytearray()
                parts += (records, current)
            write_uvarint(current, len(shared.acquired) + 1)
            for acquired in shared.acquired:
                current += ACQUIRED.pack(*acquired, 0)
            current.append(0)
        current.append(0)
    current += b"\x01\0"  # no node endpoints: clients know the brokers; no tags
    I32.pack_into(first, 0, size + len(current) - 4)
    return parts


def set_share_throttle_time(parts: Sequence[bytearray | StoredRecords], throttle_ms: int) -> None:
    """Write the throttle time into a response of `encode_share_fetch_response`."""
    first = parts[0]
    assert isinstance(first, bytearray), "a response starts with its head"
    I32.pack_into(first, THROTTLE_POSITION, throttle_ms)
