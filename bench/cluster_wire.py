"""Requests of a raw client of a cluster besides Produce and Fetch: leaders, controller, coordinators.

Layouts follow Kafka's message definitions: Metadata 7, DescribeQuorum 0, FindCoordinator 4, ElectLeaders 2, and a
Produce 9 of many partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench import wire
from bench.wire import Reader, WireError, compact, frame, string, uvarint

METADATA, FIND_COORDINATOR, ELECT_LEADERS, DESCRIBE_QUORUM, DESCRIBE_CLUSTER = 3, 10, 43, 55, 60
METADATA_VERSION, FIND_COORDINATOR_VERSION, ELECT_LEADERS_VERSION, DESCRIBE_QUORUM_VERSION = 7, 4, 2, 0
DESCRIBE_CLUSTER_VERSION = 0
ELECTION_TIMEOUT_MS = 60_000
_PARTITION = struct.Struct(">hiiii")  # error, index, leader, leader epoch, number of replicas
_COUNT = struct.Struct(">i")
_PRODUCED = struct.Struct(">ihqqq")  # partition, error, base offset, append time, log start offset


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as one broker reports it; `leader` is -1 if it has none."""

    index: int
    leader: int
    leader_epoch: int
    in_sync: int


@dataclass(frozen=True)
class Metadata:
    """Metadata response: `brokers` maps ids to addresses; topics with an error are omitted."""

    brokers: dict[int, str]
    topics: dict[str, list[PartitionState]]


def metadata_request(topics: Sequence[str]) -> bytes:
    """Return a request for these topics that does not create them."""
    names = b"".join(string(name.encode()) for name in topics)
    return frame(METADATA, METADATA_VERSION, 0, _COUNT.pack(len(topics)) + names + b"\0", flexible=False)


def metadata_response(frame_body: bytes) -> Metadata:
    reader = Reader(frame_body, 8)
    brokers = {}
    for _ in range(reader.unpack("i")):
        broker_id, host = reader.unpack("i"), _string(reader)
        brokers[broker_id] = f"{host}:{reader.unpack('i')}"
        reader.skip_string()
    reader.skip_string()
    reader.skip(4)
    topics = {}
    for _ in range(reader.unpack("i")):
        error, name = reader.unpack("h"), _string(reader)
        reader.skip(1)
        partitions, reader.position = _partitions(reader.data, reader.position)
        if not error:
            topics[name] = partitions
    return Metadata(brokers, topics)


def _partitions(data: bytes | memoryview, position: int) -> tuple[list[PartitionState], int]:
    """Read all partitions in one loop: the client reads the state of 10,000 partitions several times a second."""
    (count,) = _COUNT.unpack_from(data, position)
    position += 4
    found = []
    for _ in range(count):
        _error, index, leader, epoch, replicas = _PARTITION.unpack_from(data, position)
        position += _PARTITION.size + 4 * replicas
        (in_sync,) = _COUNT.unpack_from(data, position)
        position += 4 + 4 * in_sync
        (offline,) = _COUNT.unpack_from(data, position)
        position += 4 + 4 * offline
        found.append(PartitionState(index, leader, epoch, in_sync))
    return found, position


def _string(reader: Reader) -> str:
    size = reader.unpack("h")
    start = reader.position
    reader.skip(size)
    return bytes(reader.data[start : start + size]).decode()


def quorum_request() -> bytes:
    """Return a request for the leader of Kafka's metadata log, which is the controller."""
    topic = compact(b"__cluster_metadata") + uvarint(2) + _COUNT.pack(0) + b"\0" + b"\0"
    return frame(DESCRIBE_QUORUM, DESCRIBE_QUORUM_VERSION, 0, uvarint(2) + topic + b"\0", flexible=True)


def quorum_response(frame_body: bytes) -> int:
    """Return the id of the controller, or -1 if the response is an error."""
    reader = Reader(frame_body, 4)
    reader.skip_tags()
    if reader.unpack("h") or reader.uvarint() < 2:
        return -1
    reader.skip_compact()
    if reader.uvarint() < 2:
        return -1
    reader.skip(4)
    return -1 if reader.unpack("h") else reader.unpack("i")


