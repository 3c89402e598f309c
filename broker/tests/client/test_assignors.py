"""Properties of assignors that hold for any group."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.assignors import (
    ASSIGNORS,
    Assignment,
    AssignorMember,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
)
from penstock.client.types import TopicPartition

TOPICS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 12), min_size=1)
MEMBERS = st.lists(st.frozensets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=6)


def group(subscriptions: list[frozenset[str]]) -> list[AssignorMember]:
    return [AssignorMember(f"m{n}", topics) for n, topics in enumerate(subscriptions)]


def everything(partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, p) for topic, count in partitions.items() for p in range(count)]


def again(members: list[AssignorMember], assignment: Assignment, generation: int) -> list[AssignorMember]:
    """Return the members as they rejoin, with their assignment as owned partitions."""
    return [AssignorMember(m.member_id, m.topics, tuple(assignment[m.member_id]), generation) for m in members]


def settle(partitions: Mapping[str, int], members: list[AssignorMember]) -> tuple[list[AssignorMember], int]:
    """Rebalance until no partition moves; return the members and the number of rounds."""
    for round_ in range(1, 10):
        assignment = CooperativeStickyAssignor().assign(partitions, members)
        after = again(members, assignment, round_)
        if [set(m.owned) for m in after] == [set(m.owned) for m in members]:
            return after, round_
        members = after
    raise AssertionError("the group does not come to rest")


@pytest.mark.slow
@given(TOPICS, MEMBERS, st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_goes_to_exactly_one_member_that_subscribes_to_it(
    partitions: dict[str, int], subscriptions: list[frozenset[str]], name: str
) -> None:
    members = group(subscriptions)
    assignment = ASSIGNORS[name].assign(partitions, members)
    assert assignment.keys() == {m.member_id for m in members}
    given_out = [tp for share in assignment.values() for tp in share]
    subscribed = {topic for m in members for topic in m.topics}
    assert sorted(given_out) == sorted(tp for tp in everything(partitions) if tp.topic in subscribed)
    for member in members:
        assert all(tp.topic in member.topics for tp in assignment[member.member_id])


@pytest.mark.slow
@given(TOPICS, st.integers(1, 6), st.sampled_from(["roundrobin", "cooperative-sticky"]))
def test_equal_subscriptions_get_equal_shares(partitions: dict[str, int], count: int, name: str) -> None:
    members = group([frozenset("abcd")] * count)
    sizes = [len(share) for share in ASSIGNORS[name].assign(partitions, members).values()]
    assert max(sizes) - min(sizes) <= 1


def test_range_gives_neighbours_to_one_member_and_the_rest_to_the_first() -> None:
    members = group([frozenset("a"), frozenset("a")])
    assert RangeAssignor().assign({"a": 5}, members) == {
        "m0": [TopicPartition("a", p) for p in (0, 1, 2)],
        "m1": [TopicPartition("a", p) for p in (3, 4)],
    }


def test_round_robin_deals_across_topics() -> None:
    members = group([frozenset("ab"), frozenset("ab")])
    assert RoundRobinAssignor().assign({"a": 3, "b": 1}, members) == {
        "m0": [TopicPartition("a", 0), TopicPartition("a", 2)],
        "m1": [TopicPartition("a", 1), TopicPartition("b", 0)],
    }


def test_static_members_keep_their_order_when_their_ids_change() -> None:
    def shares(first_id: str) -> list[list[TopicPartition]]:
        members = [
            AssignorMember(first_id, frozenset("a"), instance_id="x"),
            AssignorMember("m", frozenset("a"), instance_id="y"),
        ]
        return list(RangeAssignor().assign({"a": 3}, members).values())

    assert shares("a") == shares("z")


@pytest.mark.slow
@given(TOPICS, MEMBERS)
def test_sticky_moves_nothing_while_nothing_changes(
    partitions: dict[str, int], subscriptions: list[frozenset[str]]
) -> None:
    members, _ = settle(partitions, group(subscriptions))
    after, rounds = settle(partitions, members)
    assert rounds == 1
    assert [m.owned for m in after] == [m.owned for m in members]


@pytest.mark.slow
@given(TOPICS, MEMBERS, st.frozensets(st.sampled_from("abcd"), min_size=1))
def test_a_cooperative_group_never_has_two_owners_and_comes_to_rest(
    partitions: dict[str, int], subscriptions: list[frozenset[str]], newcomer: frozenset[str]
) -> None:
    members, _ = settle(partitions, group(subscriptions))
    owners = {tp: m.member_id for m in members for tp in m.owned}
    joined = [*members, AssignorMember("new", newcomer)]
    first = CooperativeStickyAssignor().assign(partitions, joined)
    for member_id, share in first.items():
        assert all(owners.get(tp, member_id) == member_id for tp in share), "given away while still owned"
    settled, rounds = settle(partitions, again(joined, first, 20))
    assert rounds <= 3
    subscribed = {topic for m in joined for topic in m.topics}
    owned = sorted(tp for m in settled for tp in m.owned)
    assert owned == sorted(tp for tp in everything(partitions) if tp.topic in subscribed)


@given(TOPICS, st.integers(2, 6))
def test_when_a_member_leaves_the_others_keep_what_they_have(partitions: dict[str, int], count: int) -> None:
    members, _ = settle(partitions, group([frozenset("abcd")] * count))
    assignment = CooperativeStickyAssignor().assign(partitions, members[1:])
    for member in members[1:]:
        assert set(member.owned) <= set(assignment[member.member_id])


def test_of_two_that_claim_a_partition_the_newer_generation_is_believed() -> None:
    tp = TopicPartition("a", 0)
    members = [AssignorMember("m0", frozenset("a"), (tp,), 4), AssignorMember("m1", frozenset("a"), (tp,), 5)]
    assert CooperativeStickyAssignor().assign({"a": 1}, members) == {"m0": [], "m1": [tp]}


def test_partitions_that_are_gone_are_not_kept() -> None:
    members = [AssignorMember("m0", frozenset("a"), (TopicPartition("a", 0), TopicPartition("a", 9)), 1)]
    assert CooperativeStickyAssignor().assign({"a": 1}, members) == {"m0": [TopicPartition("a", 0)]}
