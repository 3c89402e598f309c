"""The counts of representative partitions differ between brokers as those of all partitions do."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.topic import TopicConfig
from penstock.control.replica_placer import MAX_REPRESENTATIVES, ReplicaPlacer, representative_partitions
from penstock.state.view import BrokerView, ClusterView, PartitionView, TopicChange, TopicView


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(st.data())
def test_each_broker_is_as_far_ahead_in_the_representatives_as_in_all_partitions(data) -> None:
    brokers = list(range(data.draw(st.integers(2, 6))))
    partitions = data.draw(
        st.lists(st.lists(st.sampled_from(brokers), min_size=1, max_size=3, unique=True), max_size=60)
    )
    replicas = Counter(b for held in partitions for b in held)
    leaders = Counter(held[0] for held in partitions)
    made = list(representative_partitions(replicas, leaders, brokers).values())
    assert all(len(set(held)) == len(held) for held in made)
    for counts, shown in (
        (replicas, Counter(b for held in made for b in held)),
        (leaders, Counter(held[0] for held in made)),
    ):
        assert len({counts[b] - shown[b] for b in brokers}) == 1


def test_a_broker_that_is_new_among_full_ones_is_shown_by_few() -> None:
    counts = Counter({1: 100_000, 2: 100_000, 3: 0})
    assert len(representative_partitions(counts, Counter({1: 50_000, 2: 50_000}), [1, 2, 3])) <= 2 * MAX_REPRESENTATIVES


def topic_of(*replicas: list[int]) -> TopicView:
    partitions = [PartitionView(i, held, held[0], 0, held) for i, held in enumerate(replicas)]
    return TopicView("t", UUID(int=1), partitions, {}, TopicConfig())


def test_counts_follow_topics_that_grow_move_and_go() -> None:
    view = ClusterView(brokers={b: BrokerView(b, []) for b in (1, 2)})
    placer = ReplicaPlacer(view)
    first, grown = topic_of([1, 2]), topic_of([1, 2], [1])
    moved = topic_of([2, 1], [2])
    placer.apply_changes([TopicChange(None, first)])
    placer.apply_changes([TopicChange(first, grown)])
    assert placer.place(1, 1, ()) == [[2]]
    placer.apply_changes([TopicChange(grown, moved)])
    assert placer.place(1, 1, ()) == [[1]]
    placer.apply_changes([TopicChange(moved, None)])
    assert not any([*placer._replicas.values(), *placer._leaders.values()]), (placer._replicas, placer._leaders)
