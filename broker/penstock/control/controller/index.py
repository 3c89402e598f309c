"""The controller's index of partitions: by broker, reassigning, and not led by the preferred replica.

It finds the partitions that a broker's registration or absence affects without a scan of all partitions. It follows the
view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from penstock.state.view import ClusterView, PartitionView, TopicChange, TopicView


class PartitionId(NamedTuple):
    """Topic id and partition number."""

    topic_id: UUID
    partition: int


class PartitionIndex:
    """Follows the view. `on_change` is called for each new or changed partition, `on_removed` for each removed one,
    after the index has the change; the owner sets both."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.on_change: Callable[[PartitionId, PartitionView], None] = ignore
        self.on_removed: Callable[[PartitionId], None] = ignore
        self.by_broker: dict[int, dict[PartitionId, None]] = {}
        """Partitions by replica, mostly grouped by topic, so that one transaction concerns few topics and few topic
        views are rebuilt."""
        self.reassigning: set[PartitionId] = set()
        self.unpreferred: set[PartitionId] = set()
        """Partitions not led by their first replica."""
        for topic in view.topics.values():
            self._add(topic)

    def get(self, key: PartitionId) -> tuple[TopicView, PartitionView] | None:
        """Return a partition and its topic; None if it does not exist."""
        topic = self.view.topics_by_id.get(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            return None
        return topic, topic.partitions[key.partition]

    def all(self) -> Iterable[PartitionId]:
        """Return every partition, for a new controller."""
        for topic in self.view.topics.values():
            for partition in topic.partitions:
                yield PartitionId(topic.topic_id, partition.index)

    def partitions_on(self, broker_id: int) -> Iterable[PartitionId]:
        """Return the partitions that have a replica on a broker."""
        return self.by_broker.get(broker_id, ())

    def apply_changes(self, changes: Iterable[TopicChange]) -> None:
        """Apply changes of the view."""
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
        """Apply a changed topic; with other settings all of its partitions count as changed."""
        topic_id = topic.topic_id
        for before, partition in change.differences():
            if partition is not None:
                self._put(PartitionId(topic_id, partition.index), before, partition)
            elif before is not None:
                self._forget(PartitionId(topic_id, before.index), before)
        assert change.old is not None, "an update has the topic before"
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
        self.on_removed(key)

    def _discard(self, broker: int, key: PartitionId) -> None:
        held = self.by_broker.get(broker)
        if held is not None:
            held.pop(key, None)
            if not held:
                del self.by_broker[broker]


def ignore(*what: object) -> None:
    """Do nothing: the default callback."""
