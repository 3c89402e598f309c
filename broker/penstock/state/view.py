"""A broker's view of the cluster: the store's content as of one revision. Written only by `Watcher`.

Other packages read a `ClusterView` synchronously and learn of changes by `subscribe`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from uuid import UUID

from penstock.config.topic import TopicConfig
from penstock.state.security_view import SecurityView


@dataclass(slots=True)
class PartitionView:
    """A partition. `isr` and `replicas` are broker ids; `replicas` has the preferred leader first.

    `revision` is that of the record; changes of the record are written on the condition that it is the same.
    """

    index: int
    replicas: list[int]
    leader: int
    leader_epoch: int
    isr: list[int]
    isr_epochs: list[int] = field(default_factory=list)
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    eligible: list[int] = field(default_factory=list)
    last_isr: list[int] = field(default_factory=list)
    revision: int = 0


@dataclass(frozen=True, slots=True)
class ShrinkView:
    """A topic's reduced number of partitions; see `shrink_records.ShrinkRecord`."""

    remaining: int
    shown: int
    revision: int = 0


@dataclass(frozen=True, slots=True)
class SealView:
    """A partition's seal; see `shrink_records.SealRecord`."""

    offset: int = -1
    target: int = -1
    drained_offset: int = -1
    has_records: bool = True
    gaps: tuple[tuple[int, int], ...] = ()
    revision: int = 0


NO_SEALS: Mapping[int, SealView] = {}


@dataclass(slots=True)
class TopicView:
    """A topic; `overrides` are its own settings by name, `config` the effective ones.

    `partitions` includes those that clients no longer see after their number was reduced.
    """

    name: str
    topic_id: UUID
    partitions: list[PartitionView]
    overrides: Mapping[str, str]
    config: TopicConfig
    is_internal: bool = False
    shrink: ShrinkView | None = None
    seals: Mapping[int, SealView] = field(default_factory=lambda: NO_SEALS)
    """By partition."""

    @property
    def shown_count(self) -> int:
        """The number of partitions that clients see."""
        count = len(self.partitions)
        return count if self.shrink is None else min(self.shrink.shown, count)

    @property
    def shown_partitions(self) -> list[PartitionView]:
        """The partitions that clients see."""
        return self.partitions if self.shrink is None else self.partitions[: self.shrink.shown]


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """The advertised address of a listener."""

    listener: str
    host: str
    port: int


@dataclass(slots=True)
class BrokerView:
    """A registered broker, so alive as far as the store knows. `epoch` identifies its incarnation."""

    broker_id: int
    endpoints: list[BrokerEndpoint]
    rack: str | None = None
    epoch: int = -1
    failure_domain: str = ""
    draining: bool = False

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Return the endpoint of a listener; None if it has none."""
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class ShardView:
    """The coordinator of a shard of groups and transactional ids. Its writes compare `revision`, that of the record."""

    broker_id: int
    broker_epoch: int
    epoch: int
    revision: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic before and after: `old` is None for a new topic, `new` for a deleted one. A recreated topic is two
    changes."""

    old: TopicView | None
    new: TopicView | None
    indexes: Collection[int] | None = None
    """The changed partitions if only partitions have changed; None if unknown."""

    def differences(self) -> Iterator[tuple[PartitionView | None, PartitionView | None]]:
        """Yield (before, after) of each changed partition, None for a missing one."""
        before = self.old.partitions if self.old is not None else []
        after = self.new.partitions if self.new is not None else []
        if self.indexes is not None:
            yield from ((before[index], after[index]) for index in self.indexes)
            return
        yield from ((b, a) for b, a in zip_longest(before, after) if b is not a)


@dataclass
class ClusterView:
    """The view. Objects in it are replaced, never changed in place."""

    cluster_id: str = ""
    feature_level: int = 1
    """Level of the formats in the store and between brokers: see `control.features`."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Levels of Kafka's features, by name, as in the cluster's record."""
    features_epoch: int = 0
    controller_id: int = -1
    controller_epoch: int = 0
    revision: int = 0
    brokers: dict[int, BrokerView] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)
    topics_by_id: dict[UUID, TopicView] = field(default_factory=dict)
    deleting: set[UUID] = field(default_factory=set)
    """Topics with a tombstone: their data may be removed. A topic that is missing from the view for another reason must
    be kept."""
    listeners: list[Callable[[list[TopicChange]], None]] = field(default_factory=list)

    shards: dict[int, ShardView] = field(default_factory=dict)
    """By number; unassigned shards are missing. Empty without a cluster."""
    shard_listeners: list[Callable[[set[int]], None]] = field(default_factory=list)

    broker_listeners: list[Callable[[], None]] = field(default_factory=list)

    security: SecurityView = field(default_factory=SecurityView)
    """Credentials, ACLs and quotas."""
    security_listeners: list[Callable[[set[str]], None]] = field(default_factory=list)

    def subscribe_security(self, listener: Callable[[set[str]], None]) -> None:
        """Call `listener` on the event loop with the store keys of changed credentials, ACLs and quotas."""
        self.security_listeners.append(listener)

    def subscribe_brokers(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the event loop after `brokers` has changed."""
        self.broker_listeners.append(listener)

    def subscribe_shards(self, listener: Callable[[set[int]], None]) -> None:
        """Call `listener` on the event loop with the numbers of changed shards, once the view has them."""
        self.shard_listeners.append(listener)

    def shard_owner(self, number: int) -> BrokerView | None:
        """Return the broker that coordinates a shard, if that incarnation is alive."""
        shard = self.shards.get(number)
        broker = self.brokers.get(shard.broker_id) if shard is not None else None
        return broker if broker is not None and shard is not None and broker.epoch == shard.broker_epoch else None

    def subscribe(self, listener: Callable[[list[TopicChange]], None]) -> None:
        """Call `listener` on the event loop with the topic changes of each revision, once the view has them."""
        self.listeners.append(listener)

    def topic_partition(self, name: str, index: int) -> PartitionView | None:
        """Return a partition by topic name; None if it does not exist."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]
