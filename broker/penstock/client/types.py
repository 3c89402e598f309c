"""Values of the client's public API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import UUID

from penstock.config.addresses import join_host_port

Headers = Sequence[tuple[str, bytes | None]]
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels of fetches and offset queries."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SkippedBatch(NamedTuple):
    """A damaged batch that a consumer skipped."""

    partition: TopicPartition
    first_offset: int
    last_offset: int
    reason: str


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 if unknown (acks=0, or a duplicate that the broker detected).

    `timestamp_ms` is the record's own, or the broker's if the topic uses LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple):
    """A record returned by a consumer. `timestamp_ms` is in ms since the epoch, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, and optional metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """A group, and which of its members commits; by default a committer without membership."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class OffsetAndTimestamp(NamedTuple):
    """Result of an offset query; offset is -1 if no record matches."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class UndeliveredRecords(NamedTuple):
    """Records of a partition that wait: for the topic's `delivery.delay.ms`, or for times of their own."""

    records: int
    next_due_ms: int | None
    """When the next one becomes visible, in ms since 1970; None if none is known to wait."""


class SealedPartitionInfo(NamedTuple):
    """A partition that a topic has too many: records from `seal_offset` on are relayed to `relay_target`.

    A group that has committed `drained_offset` has read all records below the seal.
    """

    partition: int
    seal_offset: int
    relay_target: int
    drained_offset: int
    is_hidden: bool
    """Whether clients no longer see it."""


@dataclass(frozen=True, slots=True)
class TopicShrink:
    """A topic whose number of partitions was reduced to `remaining`, from `shown` that clients see now."""

    name: str
    remaining: int
    shown: int
    sealed: tuple[SealedPartitionInfo, ...]

    @property
    def state(self) -> Literal["sealing", "draining", "retired", "opening"]:
        """`sealing`, `draining` while groups read the sealed partitions, `retired` once they are hidden, or `opening`
        after the number was increased again."""
        surplus = [p for p in self.sealed if p.partition >= self.remaining]
        is_shown_again = self.shown == self.remaining and not self.sealed
        if len(surplus) < len(self.sealed) or is_shown_again:
            return "opening"
        if self.shown == self.remaining:
            return "retired"
        return "draining" if len(surplus) >= self.shown - self.remaining else "sealing"


class DrainingGroup(NamedTuple):
    """A group that has not read a sealed partition to its seal."""

    group: str
    partition: int
    committed: int | None
    """The committed offset; None if the group has offsets of the topic, but not of this partition."""
    lag: int


@dataclass(frozen=True, slots=True)
class Node:
    """A broker in the cluster's metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.address} (node {self.node_id})"

    @property
    def address(self) -> str:
        """Return `host:port`, with brackets around an IPv6 address."""
        return join_host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's replicas; `leader` is -1 if there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its partitions by number."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)
    removed: dict[int, PartitionInfo] = field(default_factory=dict, compare=False)
    """Partitions that the topic no longer shows. Their leaders still accept what a producer has queued for them."""
    shrink: TopicShrink | None = field(default=None, compare=False)
    """The reduced number of partitions. None also if the topic was described by its name: `Admin.shrinks` has it."""


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """A topic with its partition count. `topic_id` is None if the broker has no ids."""

    name: str
    topic_id: UUID | None
    partitions: int


class OffsetRange(NamedTuple):
    """The records of a partition from offset `start` to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class FetchSizes:
    """Maximum size of a response for one partition, and maximum number of responses in flight or unconsumed."""

    partition_bytes: int = 4 << 20
    ahead: int = 2


@dataclass(frozen=True, slots=True)
class Fetched:
    """The response to a fetch of one partition.

    `records` are batches as stored in the log. The first may start before the requested offset, the last may be
    incomplete. `aborted` has (producer id, first offset) of each aborted transaction in them, ordered by first offset;
    empty for uncommitted reads.
    """

    records: memoryview
    aborted: Sequence[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
