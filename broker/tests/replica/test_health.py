"""The counts of under-replicated and leaderless partitions."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.config.topic import TopicConfig, resolve
from penstock.replica.health import ReplicaHealth, count_health
from penstock.state.view import PartitionView, TopicView


def of(replicas: list[int], leader: int, isr: list[int], adding: list[int] | None = None) -> PartitionView:
    return PartitionView(0, replicas, leader, 0, isr, adding=adding or [])


@pytest.mark.parametrize(
    ("partition", "health"),
    [
        (of([1, 2, 3], 1, [1, 2, 3]), ReplicaHealth()),
        (of([1, 2, 3], 1, [1, 3]), ReplicaHealth(under_replicated=1, at_min_isr=1)),
        (of([1, 2, 3], 1, [1]), ReplicaHealth(under_replicated=1, under_min_isr=1)),
        (of([1, 2, 3, 4], 1, [1, 2, 3]), ReplicaHealth(under_replicated=1)),
        (of([2, 1, 3], 2, [2]), ReplicaHealth()),
        (of([1], 1, [1]), ReplicaHealth()),
        (of([1, 2], 1, [1]), ReplicaHealth(under_replicated=1, under_min_isr=1)),
        (of([1, 2, 3, 4], 1, [1, 2, 3], adding=[4]), ReplicaHealth()),
        (of([1, 2, 3], -1, [2]), ReplicaHealth(leaderless=1)),
        (of([2, 1, 3], 9, [9]), ReplicaHealth(leaderless=1)),
        (of([2, 3], -1, [2]), ReplicaHealth()),
    ],
)
def test_a_broker_tells_what_it_leads_and_what_nobody_leads(partition: PartitionView, health: ReplicaHealth) -> None:
    config = resolve({"min.insync.replicas": "2"}, TopicConfig())
    topic = TopicView("t", UUID(int=1), [partition], {}, config)
    assert count_health([topic], {1, 2, 3, 4}, 1) == health
    assert count_health([topic] * 3, {1, 2, 3, 4}, 1) == ReplicaHealth(*(3 * count for count in health))
