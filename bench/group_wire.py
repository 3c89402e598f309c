"""ConsumerGroupHeartbeat 1 (KIP-848), encoded by hand like the messages in `wire`."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from bench.wire import Reader, compact, frame, uvarint

CONSUMER_GROUP_HEARTBEAT, VERSION = 68, 1
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
NULL = b"\0"
_PARTITIONS = struct.Struct(">i")


class Heartbeat(NamedTuple):
    """The response to a heartbeat; `assignment` has the partitions, or is None if it did not change."""

    error: int
    epoch: int
    interval_ms: int
    assignment: frozenset[int] | None


def heartbeat_request(
    group: str,
    member: str,
    epoch: int,
    *,
    topic: str | None = None,
    topic_id: bytes = b"",
    owned: Iterable[int] | None = None,
    rebalance_timeout_ms: int = -1,
) -> bytes:
    """Return a heartbeat; what is None has not changed since the last one. `owned` are partitions of one topic."""
    body = compact(group.encode()) + compact(member.encode()) + struct.pack(">i", epoch) + NULL + NULL
    body += struct.pack(">i", rebalance_timeout_ms)
    body += NULL if topic is None else uvarint(2) + compact(topic.encode())
    body += NULL + NULL + _owned(topic_id, owned) + b"\0"
    return frame(CONSUMER_GROUP_HEARTBEAT, VERSION, 0, body, flexible=True)


def _owned(topic_id: bytes, owned: Iterable[int] | None) -> bytes:
    if owned is None:
        return NULL
    partitions = list(owned)
    if not partitions:
        return uvarint(1)
    numbers = b"".join(map(_PARTITIONS.pack, partitions))
    return uvarint(2) + topic_id + uvarint(len(partitions) + 1) + numbers + b"\0"


def heartbeat_response(body: bytes | memoryview) -> Heartbeat:
    """Return the response; `body` starts with the correlation id. The group has one topic."""
    reader = Reader(body, 4)
    reader.skip_tags()
    reader.skip(4)
    error = reader.unpack("h")
    reader.skip_compact()
    reader.skip_compact()
    epoch, interval_ms = reader.unpack("i"), reader.unpack("i")
    if reader.unpack("b") < 0:
        return Heartbeat(error, epoch, interval_ms, None)
    partitions: set[int] = set()
    for _ in range(reader.uvarint() - 1):
        reader.skip(16)
        partitions.update(reader.unpack("i") for _ in range(reader.uvarint() - 1))
        reader.skip_tags()
    return Heartbeat(error, epoch, interval_ms, frozenset(partitions))
