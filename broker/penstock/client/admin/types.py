"""Parameters and results of the admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.client.errors import ClientError
from penstock.client.types import Node, OffsetAndMetadata, TopicPartition
from penstock.wire.errors import ErrorCode

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
"""Types of groups: the classic protocol, KIP-848, KIP-932."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the broker's default for partitions or replication factor.

    `assignment` sets the brokers of each partition instead of both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created or (with `validate_only`) validated topic; -1 if an old broker does not return the number."""

    name: str
    partitions: int
    replication_factor: int
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting. `source` is "topic", "group", "broker", "cluster", "static" or "default"."""

    name: str
    value: str | None
    source: str
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Return whether the value is not set for the resource or dynamically."""
        return self.source not in ("topic", "group", "broker", "cluster")


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster's id, controller (-1 if unknown) and brokers."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list; `state` is empty if an old broker does not return it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = ""
    """`classic`, `consumer` or `share`; empty if an old broker does not return it."""


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The start offset of a share group in a partition; `lag` is None if it is unknown (KIP-1226)."""

    start: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A group member and its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group: `state` is the protocol's (Stable, Empty, Dead, ...), `protocol` the selected assignor.

    `group_type` is "classic", "consumer" or "share".
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    group_type: str = CLASSIC

    @property
    def is_active(self) -> bool:
        """Return whether the group has members."""
        return bool(self.members) or self.state in ("Stable", "PreparingRebalance", "CompletingRebalance")


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group's lag in one partition; `committed` is None if nothing was committed.

    `lag_ms` is the age of the first unread record, by its batch's largest timestamp: 0 if all is read, None if unknown
    (brokers other than Penstock, or no committed offset).
    """

    committed: OffsetAndMetadata | None
    start_offset: int
    end_offset: int
    lag_ms: int | None = None

    @property
    def lag(self) -> int | None:
        """Return the lag in records; None without a committed offset."""
        return None if self.committed is None else max(self.end_offset - self.committed.offset, 0)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's lag by partition with a committed offset, and errors of partitions whose lag is unknown."""

    partitions: Mapping[TopicPartition, PartitionLag]
    errors: Mapping[TopicPartition, ClientError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerCertificate:
    """The certificate in use on a listener or the HTTP port of a broker. `expires_ms` is in ms since 1970.

    `reload_error` is why the broker has not loaded what has replaced it, None if nothing failed.
    """

    listener: str
    expires_ms: int
    reload_error: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """A broker's version. `release` is empty if unknown.

    The levels are those of the feature `penstock.version` (docs/decisions/0018), 0 without it: the cluster's level, and
    the highest that the broker supports.
    """

    release: str
    level: int
    highest_level: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """A broker's log directory: bytes by partition; -1 for sizes that an old broker does not return.

    If `error` is not NONE, the directory has failed and nothing else is known.
    """

    broker_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    partitions: Mapping[TopicPartition, int]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """The quotas of an entity by key. `entity` has names by type (`user`, `client-id`, `ip`), None for the default."""

    entity: Mapping[str, str | None]
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """A change of one setting. Operations: "set", "delete" (reset to the default), "append" and "subtract" (lists)."""

    name: str
    value: str | None = None
    operation: str = "set"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas change. `replicas` has the target replicas, then those being removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """Return the target replicas, preferred leader first."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """Return the replicas that a cancellation restores."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """What a broker tells about a user's credential: the mechanism and its number of iterations."""

    mechanism: str
    iterations: int
