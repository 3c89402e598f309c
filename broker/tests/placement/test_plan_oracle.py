"""Plans copy no more replicas than the best outcome that an exhaustive search finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.placement.plan import plan_moves


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(data=st.data())
def test_a_plan_from_any_state_copies_the_fewest_replicas(spec, data):
    brokers = data.draw(spec.any_shapes(most=5))
    cluster = data.draw(spec.clusters(brokers, topics=3, partitions=4))
    factors = spec.factors(cluster)

    def good(counts, of):
        return spec.is_fair(brokers, counts, of)

    assert spec.copied(plan_moves(brokers, cluster)) == spec.fewest_copied(brokers, cluster, factors, good)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(data=st.data())
def test_where_domains_have_one_shape_the_outcome_is_the_cheapest_within_one(spec, data):
    brokers = data.draw(spec.equal_shapes(most=6))
    cluster = data.draw(spec.clusters(brokers, topics=2, partitions=4))
    factors = spec.factors(cluster)

    def good(counts, of):
        return spec.is_even(brokers, counts)

    assert spec.copied(plan_moves(brokers, cluster)) == spec.fewest_copied(brokers, cluster, factors, good)


@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(data=st.data())
def test_a_change_from_a_planned_state_copies_the_fewest_replicas(spec, data):
    """The changes are those of real clusters: a broker joins, leaves or drains, or a factor changes."""
    everybody = data.draw(spec.any_shapes(most=5, excluded=False))
    cut = data.draw(st.integers(1, len(everybody)))
    cluster = data.draw(spec.clusters(everybody[:cut], topics=2, partitions=5, gone=False))
    cluster = spec.after(cluster, plan_moves(everybody[:cut], cluster))
    then = data.draw(st.integers(1, len(everybody)))
    requested = {topic: data.draw(st.integers(1, min(then, 4))) for topic in spec.topics(cluster)}
    brokers = everybody[:then]

    def good(counts, of):
        return spec.is_fair(brokers, counts, of)

    best = spec.fewest_copied(brokers, cluster, spec.factors(cluster, requested), good)
    assert spec.copied(plan_moves(brokers, cluster, requested)) == best
