"""Placement: spread over failure domains, minimal moves, less loaded brokers first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.placement.domains import Domains
from penstock_operator.ports.brokers import ObservedBrokerState, ObservedPartition
from penstock_operator.reconcile.topic.placement import domains_of, factor_targets, replicas_after_move, spread_targets


def brokers(*domains: str) -> tuple[ObservedBrokerState, ...]:
    return tuple(ObservedBrokerState(n, "h", 9092, None, domain, False, False, "") for n, domain in enumerate(domains))


def tree(*domains: str) -> Domains:
    found = domains_of(brokers(*domains))
    assert found is not None
    return found


def at_rest(*replicas: int) -> ObservedPartition:
    return ObservedPartition(replicas[0], replicas, replicas)


def test_a_replica_is_added_in_another_zone_and_the_leader_stays() -> None:
    targets = factor_targets([at_rest(0)], 2, tree("a/1", "a/2", "b/3"), {}, 10)
    assert targets == {0: (0, 2)}


def test_the_least_loaded_broker_gets_it() -> None:
    targets = factor_targets([at_rest(0)], 2, tree("", "", "", ""), {0: 9, 1: 5, 2: 1, 3: 4}, 10)
    assert targets == {0: (0, 2)}


def test_many_topics_of_one_partition_do_not_all_go_to_the_same_broker() -> None:
    loads: Counter[int] = Counter()
    domains = tree(*[""] * 5)
    for _ in range(50):
        after = factor_targets([at_rest(0)], 3, domains, loads, 10)[0]
        loads.update(after)
    assert max(loads[b] for b in range(1, 5)) - min(loads[b] for b in range(1, 5)) <= 1


def test_who_is_behind_goes_first_and_the_preferred_leader_last() -> None:
    out_of_sync = ObservedPartition(0, (0, 1, 2), (0, 2))
    assert factor_targets([out_of_sync], 2, tree("", "", ""), {}, 10) == {0: (0, 2)}
    assert factor_targets([out_of_sync], 1, tree("", "", ""), {}, 10) == {0: (0,)}


def test_a_preferred_leader_that_is_gone_is_not_what_a_smaller_factor_leaves() -> None:
    """The operator removes no replica before the kept ones are in sync: a lost broker would block the reassignment
    forever."""
    gone = ObservedPartition(1, (0, 1, 2), (1, 2))
    assert factor_targets([gone], 1, tree("", "", ""), {}, 10) == {0: (1,)}


def test_a_smaller_factor_keeps_the_spread() -> None:
    domains = tree("a/1", "a/2", "b/3")
    assert factor_targets([at_rest(0, 1, 2)], 2, domains, {}, 10) == {0: (0, 2)}


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    moving = ObservedPartition(0, (0, 1), (0,), adding=(1,))
    assert factor_targets([moving], 2, tree("", "", ""), {}, 10) == {}
    assert replicas_after_move(ObservedPartition(0, (2, 0), (0,), adding=(2,), removing=(0,))) == (2,)


def test_no_more_move_than_there_is_room_for() -> None:
    assert len(factor_targets([at_rest(0)] * 9, 2, tree("", ""), {}, 4)) == 4


def test_only_what_is_spread_badly_moves() -> None:
    domains = tree("a/1", "a/2", "b/3", "b/4")
    partitions = [at_rest(0, 1), at_rest(0, 2), at_rest(3, 1)]
    assert spread_targets(partitions, domains, brokers("a/1", "a/2", "b/3", "b/4"), {}, 10) in (
        {0: (0, 2)},
        {0: (0, 3)},
    )


domain = st.sampled_from(["a/1", "a/2", "b/3", "b/4", "c/5", "", "a"])


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(domain, min_size=1, max_size=9),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 12),
    st.randoms(use_true_random=False),
)
def test_outcomes_are_legal_and_stable(paths: list[str], before: int, factor: int, count: int, random: object) -> None:
    domains = tree(*paths)
    before, factor = min(before, len(paths)), min(factor, len(paths))
    ids = list(range(len(paths)))
    partitions = [at_rest(*random.sample(ids, before)) for _ in range(count)]  # type: ignore[attr-defined]
    targets = factor_targets(partitions, factor, domains, {}, 100)
    after = [at_rest(*targets.get(i, partitions[i].replicas)) for i in range(count)]
    assert all(len(set(p.replicas)) == factor for p in after)
    assert factor_targets(after, factor, domains, {}, 100) == {}
    spread = spread_targets(after, domains, brokers(*paths), {}, 100)
    accepted_drift = [at_rest(*spread.get(i, after[i].replicas)) for i in range(count)]
    assert all(domains.legal(domains.mask_of(p.replicas), factor) for p in accepted_drift)
    assert spread_targets(accepted_drift, domains, brokers(*paths), {}, 100) == {}
