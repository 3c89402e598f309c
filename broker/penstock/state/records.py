"""The values in the store as JSON, which administrators can read: one struct per kind of key (see `keys`).

An older version ignores fields that a newer one added; new fields have defaults for existing records. Times are
wall-clock milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
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
"""Integers must fit into their size on the wire."""
StoredSettings = Annotated[Mapping[str, object], msgspec.Meta(max_length=1000)]
"""Settings by name. A value that is not text makes only its setting invalid, see `accept_stored`."""
MAX_PARTITIONS = 200_000
"""Maximum number of partitions of one topic."""


class BadRecord(StoreError, ValueError):
    """The value of a key is not valid; the message has the key and the reason."""


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all values in the store."""

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        return None


class ClusterRecord(StoredRecord, frozen=True, kw_only=True):
    """The cluster's identity and versions."""

    cluster_id: str
    schema_version: Count = 1
    """Version of keys and records; a broker refuses a store with a newer one."""
    feature_level: Count = 1
    """Formats that all brokers may write and send; see `control.features`."""
    features: Annotated[dict[str, Count], msgspec.Meta(max_length=100)] = {}
    """Levels of Kafka's features, by name; see `control.features`."""
    features_epoch: Int64 = 0
    """Number of changes of a level."""


class ControllerRecord(StoredRecord, frozen=True, kw_only=True):
    """The elected controller."""

    broker_id: BrokerId
    epoch: Count = 0


class EndpointRecord(StoredRecord, frozen=True, kw_only=True):
    """The advertised address of a listener."""

    listener: str
    host: str
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]


class BrokerRecord(StoredRecord, frozen=True, kw_only=True):
    """A registered broker. `incarnation` changes with each start; `failure_domain` is a path such as zone/node.

    The create revision of its key is the broker epoch. Together with the broker id it identifies this incarnation in
    partition records and in requests between brokers.
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
    """Boot id of the machine: while it is the same, the page cache has survived."""
    was_unclean: bool = False
    """Whether the previous run ended with an unclean shutdown."""
    feature_level: Count = 1
    """Highest feature level that this broker supports."""

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        listeners = [endpoint.listener for endpoint in self.endpoints]
        return f"listeners {listeners} have duplicates" if has_duplicates(listeners) else None


class BrokerConfigRecord(StoredRecord, frozen=True, kw_only=True):
    """Settings of one or all brokers, changed at run time."""

    settings: StoredSettings


class TopicRecord(StoredRecord, frozen=True, kw_only=True):
    """A topic with `partition_count` partitions under keys of their own. `deleting` marks a tombstone: its data may be
    removed."""

    name: str
    topic_id: UUID
    partition_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]
    overrides: StoredSettings = {}
    created_ms: Int64 = 0
    deleting: bool = False
    deleted_ms: Int64 = 0
    """Time of deletion; 0 in tombstones of older versions."""

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        return f"deleted_ms is {self.deleted_ms} without deleting" if self.deleted_ms and not self.deleting else None


class TopicNameRecord(StoredRecord, frozen=True, kw_only=True):
    """The topic id of a name."""

    topic_id: UUID


MAX_REPLICAS = 32
"""Maximum number of replicas of a partition; during a reassignment the record has the old and the new ones."""
Replicas = Annotated[list[BrokerId], msgspec.Meta(min_length=1, max_length=2 * MAX_REPLICAS)]


class PartitionRecord(StoredRecord, frozen=True, kw_only=True):
    """A partition. `replicas` has the preferred leader first; `leader` is -1 without one. The ISR is never empty.

    `isr_epochs` are the broker epochs of the ISR members, in their order; empty without a cluster. `eligible` are
    replicas that left the ISR while it was below min.insync.replicas, so they have all committed records (KIP-966).
    `last_isr` is the ISR before its last member was lost.
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

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        replicas = set(self.replicas)
        for name in ("replicas", "isr", "adding", "removing", "eligible", "last_isr"):
            brokers = getattr(self, name)
            if not replicas.issuperset(brokers):
                return f"{name} {brokers} is not a subset of replicas {self.replicas}"
            if len(brokers) > 1 and has_duplicates(brokers):
                return f"{name} {brokers} have duplicates"
        for name, other in (("adding", "removing"), ("eligible", "isr")):
            brokers = getattr(self, name)
            if brokers and not set(brokers).isdisjoint(getattr(self, other)):
                return f"{name} {brokers} overlaps {other} {getattr(self, other)}"
        if len(replicas) in (len(self.adding), len(self.removing)):
            return f"all replicas {self.replicas} are being added or removed"
        if self.leader >= 0 and self.leader not in self.isr:
            return f"leader {self.leader} is not in isr {self.isr}"
        if self.isr_epochs and len(self.isr_epochs) != len(self.isr):
            return f"isr_epochs {self.isr_epochs} do not match isr {self.isr}"
        return None


