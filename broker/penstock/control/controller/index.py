"""The controller's index of partitions: by broker, and of those that are in some way unfinished.

What a broker's coming or going concerns is found here, without looking at all partitions. It follows the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from penstock.state.view import ClusterView, PartitionView, TopicChange, TopicView


class PartitionId(NamedTuple):
    topic_id: UUID
    partition: int


class PartitionIndex:
    """`on_change` is called for each partition that is new or has changed, after it is in the index, `on_gone` for
    each that is no longer there; both are set by whoever made it.
    """

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.on_change: Callable[[PartitionId, PartitionView], None] = ignore
        self.on_gone: Callable[[PartitionId], None] = ignore
        self.by_broker: dict[int, dict[PartitionId, None]] = {}
        """The partitions of which a broker is a replica, those of a topic mostly next to each other: what is written in
        one transaction then concerns few topics, and each that it concerns has its view made anew."""
        self.reassigning: set[PartitionId] = set()
        self.unpreferred: set[PartitionId] = set()
        """Led by another than their first replica, or by none."""
        for topic in view.topics.values():
            self._add(topic)

    def get(self, key: PartitionId) -> tuple[TopicView, PartitionView] | None:
        topic = self.view.topics_by_id.get(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            return None
        return topic, topic.partitions[key.partition]

    def all(self) -> Iterable[PartitionId]:
        """Every partition: what a new controller has to look at once."""
        for topic in self.view.topics.values():
            for partition in topic.partitions:
                yield PartitionId(topic.topic_id, partition.index)

    def of(self, broker_id: int) -> Iterable[PartitionId]:
        return self.by_broker.get(broker_id, ())

    def take(self, changes: Iterable[TopicChange]) -> None:
        """Takes in what the view tells its listeners."""
        for change in changes:
            if change.new is None:
                assert change.old is not None, "a change has a topic"
                for partition in change.old.partitions:
                    self._forget(PartitionId(change.old.topic_id, partition.index), partition)
            elif change.old is None:
                self._add(change.new)
            else:
                self._update(change.new, change)

    def _add(self, topic: TopicView) -> None:
        for partition in topic.partitions:
            self._put(PartitionId(topic.topic_id, partition.index), None, partition)

    def _update(self, topic: TopicView, change: TopicChange) -> None:
        """A topic that was there has changed: with other settings all of its partitions are looked at."""
        topic_id = topic.topic_id
        for before, partition in change.differences():
            if partition is not None:
                self._put(PartitionId(topic_id, partition.index), before, partition)
            elif before is not None:
                self._forget(PartitionId(topic_id, before.index), before)
        assert change.old is not None, "it was there"
        if change.old.config is not topic.config:
            for partition in topic.partitions:
                self.on_change(PartitionId(topic_id, partition.index), partition)

    def _put(self, key: PartitionId, before: PartitionView | None, partition: PartitionView) -> None:
        if before is None or before.replicas != partition.replicas:
            for broker in before.replicas if before is not None else ():
                self._discard(broker, key)
            for broker in partition.replicas:
                self.by_broker.setdefault(broker, {})[key] = None
        (self.reassigning.add if partition.adding or partition.removing else self.reassigning.discard)(key)
        is_preferred = partition.leader == partition.replicas[0]
        (self.unpreferred.discard if is_preferred else self.unpreferred.add)(key)
        self.on_change(key, partition)

    def _forget(self, key: PartitionId, partition: PartitionView) -> None:
        for broker in partition.replicas:
            self._discard(broker, key)
        self.reassigning.discard(key)
        self.unpreferred.discard(key)
        self.on_gone(key)

    def _discard(self, broker: int, key: PartitionId) -> None:
        held = self.by_broker.get(broker)
        if held is not None:
            held.pop(key, None)
            if not held:
                del self.by_broker[broker]


def ignore(*what: object) -> None:
    """Nobody listens."""
