"""The messages of share groups (KIP-932) that the raw load sends, encoded by hand like those in `wire`.

Layouts follow Kafka's message definitions: ShareGroupHeartbeat 1, ShareFetch 2, ShareAcknowledge 2, Metadata 12,
IncrementalAlterConfigs 1, FindCoordinator 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.wire import METADATA, Reader, WireError, compact, frame, string, uvarint

FIND_COORDINATOR, INCREMENTAL_ALTER_CONFIGS, SHARE_GROUP_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE = 10, 44, 76, 78, 79
ALTER_VERSION = 1
GROUP_RESOURCE, SET = 32, 0
HEARTBEAT_VERSION, FETCH_VERSION, ACKNOWLEDGE_VERSION, METADATA_VERSION = 1, 2, 2, 12
MAX_FETCH_BYTES = 50 << 20
ACCEPT, RELEASE = b"\2\1", b"\2\2"
"""The compact array of acknowledgement types with one for the complete range."""

Ranges = Sequence[tuple[int, int]]
"""First and last offsets, both inclusive."""


class Delivery(NamedTuple):
    """One partition's part of a ShareFetch response. `batches` are (position, end, base offset) in the response."""

    partition: int
    error: int
    acquired: Ranges
    batches: Sequence[tuple[int, int, int]]


def find_coordinator_request(group: str) -> bytes:
    """Return a FindCoordinator, at which Kafka creates the topic of its group coordinator."""
    return frame(FIND_COORDINATOR, 0, 0, string(group.encode()), flexible=False)


def find_coordinator_response(body: bytes | memoryview) -> str | None:
    """Return the coordinator's address, or None if there is none yet; `body` starts with the correlation id."""
    reader = Reader(body, 4)
    if reader.unpack("h"):
        return None
    reader.skip(4)
    size = reader.unpack("h")
    host = bytes(body[reader.position : reader.position + size]).decode()
    reader.skip(size)
    return f"{host}:{reader.unpack('i')}"


def heartbeat_request(group: str, member: str, epoch: int, topic: str) -> bytes:
    """Return a heartbeat that subscribes a member to a topic. Epoch 0 joins and -1 leaves."""
    body = compact(group.encode()) + compact(member.encode()) + struct.pack(">i", epoch) + b"\0"
    body += uvarint(2) + compact(topic.encode()) + b"\0"
    return frame(SHARE_GROUP_HEARTBEAT, HEARTBEAT_VERSION, 0, body, flexible=True)


def heartbeat_response(body: bytes | memoryview) -> tuple[int, int]:
    """Return the error and the member epoch; `body` starts with the correlation id."""
    reader = Reader(body, 4)
    reader.skip_tags()
    reader.skip(4)
    error = reader.unpack("h")
    reader.skip_compact()
    reader.skip_compact()
    return error, reader.unpack("i")


def group_config_request(group: str, name: str, value: str) -> bytes:
    """Return an IncrementalAlterConfigs that sets one setting of a group."""
    config = uvarint(2) + compact(name.encode()) + bytes([SET]) + compact(value.encode()) + b"\0"
    resource = bytes([GROUP_RESOURCE]) + compact(group.encode()) + config + b"\0"
    body = uvarint(2) + resource + b"\0" + b"\0"
    return frame(INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, 0, body, flexible=True)


def group_config_response(body: bytes | memoryview) -> None:
    """Raise WireError if the setting was rejected."""
    reader = Reader(body, 4)
    reader.skip_tags()
    reader.skip(4)
    for _ in range(reader.uvarint() - 1):
        _check(reader.unpack("h"), "a change of the group's settings")


def topic_id_request(topic: str) -> bytes:
    body = uvarint(2) + bytes(16) + compact(topic.encode()) + b"\0" + b"\0\0\0"
    return frame(METADATA, METADATA_VERSION, 0, body, flexible=True)


def topic_id_response(body: bytes | memoryview) -> bytes:
    """Return the 16 bytes of the id of the first topic. Raises WireError if the topic does not exist."""
    reader = Reader(body, 4)
    reader.skip_tags()
    reader.skip(4)
    for _ in range(reader.uvarint() - 1):
        reader.skip(4)
        reader.skip_compact()
        reader.skip(4)
        reader.skip_compact()
        reader.skip_tags()
    reader.skip_compact()
    reader.skip(4)
    if reader.uvarint() < 2:
        raise WireError("the metadata has no topic")
    error = reader.unpack("h")
    if error:
        raise WireError(f"the metadata of the topic has error {error}")
    reader.skip_compact()
    return bytes(body[reader.position : reader.position + 16])