class ProducerIdsRecord(StoredRecord, frozen=True, kw_only=True):
    """Producer ids from `next_id` on have not been allocated."""

    next_id: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class MemberRecord(StoredRecord, frozen=True, kw_only=True):
    """A group member as of the last completed rebalance; timeouts in milliseconds."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: Count = 0
    rebalance_timeout_ms: Count = 0
    subscription: bytes = b""
    """Its metadata for the chosen protocol."""
    assignment: bytes = b""


class GroupRecord(StoredRecord, frozen=True, kw_only=True):
    """A consumer group as of its last completed rebalance; `state_ms` is when its state last changed."""

    protocol_type: str = ""
    generation: Int32 = 0
    protocol: str | None = None
    leader: str | None = None
    members: list[MemberRecord] = []
    state_ms: Int64 = 0
    group_type: str = "classic"
    """`consumer` for a group whose members have records of their own; its generation is the group epoch."""

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent. A group that is too
        large for its record has a leader and a protocol, but no members."""
        if self.generation < 0:
            return f"generation {self.generation} is negative"
        if not self.members:
            return None
        member_ids = [member.member_id for member in self.members]
        if has_duplicates(member_ids):
            return "two members have the same id"
        if has_duplicates([m.instance_id for m in self.members if m.instance_id is not None]):
            return "two members have the same instance id"
        if self.protocol is None or not self.generation:
            return f"{len(member_ids)} members in generation {self.generation} with protocol {self.protocol!r}"
        return None if self.leader in member_ids else f"leader {self.leader!r} is not a member"


class ModernMemberRecord(StoredRecord, frozen=True, kw_only=True):
    """A member of a consumer group (KIP-848). Partitions are ranges such as `0-3,7` by topic id.

    `protocols` (in order of preference, with their metadata) and `session_timeout_ms` are set for a member that uses
    the classic protocol.
    """

    epoch: Int32
    previous_epoch: Int32 = 0
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: Int32 = -1
    topics: list[str] = []
    topic_pattern: str = ""
    assignor: str | None = None
    assigned: dict[UUID, str] = {}
    revoking: dict[UUID, str] = {}
    """Partitions that the member has to stop using."""
    protocols: dict[str, bytes] = {}
    session_timeout_ms: Count = 0


class GroupSettingsRecord(StoredRecord, frozen=True, kw_only=True):
    """Settings of a group, last changed at `changed_ms`."""

    settings: StoredSettings
    changed_ms: Int64 = 0


class OffsetRecord(StoredRecord, frozen=True, kw_only=True):
    """A committed offset. `leader_epoch` -1 is unknown; `expire_ms` -1 means the broker's retention applies."""

    offset: Int64
    leader_epoch: Int32 = -1
    metadata: str = ""
    commit_ms: Int64 = 0
    expire_ms: Int64 = -1


class ShardRecord(StoredRecord, frozen=True, kw_only=True):
    """The broker incarnation that coordinates a shard of groups and transactional ids. Each change increments the
    epoch."""

    broker_id: BrokerId
    broker_epoch: Int64
    epoch: Count


class ShardFenceRecord(StoredRecord, frozen=True, kw_only=True):
    """Written by the coordinator of `epoch` to change the revision of its key."""

    epoch: Count


class ShardCleanedRecord(StoredRecord, frozen=True, kw_only=True):
    """A shard has no committed offsets of topics with tombstones up to `revision`."""

    revision: Int64


class TxnState(Enum):
    """The state names of ListTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
"""States of a transaction that has partitions and groups."""
PREPARED_STATES = frozenset({"PrepareCommit", "PrepareAbort"})
"""States of a transaction whose outcome is decided and not yet known to all partitions."""


class TransactionRecord(StoredRecord, frozen=True, kw_only=True):
    """A transactional id (KIP-98). `partitions` and `groups` belong to the ongoing transaction.

    `number` counts transactions and is that of the ongoing or the last one, so that their messages are not confused.
    `last_epoch` is the previous epoch while the same producer may still use it (KIP-360), else -1; `last_producer_id`
    likewise, if this producer id replaced one whose epochs were exhausted.
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
    """Start of the ongoing transaction."""
    updated_ms: Int64 = 0
    number: Int64 = 0
    next_producer_id: Int64 = -1
    """The producer id, with epoch 0, once the prepared transaction is complete; -1 if the id remains."""

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        if self.state not in TxnState._value2member_map_:
            return f"unknown state {self.state!r}"
        if self.state not in OPEN_STATES and (self.partitions or self.groups):
            return f"a transaction in state {self.state} has partitions or groups"
        if self.last_producer_id >= 0 and self.last_epoch < 0:
            return f"last_producer_id is {self.last_producer_id} without last_epoch"
        if self.next_producer_id >= 0 and self.state not in PREPARED_STATES:
            return f"a transaction in state {self.state} has a next producer id"
        return None


class TxnOffsetRecord(StoredRecord, frozen=True, kw_only=True):
    """An offset committed in transaction `number`; when that commits, `record` becomes the group's offset."""

    transactional_id: str
    epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 15) - 1)]
    record: OffsetRecord
    number: Int64 = 0


def has_duplicates(values: Sequence[object]) -> bool:
    """Return whether a value occurs more than once."""
    return len(set(values)) < len(values)


@cache
def decoder(cls: type[R]) -> msgspec.json.Decoder[R]:
    """Return the decoder of a record type."""
    return msgspec.json.Decoder(cls)


def decode(cls: type[R], key: str, value: bytes) -> R:
    """Decode the value of `key`. Raises `BadRecord`."""
    try:
        record: R = decoder(cls).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise BadRecord(f'the value of "{key}" is not a valid {cls.__name__}: {e}') from None
    if (contradiction := record.contradiction()) is not None:
        raise BadRecord(f'the value of "{key}" is inconsistent: {contradiction}')
    return record


_encode = msgspec.json.Encoder().encode


def encode(record: StoredRecord) -> bytes:
    """Encode a record. It is one that `decode` accepts."""
    contradiction = record.contradiction()
    assert contradiction is None, f"{record} is inconsistent: {contradiction}"
    return _encode(record)
