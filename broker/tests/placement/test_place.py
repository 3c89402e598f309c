"""Placement of the partitions of a new topic, and of partitions added to a topic."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.placement.model import BadInputError, NoBrokersError, PartitionKey, TooFewBrokersError
from penstock.placement.place import place_partitions
from penstock.placement.plan import plan_moves


def cluster_of(placed, topic="new", first=0):
    return {PartitionKey(topic, first + i): tuple(replicas) for i, replicas in enumerate(placed)}


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_new_partitions_are_spread_and_nothing_new_goes_to_excluded_brokers(spec, data):
    brokers = data.draw(spec.any_shapes())
    existing = data.draw(spec.clusters(brokers))
    factor = data.draw(st.integers(1, len(spec.usable(brokers))))
    count = data.draw(st.integers(0, 30))
    placed = place_partitions(brokers, existing, count, factor, topic=data.draw(st.sampled_from([None, "t0"])))
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert spec.is_spread(brokers, replicas)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(data=st.data())
def test_topics_created_one_after_the_other_leave_replicas_and_leaders_within_one(spec, data):
    brokers = data.draw(spec.equal_shapes(most=12))
    cluster = {}
    for topic in range(data.draw(st.integers(1, 8))):
        factor = data.draw(st.integers(1, min(4, len(brokers))))
        placed = cluster_of(place_partitions(brokers, cluster, data.draw(st.integers(1, 25)), factor), f"t{topic}")
        replicas, leaders = spec.counts(placed)
        assert spec.is_even(brokers, replicas)
        assert spec.is_even(brokers, leaders)
        cluster.update(placed)
        assert spec.is_even(brokers, spec.counts(cluster)[0])


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(data=st.data())
def test_what_was_placed_needs_no_moves(spec, data):
    """Holds for the first topic of a cluster, in domains of any shape."""
    brokers = data.draw(spec.any_shapes(most=12, excluded=False))
    factor = data.draw(st.integers(1, min(4, len(brokers))))
    placed = cluster_of(place_partitions(brokers, {}, data.draw(st.integers(1, 60)), factor))
    assert spec.copied(plan_moves(brokers, placed)) == 0


@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(data=st.data())
def test_partitions_added_to_a_topic_keep_it_within_one(spec, data):
    brokers = data.draw(spec.equal_shapes(most=12))
    factor = data.draw(st.integers(1, min(4, len(brokers))))
    cluster = {}
    for _ in range(3):
        added = place_partitions(brokers, cluster, data.draw(st.integers(0, 20)), factor, topic="t")
        cluster.update(cluster_of(added, "t", len(cluster)))
        if cluster:
            replicas, _ = spec.counts(cluster)
            assert spec.is_even(brokers, replicas)


@pytest.mark.slow
@settings(deadline=None)
@given(data=st.data())
def test_the_order_of_the_input_makes_no_difference(spec, data):
    brokers = data.draw(spec.any_shapes())
    existing = data.draw(spec.clusters(brokers))
    factor = data.draw(st.integers(1, len(spec.usable(brokers))))
    shuffled = dict(data.draw(st.permutations(list(existing.items()))))
    assert place_partitions(data.draw(st.permutations(brokers)), shuffled, 12, factor) == place_partitions(
        brokers, existing, 12, factor
    )


def test_topics_do_not_all_begin_on_the_first_broker(spec):
    brokers, cluster = spec.flat(5), {}
    for topic in range(5):
        cluster.update(cluster_of(place_partitions(brokers, cluster, 1, 1), f"t{topic}"))
    assert sorted(replicas[0] for replicas in cluster.values()) == [0, 1, 2, 3, 4]


def test_an_emptier_broker_takes_more_only_where_the_topic_leaves_it_open(spec):
    brokers = spec.flat(3)
    crowded = {PartitionKey("old", i): (0, 1) for i in range(10)}
    replicas, _ = spec.counts(cluster_of(place_partitions(brokers, crowded, 4, 1)))
    assert replicas == Counter({2: 2, 0: 1, 1: 1})


def test_partitions_added_to_a_lopsided_topic_go_where_it_has_least(spec):
    lopsided = {PartitionKey("t", i): (0,) for i in range(3)}
    replicas, _ = spec.counts(cluster_of(place_partitions(spec.flat(3), lopsided, 6, 1, topic="t")))
    assert replicas == Counter({1: 3, 2: 3})


def test_what_a_broker_leads_and_holds_is_shared_with_many_others(spec):
    """If a broker fails, many brokers share its leaderships and the copying of its replicas."""
    placed = place_partitions(spec.flat(12), {}, 1200, 3)
    for broker in range(12):
        assert len({b for replicas in placed for b in replicas if broker in replicas}) >= 9
        assert len({replicas[1] for replicas in placed if replicas[0] == broker}) >= 4


def test_a_topic_without_partitions_to_place_is_an_empty_list(spec):
    assert place_partitions(spec.flat(3), {}, 0, 3) == []


@pytest.mark.parametrize(
    ("count", "factor", "error", "words"),
    [
        (1, 3, TooFewBrokersError, "cannot place 3 replicas of a new partition: only 2"),
        (1, 0, BadInputError, "replication factor 0"),
        (-1, 1, BadInputError, "-1 partitions"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_reason(spec, count, factor, error, words):
    with pytest.raises(error, match=words):
        place_partitions(spec.flat(3, excluded=[1]), {}, count, factor)


def test_without_usable_brokers_nothing_is_placed(spec):
    with pytest.raises(NoBrokersError):
        place_partitions(spec.flat(1, excluded=[0]), {}, 1, 1)
