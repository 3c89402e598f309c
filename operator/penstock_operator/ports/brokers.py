"""Interface to the brokers of one cluster. All operations use the Kafka admin protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol
from uuid import UUID

from penstock_operator.ports.access import AccessGateway

OWNER = "penstock.owner"
"""Topic and group setting: UID of the owning object."""
DELETION_POLICY = "penstock.deletion.policy"
RESET_ID = "penstock.reset.id"
"""Group setting: id of the newest completed reset."""
REPLAY_ID = "penstock.replay.id"
"""Group setting: id of the newest completed replay of dead letters."""
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
"""Group setting: topic of a share group's dead letters (KIP-1191)."""
HIBERNATED = "ClusterHibernated"
"""Code of the error of each request to a hibernated cluster, and reason of the conditions that follow from it."""
ShrinkState = Literal["sealing", "draining", "retired", "opening"]
"""`retired`: clients no longer see the sealed partitions. `opening`: the number was increased again."""
CLASSIC, SHARE = "classic", "share"
"""Types of groups, beside `consumer`."""


class BrokersError(Exception):
    """A request was rejected or not answered. `code`: Kafka error name; `is_passing`: whether a retry may succeed."""

    def __init__(self, message: str, *, code: str = "", is_passing: bool = True) -> None:
        super().__init__(message)
        self.code, self.is_passing = code, is_passing

    @property
    def is_hibernated(self) -> bool:
        """Whether the cluster is hibernated, and no retry is needed before it wakes."""
        return self.code == HIBERNATED


@dataclass(frozen=True, slots=True)
class ObservedPartition:
    """State of a partition."""

    leader: int
    """Broker id; -1: no leader."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class ObservedSeal(NamedTuple):
    """A sealed partition: records from `offset` on are relayed to partition `target`."""

    partition: int
    offset: int
    target: int
    is_hidden: bool
    """Whether clients no longer see the partition."""


@dataclass(frozen=True, slots=True)
class ObservedShrink:
    """A topic whose number of partitions was reduced to `remaining`, with the sealed partitions in order."""

    remaining: int
    state: ShrinkState
    seals: tuple[ObservedSeal, ...] = ()


class ObservedReader(NamedTuple):
    """A group that has not read `partitions` sealed partitions to their seals; `lag` is the number of their records."""

    group_id: str
    partitions: int
    lag: int


@dataclass(frozen=True, slots=True)
class ObservedTopicState:
    """State of a topic. `partitions` are those that clients see. `settings`: the topic's own settings, including
    `OWNER`."""

    name: str
    topic_id: UUID
    partitions: tuple[ObservedPartition, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    shrink: ObservedShrink | None = None
    """None: the topic has no sealed partitions, or they were not requested."""


@dataclass(frozen=True, slots=True)
class ObservedBrokerState:
    """State of a broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    failure_domain: str
    is_draining: bool
    is_removable: bool
    version: str
    """Release that the broker reports; empty if it reports none."""
    answers: bool = True
    """Whether the broker answered; otherwise the last known state, or defaults."""


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """Registered brokers of a cluster."""

    cluster_id: str
    controller_id: int
    brokers: tuple[ObservedBrokerState, ...]


@dataclass(frozen=True, slots=True)
class ObservedOffset:
    """Committed offset of a group in a partition, or the start offset of a share group."""

    topic: str
    partition: int
    committed: int
    lag: int | None
    """Number of records not yet consumed; None if it is unknown, for example without a leader."""
    lag_ms: int | None = None
    """Age of the oldest record not yet consumed, in ms; 0: no lag, None: unknown."""


@dataclass(frozen=True, slots=True)
class ObservedDeadLetters:
    """The dead letters of a share group: `oldest_ms` is the time of the first one in ms since 1970, if there is one."""

    topic: str
    depth: int
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A replay of a group's dead letters. `run` names it for the brokers: 1 to 32 digits and small letters. `ends`: the
    offset where it ends, by partition. Empty texts and None select all letters of the group."""

    run: str
    topic: str
    group_id: str
    ends: tuple[int, ...]
    rate_per_s: int
    source_topic: str = ""
    reason: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    target: str = ""
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ReplayCount:
    """Letters of a replay, including those that interrupted attempts of the same run have replayed."""

    replayed: int = 0
    skipped: int = 0
    without_record: int = 0
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class ObservedGroupState:
    """State of a group of any type."""

    group_id: str
    state: str
    """Stable, Empty, PreparingRebalance, CompletingRebalance, Assigning, Reconciling, Dead."""
    members: int
    offsets: tuple[ObservedOffset, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    group_type: str = CLASSIC
    dead_letters: ObservedDeadLetters | None = None


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """A topic to create; None: the broker default."""

    name: str
    partitions: int | None
    replicas: int | None
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigPatch:
    """Setting changes of one topic, broker or group; None resets a setting to its default."""

    name: str
    settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate with its key, and the CAs that brokers' certificates must be signed by, as PEM."""

    ca: str
    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """How the operator connects to the brokers of a cluster: a port, and the certificate if it has mutual TLS."""

    port: int
    certificate: ClientCertificate | None = None


