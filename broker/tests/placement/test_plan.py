"""Reassignment plans: outcome, unchanged replicas, and errors."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.placement.model import (
    BadInputError,
    Move,
    NoBrokersError,
    PartitionKey,
    PlacementBroker,
    TooFewBrokersError,
)
from penstock.placement.place import place_partitions
from penstock.placement.plan import plan_feasible_moves, plan_moves


def topic_on(brokers, count, factor, topic="t"):
    return {PartitionKey(topic, i): tuple(r) for i, r in enumerate(place_partitions(brokers, {}, count, factor))}


def draw_factors(data, spec, brokers, cluster):
    most = min(4, len(spec.usable(brokers)))
    return {topic: data.draw(st.integers(1, most)) for topic in spec.topics(cluster) if data.draw(st.booleans())}


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_afterwards_partitions_are_spread_and_each_broker_has_its_fair_share(spec, data):
    brokers = data.draw(spec.any_shapes())
    cluster = data.draw(spec.clusters(brokers, topics=4, partitions=12))
    requested = draw_factors(data, spec, brokers, cluster)
    factors = spec.factors(cluster, requested)
    after = spec.after(cluster, plan_moves(brokers, cluster, requested))
    for key, replicas in after.items():
        assert len(replicas) == len(set(replicas)) == factors[key.topic]
        assert spec.is_spread(brokers, replicas)
    assert spec.is_fair(brokers, spec.counts(after)[0], [factors[key.topic] for key in after])
    for topic in spec.topics(after):
        topic_factor_list = [factors[topic] for key in after if key.topic == topic]
        assert spec.is_fair(brokers, spec.counts(after, topic)[0], topic_factor_list)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_in_domains_of_one_shape_replicas_and_leaders_are_within_one_by_topic_and_as_a_whole(spec, data):
    brokers = data.draw(spec.equal_shapes(most=12))
    cluster = data.draw(spec.clusters(brokers, topics=4, partitions=20))
    factor = data.draw(st.integers(1, min(4, len(brokers))))
    after = spec.after(cluster, plan_moves(brokers, cluster, dict.fromkeys(spec.topics(cluster), factor)))
    for topic in (None, *spec.topics(after)):
        replicas, leaders = spec.counts(after, topic)
        assert spec.is_even(brokers, replicas)
        assert spec.is_even(brokers, leaders)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_in_domains_of_any_shape_brokers_of_one_domain_are_within_one(spec, data):
    brokers = data.draw(spec.any_shapes())
    cluster = data.draw(spec.clusters(brokers, topics=3, partitions=12))
    factor = data.draw(st.integers(1, min(4, len(spec.usable(brokers)))))
    after = spec.after(cluster, plan_moves(brokers, cluster, dict.fromkeys(spec.topics(cluster), factor)))
    for domain in {broker.failure_domain for broker in brokers}:
        members = [b for b in brokers if b.failure_domain == domain]
        if not spec.usable(members):
            continue
        for topic in (None, *spec.topics(after)):
            replicas, leaders = spec.counts(after, topic)
            assert spec.is_even(members, replicas)
            assert spec.is_even(members, leaders) or spec.is_even(brokers, leaders)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_planning_again_finds_nothing_to_do(spec, data):
    brokers = data.draw(spec.any_shapes())
    cluster = data.draw(spec.clusters(brokers, topics=4, partitions=12))
    requested = draw_factors(data, spec, brokers, cluster)
    after = spec.after(cluster, plan_moves(brokers, cluster, requested))
    assert plan_moves(brokers, after, requested) == []


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(data=st.data())
def test_the_order_of_the_input_makes_no_difference(spec, data):
    brokers = data.draw(spec.any_shapes())
    cluster = data.draw(spec.clusters(brokers))
    shuffled = dict(data.draw(st.permutations(list(cluster.items()))))
    assert plan_moves(data.draw(st.permutations(brokers)), shuffled) == plan_moves(brokers, cluster)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(data=st.data())
def test_moves_say_what_was_and_keep_the_order_of_who_stays(spec, data):
    brokers = data.draw(spec.any_shapes())
    cluster = data.draw(spec.clusters(brokers))
    moves = plan_moves(brokers, cluster)
    assert [move.key for move in moves] == sorted({move.key for move in moves})
    for move in moves:
        assert move.before == cluster[move.key]
        assert move.before != move.after
        followers = [b for b in move.after[1:] if b in move.before]
        assert followers == [b for b in move.before if b in followers]
        assert all(b in move.adds for b in move.after[1 + len(followers) :])


@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(brokers=st.integers(1, 8), partitions=st.integers(1, 60), factor=st.integers(1, 4))
def test_a_joining_broker_gets_its_share_and_nothing_moves_between_the_others(spec, brokers, partitions, factor):
    factor = min(factor, brokers)
    cluster = topic_on(spec.flat(brokers), partitions, factor)
    moves = plan_moves(spec.flat(brokers + 1), cluster)
    assert {b for move in moves for b in move.adds} <= {brokers}
    share = partitions * factor / (brokers + 1)
    assert spec.copied(moves) in (int(share), -int(-share // 1))


@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(brokers=st.integers(2, 8), partitions=st.integers(1, 60), factor=st.integers(1, 4), how=st.booleans())
def test_of_a_leaving_broker_only_its_own_replicas_move(spec, brokers, partitions, factor, how):
    """Exception: if the brokers that need replicas already have these partitions, the fewest possible others move."""
    factor = min(factor, brokers - 1)
    cluster = topic_on(spec.flat(brokers), partitions, factor)
    rest = spec.flat(brokers, excluded=[0]) if how else spec.flat(brokers)[1:]
    lost = [key for key, replicas in cluster.items() if 0 in replicas]
    moves = plan_moves(rest, cluster)
    others = [move for move in moves if move.removes - {0}]
    if others:
        counts = spec.counts(cluster)[0]
        least = -(-(partitions * factor) // (brokers - 1)) - 1
        takers = {b for b in range(1, brokers) if counts[b] <= least}
        blocked = [b for b in takers if sum(b not in cluster[key] for key in lost) < least + 1 - counts[b]]
        assert blocked or partitions * factor < 40
    else:
        assert spec.copied(moves) == len(lost)


@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(brokers=st.integers(1, 8), partitions=st.integers(1, 40), factor=st.integers(1, 4), to=st.integers(1, 4))
def test_another_factor_only_adds_or_only_drops(spec, brokers, partitions, factor, to):
    factor, to = min(factor, brokers), min(to, brokers)
    cluster = topic_on(spec.flat(brokers), partitions, factor)
    moves = plan_moves(spec.flat(brokers), cluster, {"t": to})
    assert spec.copied(moves) == partitions * max(0, to - factor)
    assert sum(len(move.removes) for move in moves) == partitions * max(0, factor - to)


def test_leaders_are_balanced_without_moving_data(spec):
    cluster = {PartitionKey("t", i): (0, 1, 2) for i in range(9)}
    moves = plan_moves(spec.flat(3), cluster)
    assert len(moves) == 6
    assert not any(move.moves_data or move.removes for move in moves)
    assert spec.counts(spec.after(cluster, moves))[1] == Counter({0: 3, 1: 3, 2: 3})


def test_a_topic_on_one_broker_is_spread_even_where_the_whole_is_balanced(spec):
    cluster = {PartitionKey(f"t{b}", i): (b,) for b in range(3) for i in range(3)}
    after = spec.after(cluster, plan_moves(spec.flat(3), cluster))
    assert all(spec.counts(after, topic)[0] == Counter({0: 1, 1: 1, 2: 1}) for topic in ("t0", "t1", "t2"))


def test_a_second_replica_in_a_zone_moves_when_another_zone_has_none(spec):
    brokers = spec.zones(2, 2)
    cluster = {PartitionKey("t", 0): (0, 1), PartitionKey("t", 1): (2, 3)}
    moves = plan_moves(brokers, cluster)
    assert spec.copied(moves) == 2
    assert all(spec.is_spread(brokers, replicas) for replicas in spec.after(cluster, moves).values())


def test_two_replicas_on_one_node_part_when_another_node_of_the_zone_is_free():
    brokers = [PlacementBroker(0, ("z", "n0")), PlacementBroker(1, ("z", "n0")), PlacementBroker(2, ("z", "n1"))]
    assert plan_moves(brokers, {PartitionKey("t", 0): (0, 1)}) == [Move(PartitionKey("t", 0), (0, 1), (0, 2))]


def test_a_broker_that_nobody_knows_is_gone(spec):
    assert plan_moves(spec.flat(2), {PartitionKey("t", 0): (9, 1)}) == [Move(PartitionKey("t", 0), (9, 1), (1, 0))]


def test_an_empty_cluster_needs_nothing(spec):
    assert plan_moves(spec.flat(2), {}) == []


def test_topics_with_different_factors_are_balanced_together(spec):
    brokers = spec.flat(4)
    cluster = {PartitionKey(f"t{t}", i): tuple(range(1 + t)) for t in range(3) for i in range(5)}
    after = spec.after(cluster, plan_moves(brokers, cluster))
    replicas, leaders = spec.counts(after)
    assert spec.is_even(brokers, replicas)
    assert spec.is_even(brokers, leaders)


@pytest.mark.parametrize(
    ("brokers", "cluster", "requested", "error", "words"),
    [
        ([], {("t", 0): (1,)}, {}, NoBrokersError, "none of 0"),
        ([PlacementBroker(1)], {("t", 0): ()}, {}, BadInputError, 'partition 0 of topic "t" has no replicas'),
        ([PlacementBroker(1)], {("t", 0): (1, 1)}, {}, BadInputError, 'partition 0 of topic "t" lists a broker twice'),
        ([PlacementBroker(1)], {("t", 0): (1,)}, {"t": 0}, BadInputError, "replication factor 0"),
        (
            [PlacementBroker(1), PlacementBroker(2, (), True)],
            {("t", 0): (1, 2)},
            {},
            TooFewBrokersError,
            'cannot place 2 replicas of a partition of topic "t": only 1',
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(brokers, cluster, requested, error, words):
    with pytest.raises(error, match=words):
        plan_moves(brokers, {PartitionKey(*key): replicas for key, replicas in cluster.items()}, requested)


def test_leaders_are_even_over_zones_of_different_sizes_where_the_replicas_permit(spec):
    brokers = spec.zones(1, 2, 4)
    cluster = {PartitionKey("t", i): (0, 1 + i % 2, 3 + i % 4) for i in range(28)}
    replicas, leaders = spec.counts(spec.after(cluster, plan_moves(brokers, cluster)))
    assert replicas[0] == 28
    assert set(leaders.values()) == {4}


def test_topics_with_no_room_are_left_out_and_named_and_the_rest_is_planned(spec):
    cluster = {PartitionKey("wide", 0): (0, 1, 2), PartitionKey("t", 0): (2,), PartitionKey("broad", 0): (0, 1, 2, 3)}
    moves, refused = plan_feasible_moves(spec.flat(2), cluster)
    assert [move.key.topic for move in moves] == ["t"]
    assert sorted(refused) == ["broad", "wide"]
    with pytest.raises(NoBrokersError):
        plan_feasible_moves([], cluster)
