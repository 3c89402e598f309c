"""A broker's view of the cluster: what the store says, as of one revision. Read by everybody, written by `Watcher`.

Rooms above hold a `ClusterView` and look things up in it without waiting; they learn of changes by `subscribe`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from uuid import UUID

from penstock.config.values import TopicConfig


@dataclass(slots=True)
class PartitionView:
    """Who holds a partition. `isr` and `replicas` are broker ids, the preferred leader first in `replicas`.

    `revision` is that of the record: a change of the record is written on the condition that it is still the same.
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


@dataclass(slots=True)
class TopicView:
    """A topic; `overrides` are the settings given for it, by name; `config` is what follows with the defaults."""

    name: str
    topic_id: UUID
    partitions: list[PartitionView]
    overrides: dict[str, str]
    config: TopicConfig
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Where a listener can be reached from outside."""

    listener: str
    host: str
    port: int


@dataclass(slots=True)
class BrokerView:
    """A broker that is registered, so alive as far as the store knows. `epoch` names this incarnation of it."""

    broker_id: int
    endpoints: list[BrokerEndpoint]
    rack: str | None = None
    epoch: int = -1
    failure_domain: str = ""
    draining: bool = False

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class ShardView:
    """Who coordinates a shard of groups and transactional ids. `revision` is that of the record: a coordinator's writes
    compare it."""

    broker_id: int
    broker_epoch: int
    epoch: int
    revision: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic before and after: no `old` for a new one, no `new` for a deleted one; a recreated one is two changes."""

    old: TopicView | None
    new: TopicView | None
    indexes: Collection[int] | None = None
    """The partitions that differ, where nothing else of the topic does; None where that is not known."""

    def differences(self) -> Iterator[tuple[PartitionView | None, PartitionView | None]]:
        """(before, after) of each partition that differs, None where there is none; looks at those alone if it can."""
        before = self.old.partitions if self.old is not None else []
        after = self.new.partitions if self.new is not None else []
        if self.indexes is not None:
            yield from ((before[index], after[index]) for index in self.indexes)
            return
        yield from ((b, a) for b, a in zip_longest(before, after) if b is not a)


@dataclass
class ClusterView:
    """The view. Objects in it are replaced, not changed in place, when the store changes."""

    cluster_id: str = ""
    feature_level: int = 1
    """What formats may be used in the store and between brokers: see `control.features`."""
    controller_id: int = -1
    controller_epoch: int = 0
    revision: int = 0
    brokers: dict[int, BrokerView] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)
    topics_by_id: dict[UUID, TopicView] = field(default_factory=dict)
    deleting: set[UUID] = field(default_factory=set)
    """Topics whose deletion was decided (a tombstone): their data may be removed. A topic that is missing from the view
    for another reason may not."""
    listeners: list[Callable[[list[TopicChange]], None]] = field(default_factory=list)

    shards: dict[int, ShardView] = field(default_factory=dict)
    """By number; those that nobody was ever given are missing, and all are where there is one broker."""
    shard_listeners: list[Callable[[set[int]], None]] = field(default_factory=list)

    broker_listeners: list[Callable[[], None]] = field(default_factory=list)

    def subscribe_brokers(self, listener: Callable[[], None]) -> None:
        """Calls `listener`, on the loop, after `brokers` has changed."""
        self.broker_listeners.append(listener)

    def subscribe_shards(self, listener: Callable[[set[int]], None]) -> None:
        """Calls `listener`, on the loop, with the numbers of shards that changed, after they are in the view."""
        self.shard_listeners.append(listener)

    def shard_owner(self, number: int) -> BrokerView | None:
        """The broker that coordinates a shard, if that incarnation of it is alive."""
        shard = self.shards.get(number)
        broker = self.brokers.get(shard.broker_id) if shard is not None else None
        return broker if broker is not None and shard is not None and broker.epoch == shard.broker_epoch else None

    def subscribe(self, listener: Callable[[list[TopicChange]], None]) -> None:
        """Calls `listener`, on the loop, with each revision's changes of topics after they are in the view."""
        self.listeners.append(listener)

    def topic_partition(self, name: str, index: int) -> PartitionView | None:
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]
