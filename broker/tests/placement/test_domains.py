"""Failure domains: legal sets of brokers for a partition, and the fair share of each broker."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.placement.domains import Domains, bits
from penstock.placement.model import (
    MAX_BROKERS,
    MAX_DEPTH,
    BadInputError,
    NoBrokersError,
    PlacementBroker,
    TooFewBrokersError,
    select_usable_brokers,
)


def tree(brokers):
    return Domains(select_usable_brokers(brokers))


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_a_set_is_legal_where_siblings_differ_by_at_most_one_unless_one_is_full(spec, data):
    brokers = data.draw(spec.any_shapes(most=7))
    domains = tree(brokers)
    for size in range(1, len(domains.ids) + 1):
        for chosen in combinations(domains.ids, size):
            assert domains.legal(domains.mask_of(chosen), size) == spec.is_spread(brokers, chosen)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_a_broker_is_allowed_where_some_legal_set_holds_it_with_the_others(spec, data):
    brokers = data.draw(spec.any_shapes(most=6))
    domains = tree(brokers)
    factor = data.draw(st.integers(1, len(domains.ids)))
    legal = [domains.mask_of(s) for s in combinations(domains.ids, factor) if spec.is_spread(brokers, s)]
    for held in range(1 << len(domains.ids)):
        expected = 0
        for whole in legal:
            if held & whole == held:
                expected |= whole & ~held
        assert domains.allowed(held, factor) == expected


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_shares_add_up_and_are_what_legal_sets_can_average_to(spec, data):
    brokers = data.draw(spec.any_shapes(most=8))
    domains = tree(brokers)
    for factor in range(1, len(domains.ids) + 1):
        shares = domains.shares(factor)
        assert sum(shares) == factor
        assert all(0 <= share <= 1 for share in shares)
        legal = [s for s in combinations(domains.ids, factor) if spec.is_spread(brokers, s)]
        for broker_id, share in zip(domains.ids, shares, strict=True):
            holds = [broker_id in s for s in legal]
            assert share == 1 if all(holds) else share < 1 or any(holds)


@settings(deadline=None)
@given(data=st.data())
def test_in_domains_of_one_shape_each_broker_is_due_the_same(spec, data):
    domains = tree(data.draw(spec.equal_shapes(most=12)))
    for factor in range(1, len(domains.ids) + 1):
        assert set(domains.shares(factor)) == {Fraction(factor, len(domains.ids))}


def test_a_zone_with_one_broker_holds_a_replica_of_each_partition_when_there_are_as_many_zones_as_replicas(spec):
    assert tree(spec.zones(1, 2, 4)).shares(3) == [1] + [Fraction(1, 2)] * 2 + [Fraction(1, 4)] * 4


def test_where_zones_outnumber_replicas_a_small_zone_is_due_less(spec):
    assert set(tree(spec.zones(1, 2, 3)).shares(2)) == {Fraction(1, 3)}


def test_two_replicas_share_a_node_only_when_all_other_nodes_have_one(spec):
    domains = tree(spec.zones(4, nodes=2))
    assert [set(bits(domains.allowed(1, 2))), set(bits(domains.allowed(0b11, 3)))] == [{1, 3}, {2, 3}]


def test_paths_may_differ_in_length():
    brokers = [
        PlacementBroker(0),
        PlacementBroker(1, ("z",)),
        PlacementBroker(2, ("z", "n")),
        PlacementBroker(3, ("z", "n")),
    ]
    domains = tree(brokers)
    assert not domains.legal(domains.mask_of([1, 2]), 2)
    assert domains.legal(domains.mask_of([0, 3]), 2)


@pytest.mark.parametrize(
    ("brokers", "error", "words"),
    [
        ([], NoBrokersError, "start a broker"),
        ([PlacementBroker(1, (), True)], NoBrokersError, "none of 1 broker"),
        ([PlacementBroker(1), PlacementBroker(1)], BadInputError, "broker 1 is listed twice"),
        ([PlacementBroker(1, ("a",) * (MAX_DEPTH + 1))], BadInputError, "failure domain of broker 1 has 17 parts"),
        ([PlacementBroker(1)] * (MAX_BROKERS + 1), BadInputError, "10001 brokers"),
    ],
)
def test_brokers_that_cannot_be_used_are_refused_by_name(brokers, error, words):
    with pytest.raises(error, match=words):
        select_usable_brokers(brokers)


def test_too_few_brokers_names_the_topic_and_the_cure():
    error = TooFewBrokersError("orders", 3, 2)
    assert (error.topic, error.required, error.usable) == ("orders", 3, 2)
    assert 'cannot place 3 replicas of a partition of topic "orders"' in str(error)
    assert "add brokers" in str(error)