class BrokerProber(Protocol):
    """Makes TLS handshakes with single brokers."""

    async def presented(self, host: str, port: int, certificate: ClientCertificate) -> tuple[str, bool]:
        """Return the SHA-256 fingerprint of the certificate that a broker presents ("": it did not answer), and whether
        it accepted the client certificate. Does not raise because of the broker. Has a timeout of 5 s."""


class BrokerGateway(AccessGateway, Protocol):
    """Operations on one cluster. Batch operations return None or an error per item. All operations have a timeout and
    raise `BrokersError` if no broker answers."""

    async def describe_cluster(self) -> BrokerSnapshot:
        """Return the registered brokers."""

    async def topics(
        self, names: Sequence[str] | None = None, *, settings: bool | Collection[str] = True, shrinks: bool = False
    ) -> dict[str, ObservedTopicState]:
        """Return the existing topics of `names`, or all non-internal topics, with ongoing reassignments. `settings`
        selects the settings to return: all settings of many topics are expensive. `shrinks` requests `shrink` of named
        topics; if all topics are returned, they have it anyway."""

    async def min_insync(self, names: Collection[str]) -> dict[str, int]:
        """Return the effective `min.insync.replicas` by topic; without topics that do not exist or do not report it."""

    async def create_topics(self, topics: Sequence[TopicCreation]) -> dict[str, BrokersError | None]:
        """Create topics."""

    async def grow_topics(self, partitions: Mapping[str, int]) -> dict[str, BrokersError | None]:
        """Increase partition counts to the given totals."""

    async def shrink_topics(self, partitions: Mapping[str, int]) -> dict[str, BrokersError | None]:
        """Decrease partition counts to the given totals: seal the surplus partitions. `grow_topics` takes it back."""

    async def waiting_readers(self, names: Collection[str]) -> dict[str, tuple[ObservedReader, ...]]:
        """Return the groups that draining topics wait for, the largest lag first. Reads the offsets of all groups."""

    async def delete_topics(self, topics: Mapping[str, UUID]) -> dict[str, BrokersError | None]:
        """Delete topics that still have the given id."""

    async def change_topics(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        """Change topic settings."""

    async def change_brokers(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        """Change dynamic broker settings, by broker id as text; "": cluster-wide."""

    async def broker_settings(self, broker_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        """Return the dynamic settings of each broker, per-broker and cluster-wide, without static ones and defaults;
        without brokers that do not answer."""

    async def reassign(
        self, targets: Mapping[tuple[str, int], tuple[int, ...] | None]
    ) -> dict[tuple[str, int], BrokersError | None]:
        """Start reassignments: replicas by partition, the preferred leader first; None cancels one."""

    async def replica_sizes(self) -> dict[tuple[str, int], int]:
        """Return the bytes of the largest replica of each partition, with one request per broker."""

    async def elect_preferred(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        """Elect the preferred leaders of `partitions`, or of all partitions."""

    async def group_ids(self) -> dict[str, str]:
        """Return the state of each group by id, with one request per broker."""

    async def groups(self, group_ids: Sequence[str]) -> dict[str, ObservedGroupState]:
        """Return groups with offsets and lag; without groups that do not exist."""

    async def change_groups(self, changes: Sequence[ConfigPatch]) -> dict[str, BrokersError | None]:
        """Change group settings."""

    async def offsets_at(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Return offsets by time in ms since the epoch (-2 earliest, -1 latest); the end offset if no record is as
        late."""

    async def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int], *, is_share: bool = False) -> None:
        """Commit offsets for a group, or set the start offsets of a share group. Raises `BrokersError` (not passing) if
        the group has members."""

    async def replay_letters(self, request: ReplayRequest, on_progress: Callable[[ReplayCount], object]) -> ReplayCount:
        """Send the records of dead letters again, each one once, and return when all are sent. Cancel it to interrupt
        the replay. It has no timeout."""

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, BrokersError | None]:
        """Delete groups."""

    async def close(self) -> None:
        """Close the connections. Idempotent."""
