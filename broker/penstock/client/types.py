"""The values that cross the client's public interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from penstock.config.addresses import join_host_port

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SkippedBatch(NamedTuple):
    """A damaged batch that a consumer left out, by its first and last offset."""

    partition: TopicPartition
    first_offset: int
    last_offset: int
    reason: str


class RecordMetadata(NamedTuple):
    """Where a produced record is. `offset` is -1 where nobody knows (acks=0, or a duplicate the broker recognised).

    `timestamp_ms` is the record's own, or the broker's where the topic stamps on append.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple):
    """One record as a consumer yields it; `timestamp_ms` since 1970, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, and a note."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """What an offset query found; offset -1 where nothing matches."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as metadata announces it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.address} (node {self.node_id})"

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return join_host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's place: `leader` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its partitions by number."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)
