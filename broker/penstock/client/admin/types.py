"""What the admin client takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.client.errors import ClientError
from penstock.client.types import Node, OffsetAndMetadata, TopicPartition
from penstock.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 leaves partitions or replication factor to the broker's defaults.

    `assignment` names the brokers of each partition, instead of both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as the broker made it (or would make it, with `validate_only`); -1 where an old broker does not say."""

    name: str
    partitions: int
    replication_factor: int
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `source` is where its value comes from: "topic", "group", "broker", "cluster", "static",
    "default"."""

    name: str
    value: str | None
    source: str
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source not in ("topic", "group", "broker", "cluster")


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster's id, its controller (-1: none known) and its brokers."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as a list shows it; `state` is empty where an old broker does not say."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group: `state` as the protocol names it (Stable, Empty, Dead, ...), `protocol` the assignor it chose."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]

    @property
    def is_active(self) -> bool:
        return bool(self.members) or self.state in ("Stable", "PreparingRebalance", "CompletingRebalance")


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition; `committed` None where it committed nothing.

    `lag_ms` is how long ago the first record that it has not read was written, by the largest timestamp of its batch: 0
    where all is read, None where that is not known (by brokers other than Penstock's, or without a commit).
    """

    committed: OffsetAndMetadata | None
    start_offset: int
    end_offset: int
    lag_ms: int | None = None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else max(self.end_offset - self.committed.offset, 0)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's lag by partition, of those that it has committed; and why it is not known of others."""

    partitions: Mapping[TopicPartition, PartitionLag]
    errors: Mapping[TopicPartition, ClientError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """What a broker runs. `release` is empty where it does not say; the levels are of the feature `penstock.version`
    (docs/decisions/0018), 0 where it has none: the one that the cluster uses, and the highest that the broker knows."""

    release: str
    level: int
    highest_level: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker: bytes by partition; -1 for sizes an old broker does not say.

    `error` is NONE unless the directory cannot be used; then nothing else is known of it.
    """

    broker_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    partitions: Mapping[TopicPartition, int]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """A change to one setting: operation "set", "delete" (back to the default), "append", "subtract" (lists)."""

    name: str
    value: str | None = None
    operation: str = "set"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas change: `replicas` has those wanted, then those that go; `adding` are yet to come."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that are wanted, the preferred leader first."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas that a cancellation goes back to."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)