def members_request() -> bytes:
    """Return a request for the registered brokers. Metadata may still list a broker that has died."""
    return frame(DESCRIBE_CLUSTER, DESCRIBE_CLUSTER_VERSION, 0, b"\0\0", flexible=True)


def members_response(frame_body: bytes) -> set[int]:
    """Return the ids of the brokers; empty if the response is an error."""
    reader = Reader(frame_body, 4)
    reader.skip_tags()
    reader.skip(4)
    if reader.unpack("h"):
        return set()
    reader.skip_compact()
    reader.skip_compact()
    reader.skip(4)
    found = set()
    for _ in range(reader.uvarint() - 1):
        found.add(reader.unpack("i"))
        reader.skip_compact()
        reader.skip(4)
        reader.skip_compact()
        reader.skip_tags()
    return found


def coordinators_request(groups: Sequence[str]) -> bytes:
    """Return a request for the coordinators of these consumer groups."""
    names = b"".join(compact(group.encode()) for group in groups)
    body = b"\0" + uvarint(len(groups) + 1) + names + b"\0"
    return frame(FIND_COORDINATOR, FIND_COORDINATOR_VERSION, 0, body, flexible=True)


def coordinators_response(frame_body: bytes) -> dict[str, str]:
    """Return the coordinator's address for each group that has one."""
    reader = Reader(frame_body, 4)
    reader.skip_tags()
    reader.skip(4)
    found = {}
    for _ in range(reader.uvarint() - 1):
        group = _compact(reader)
        reader.skip(4)
        host = _compact(reader)
        address = f"{host}:{reader.unpack('i')}"
        error = reader.unpack("h")
        reader.skip_compact()
        reader.skip_tags()
        if not error:
            found[group] = address
    return found


def election_request() -> bytes:
    """Return a request that elects the preferred leader of every partition."""
    body = b"\0" + uvarint(0) + struct.pack(">i", ELECTION_TIMEOUT_MS) + b"\0"
    return frame(ELECT_LEADERS, ELECT_LEADERS_VERSION, 0, body, flexible=True)


def election_response(frame_body: bytes) -> int:
    """Return the top-level error code; the codes of single partitions are ignored."""
    reader = Reader(frame_body, 4)
    reader.skip_tags()
    reader.skip(4)
    return reader.unpack("h")


def _compact(reader: Reader) -> str:
    size = reader.uvarint() - 1
    start = reader.position
    reader.skip(size)
    return bytes(reader.data[start : start + size]).decode()


def part_of_produce(partition: int, batch: bytes) -> bytes:
    """Return one partition's part of a Produce request, to be built once and sent many times."""
    return _COUNT.pack(partition) + compact(batch) + b"\0"


def produce_request(topics: Mapping[str, Sequence[bytes]], timeout_ms: int) -> bytes:
    """Return a Produce request with acks=all of the given partition parts of each topic."""
    body = [b"\0", struct.pack(">hi", -1, timeout_ms), uvarint(len(topics) + 1)]
    for topic, parts in topics.items():
        body += [compact(topic.encode()), uvarint(len(parts) + 1), *parts, b"\0"]
    body.append(b"\0")
    return frame(wire.PRODUCE, wire.PRODUCE_VERSION, 0, b"".join(body), flexible=True)


def produce_response(frame_body: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, partition, error code) of each partition in the response."""
    reader = Reader(frame_body, 4)
    reader.skip_tags()
    for _ in range(reader.uvarint() - 1):
        topic = _compact(reader)
        for _ in range(reader.uvarint() - 1):
            if reader.position + _PRODUCED.size > len(reader.data):
                raise WireError("an answer to a Produce ends too early")
            partition, error, *_offsets = _PRODUCED.unpack_from(reader.data, reader.position)
            reader.position += _PRODUCED.size
            for _ in range(max(reader.uvarint() - 1, 0)):
                reader.skip(4)
                reader.skip_compact()
                reader.skip_tags()
            reader.skip_compact()
            reader.skip_tags()
            yield topic, partition, error
        reader.skip_tags()
