"""The values in the store: JSON, so that people can read them; one structure for each kind of key (see `keys`).

A field that a newer version added is ignored by an older one, and has a default for records written before it.
Times are wall-clock milliseconds since 1970.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec

from penstock.state.store import StoreError

R = TypeVar("R", bound="StoredRecord")

BrokerId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""What goes out on the wire in as many bits must fit into them."""
MAX_PARTITIONS = 200_000
"""Partitions of one topic that a record may claim."""


class BadRecord(StoreError, ValueError):
    """The value of a key is no record of its kind; the message names the key and says what is wrong."""


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values in the store."""


class ClusterRecord(StoredRecord, frozen=True, kw_only=True):
    cluster_id: str
    schema_version: Count = 1
    """Of keys and records; a broker refuses a store whose number it does not know."""
    feature_level: Count = 1
    """What all brokers have agreed that they may write and send."""


class ControllerRecord(StoredRecord, frozen=True, kw_only=True):
    broker_id: BrokerId
    epoch: Count = 0


class EndpointRecord(StoredRecord, frozen=True, kw_only=True):
    listener: str
    host: str
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]


class BrokerRecord(StoredRecord, frozen=True, kw_only=True):
    """A broker that has registered. `incarnation` is another after each start; `failure_domain` is a path, zone/node.

    The revision at which its key was created is the broker's epoch: with its id it names this incarnation in leader
    and ISR entries and in requests between brokers.
    """

    broker_id: BrokerId
    incarnation: UUID
    endpoints: list[EndpointRecord]
    rack: str | None = None
    failure_domain: str = ""
    draining: bool = False
    registered_ms: Int64 = 0
    directory_id: UUID | None = None
    boot_id: str = ""
    """Of the machine: what was in its page cache is there as long as this is the same."""
    was_unclean: bool = False
    """Whether the run before this one did not end cleanly."""
    feature_level: Count = 1
    """The highest that this broker knows."""


class BrokerConfigRecord(StoredRecord, frozen=True, kw_only=True):
    settings: dict[str, str]


class TopicRecord(StoredRecord, frozen=True, kw_only=True):
    """`partition_count` partitions have keys of their own. `deleting` is the tombstone: its data may be removed."""

    name: str
    topic_id: UUID
    partition_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]
    overrides: dict[str, str] = {}
    created_ms: Int64 = 0
    deleting: bool = False
    deleted_ms: Int64 = 0
    """When it was deleted; 0 in the tombstones of older versions."""


class TopicNameRecord(StoredRecord, frozen=True, kw_only=True):
    topic_id: UUID


MAX_REPLICAS = 32
"""Of a partition; while it moves, those that come and those that go are in its record together."""
Replicas = Annotated[list[BrokerId], msgspec.Meta(min_length=1, max_length=2 * MAX_REPLICAS)]


class PartitionRecord(StoredRecord, frozen=True, kw_only=True):
    """`replicas` has the preferred leader first; `leader` is -1 where there is none. An ISR is never empty.

    `isr_epochs` are the broker epochs of the ISR's members, in their order; none of them where there is one broker.
    `eligible` are replicas that left the ISR while it could not accept acks=all and so have all that is committed
    (KIP-966); `last_isr` is what the ISR was before its last member was lost.
    """

    replicas: Replicas
    leader: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)]
    leader_epoch: Count = 0
    isr: Replicas
    adding: list[BrokerId] = []
    removing: list[BrokerId] = []
    isr_epochs: list[Int64] = []
    eligible: list[BrokerId] = []
    last_isr: list[BrokerId] = []


class ProducerIdsRecord(StoredRecord, frozen=True, kw_only=True):
    """`next_id` and all after it have not been given to anybody."""

    next_id: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class MemberRecord(StoredRecord, frozen=True, kw_only=True):
    """A member of a group as of its last completed rebalance; timeouts in milliseconds."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: Count = 0
    rebalance_timeout_ms: Count = 0
    subscription: bytes = b""
    """What it sent for the protocol that was chosen."""
    assignment: bytes = b""


class GroupRecord(StoredRecord, frozen=True, kw_only=True):
    """A group of consumers as of its last completed rebalance; `state_ms` is when it got into its present state."""

    protocol_type: str = ""
    generation: Int32 = 0
    protocol: str | None = None
    leader: str | None = None
    members: list[MemberRecord] = []
    state_ms: Int64 = 0


class GroupSettingsRecord(StoredRecord, frozen=True, kw_only=True):
    """What is set for a group; `changed_ms` is when it last was."""

    settings: dict[str, str]
    changed_ms: Int64 = 0


class OffsetRecord(StoredRecord, frozen=True, kw_only=True):
    """A committed offset; `leader_epoch` -1 is unknown, `expire_ms` -1 leaves expiry to the broker's settings."""

    offset: Int64
    leader_epoch: Int32 = -1
    metadata: str = ""
    commit_ms: Int64 = 0
    expire_ms: Int64 = -1


class ShardRecord(StoredRecord, frozen=True, kw_only=True):
    """Who coordinates a shard of groups and transactional ids: this incarnation of a broker and no other.

    The epoch rises with each change of hands.
    """

    broker_id: BrokerId
    broker_epoch: Int64
    epoch: Count


class ShardFenceRecord(StoredRecord, frozen=True, kw_only=True):
    """`epoch` is that of the coordinator that wrote it; what counts is the revision of the key."""

    epoch: Count


class ShardCleanedRecord(StoredRecord, frozen=True, kw_only=True):
    """A shard holds no committed offsets of topics whose tombstones are of `revision` or older."""

    revision: Int64


class TransactionRecord(StoredRecord, frozen=True, kw_only=True):
    """A transactional id (KIP-98). `partitions` and `groups` are those of the transaction in hand.

    `number` is that of the transaction in hand, or of the last: they are counted, so that what is said of one is never
    taken for another's.

    `last_epoch` is the epoch before the present one where the same producer may still name it (KIP-360), else -1;
    `last_producer_id` likewise where the present id replaced one whose epochs were used up.
    """

    producer_id: Int64
    epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 15) - 1)]
    state: str
    timeout_ms: Count
    last_producer_id: Int64 = -1
    last_epoch: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 15) - 1)] = -1
    partitions: dict[UUID, list[Count]] = {}
    groups: list[str] = []
    started_ms: Int64 = -1
    """When the transaction in hand began."""
    updated_ms: Int64 = 0
    number: Int64 = 0


class TxnOffsetRecord(StoredRecord, frozen=True, kw_only=True):
    """An offset committed in a transaction: counts when that does. `record` is what it then becomes; `number` is that
    of the transaction."""

    transactional_id: str
    epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 15) - 1)]
    record: OffsetRecord
    number: Int64 = 0


@cache
def decoder(cls: type[R]) -> msgspec.json.Decoder[R]:
    return msgspec.json.Decoder(cls)


def decode(cls: type[R], key: str, value: bytes) -> R:
    """The record that is the value of `key`. Raises `BadRecord`."""
    try:
        record: R = decoder(cls).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise BadRecord(f"the value of {key} is no {cls.__name__}: {e}") from None
    return record


encode = msgspec.json.Encoder().encode
