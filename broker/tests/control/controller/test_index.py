"""The controller's index of partitions follows the view and reports removed partitions."""

from __future__ import annotations

from uuid import UUID

from penstock.config.topic import TopicConfig
from penstock.control.controller.index import PartitionId, PartitionIndex
from penstock.state.view import ClusterView, PartitionView, TopicChange, TopicView

A = UUID(int=10)


def topic_of(*replicas: list[int]) -> TopicView:
    partitions = [PartitionView(i, held, held[-1], 0, held) for i, held in enumerate(replicas)]
    return TopicView("t", A, partitions, {}, CONFIG)


CONFIG = TopicConfig()


class Observed:
    """An index of an empty view, and the partitions that it reported."""

    def __init__(self) -> None:
        self.index = PartitionIndex(ClusterView())
        self.changed: list[int] = []
        self.removed: list[int] = []
        self.index.on_change = lambda key, partition: self.changed.append(key.partition)
        self.index.on_removed = lambda key: self.removed.append(key.partition)

    def apply(self, old: TopicView | None, new: TopicView | None) -> tuple[list[int], list[int]]:
        self.changed, self.removed = [], []
        self.index.apply_changes([TopicChange(old, new)])
        return self.changed, self.removed


def test_a_deleted_topic_is_reported_partition_by_partition_and_leaves_nothing_behind() -> None:
    observed, topic = Observed(), topic_of([1, 2], [2])
    assert observed.apply(None, topic) == ([0, 1], [])
    assert observed.index.unpreferred == {PartitionId(A, 0)}
    assert observed.apply(topic, None) == ([], [0, 1])
    assert (observed.index.by_broker, observed.index.unpreferred) == ({}, set())


def test_a_topic_that_shrinks_reports_the_partitions_that_are_gone() -> None:
    observed, grown, shrunk = Observed(), topic_of([1], [2]), topic_of([1])
    observed.apply(None, grown)
    assert observed.apply(grown, shrunk)[1] == [1]
    assert list(observed.index.by_broker) == [1]


def test_other_settings_of_a_topic_change_all_of_its_partitions() -> None:
    observed, before = Observed(), topic_of([1], [2])
    after = TopicView("t", A, before.partitions, {}, TopicConfig())
    observed.apply(None, before)
    assert observed.apply(before, after)[0] == [0, 1]