class ShareMember:
    """Encodes the requests of one member of a share group, and counts the epochs of its session."""

    def __init__(self, group: str, member: str, topic_id: bytes, partitions: int) -> None:
        self._names = compact(group.encode()) + compact(member.encode())
        self._topic_id, self._partitions = topic_id, range(partitions)
        self._epoch = -1

    def fetch(self, acks: Mapping[int, Ranges], *, max_records: int, max_wait_ms: int) -> bytes:
        """Return a ShareFetch that accepts records of earlier responses. The first one opens the session."""
        self._epoch += 1
        head = self._epoch, max_wait_ms, 1, MAX_FETCH_BYTES, max_records, max_records, 0, False
        limits = struct.pack(">iiiiiib?", *head)
        topics = self._topics(acks if self._epoch else dict.fromkeys(self._partitions, ()))
        return frame(SHARE_FETCH, FETCH_VERSION, 0, self._names + limits + topics + b"\1\0", flexible=True)

    def acknowledge(self, acks: Mapping[int, Ranges], kind: bytes = ACCEPT) -> bytes:
        """Return a ShareAcknowledge that accepts or releases records."""
        self._epoch += 1
        head = struct.pack(">i?", self._epoch, False)
        body = self._names + head + self._topics(acks, kind) + b"\0"
        return frame(SHARE_ACKNOWLEDGE, ACKNOWLEDGE_VERSION, 0, body, flexible=True)

    def _topics(self, acks: Mapping[int, Ranges], kind: bytes = ACCEPT) -> bytes:
        if not acks:
            return b"\1"
        partitions = b"".join(_partition(index, ranges, kind) for index, ranges in acks.items())
        return b"\2" + self._topic_id + uvarint(len(acks) + 1) + partitions + b"\0"


def _partition(index: int, ranges: Ranges, kind: bytes) -> bytes:
    batches = b"".join(struct.pack(">qq", first, last) + kind + b"\0" for first, last in ranges)
    return struct.pack(">i", index) + uvarint(len(ranges) + 1) + batches + b"\0"


def fetch_response(body: bytes | memoryview) -> list[Delivery]:
    """Return the partitions with records, or with an error of the fetch or of the acknowledgements."""
    reader = Reader(body, 4)
    reader.skip_tags()
    reader.skip(4)
    _check(reader.unpack("h"), "a share fetch")
    reader.skip_compact()
    reader.skip(4)
    found = []
    for _ in range(reader.uvarint() - 1):
        reader.skip(16)
        for _ in range(reader.uvarint() - 1):
            delivery = _partition_response(reader)
            if delivery.acquired or delivery.error:
                found.append(delivery)
        reader.skip_tags()
    return found


def _partition_response(reader: Reader) -> Delivery:
    index, error = reader.unpack("i"), reader.unpack("h")
    reader.skip_compact()
    acknowledge_error = reader.unpack("h")
    reader.skip_compact()
    reader.skip(8)
    reader.skip_tags()
    size = max(reader.uvarint() - 1, 0)
    batches = list(_batches(reader.data, reader.position, reader.position + size))
    reader.skip(size)
    acquired = []
    for _ in range(reader.uvarint() - 1):
        acquired.append((reader.unpack("q"), reader.unpack("q")))
        reader.skip(2)
        reader.skip_tags()
    reader.skip_tags()
    return Delivery(index, error or acknowledge_error, acquired, batches)


def _batches(data: bytes | memoryview, position: int, end: int) -> Iterable[tuple[int, int, int]]:
    """Yield the whole batches of a response."""
    while position + 12 < end:
        base, length = struct.unpack_from(">qi", data, position)
        yield position, position + 12 + length, base
        position += 12 + length


def acknowledge_response(body: bytes | memoryview) -> None:
    """Raise WireError unless everything was acknowledged."""
    reader = Reader(body, 4)
    reader.skip_tags()
    reader.skip(4)
    _check(reader.unpack("h"), "a share acknowledgement")
    reader.skip_compact()
    reader.skip(4)
    for _ in range(reader.uvarint() - 1):
        reader.skip(16)
        for _ in range(reader.uvarint() - 1):
            reader.skip(4)
            _check(reader.unpack("h"), "an acknowledgement")
            reader.skip_compact()
            reader.skip(8)
            reader.skip_tags()
            reader.skip_tags()
        reader.skip_tags()


def _check(error: int, what: str) -> None:
    if error:
        raise WireError(f"{what} failed with error code {error}")
