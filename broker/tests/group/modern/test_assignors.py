"""The assignors: every partition has one subscriber, numbers are even, and little moves."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.group.modern.assignment import partition_count
from penstock.group.modern.assignors import (
    CONSUMER_ASSIGNORS,
    AssignmentInput,
    Subscriber,
    assign_ranges,
    assign_uniformly,
)

A, B, C = (UUID(int=n) for n in (1, 2, 3))
TOPICS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 12), min_size=1)


@st.composite
def inputs(draw, same: bool = False) -> AssignmentInput:
    partitions = draw(TOPICS)
    every = frozenset(partitions)
    members = {}
    for number in range(draw(st.integers(1, 7))):
        topics = every if same else draw(st.frozensets(st.sampled_from(sorted(every))))
        members[f"m{number}"] = Subscriber(topics, {})
    return AssignmentInput(members, partitions)


def pairs(assignment) -> list[tuple[UUID, int]]:
    return [(topic_id, index) for topic_id, indexes in assignment.items() for index in indexes]


@pytest.mark.parametrize("name", CONSUMER_ASSIGNORS)
@given(data=st.data())
def test_each_partition_of_a_subscribed_topic_has_exactly_one_subscriber(name: str, data) -> None:
    wanted = data.draw(inputs())
    found = CONSUMER_ASSIGNORS[name](wanted)
    assert found.keys() == wanted.members.keys()
    for member_id, assignment in found.items():
        assert assignment.keys() <= wanted.members[member_id].topics
        assert all(assignment.values())
    assigned = [pair for assignment in found.values() for pair in pairs(assignment)]
    subscribed = {topic_id for member in wanted.members.values() for topic_id in member.topics}
    assert sorted(assigned) == sorted((t, i) for t in subscribed for i in range(wanted.partitions[t]))


@given(inputs(same=True), st.data())
def test_uniform_numbers_differ_by_one_and_only_necessary_partitions_move(first, data) -> None:
    before = assign_uniformly(first)
    gone = data.draw(st.sampled_from([None, *first.members]))
    new = data.draw(st.integers(0, 3))
    members = {m: Subscriber(s.topics, before[m]) for m, s in first.members.items() if m != gone}
    members |= {f"n{number}": Subscriber(frozenset(first.partitions), {}) for number in range(new)}
    if not members:
        return
    after = assign_uniformly(AssignmentInput(members, first.partitions))
    counts = [partition_count(assignment) for assignment in after.values()]
    assert max(counts) - min(counts) <= 1
    kept = sum(len({*pairs(before[m])} & {*pairs(after[m])}) for m in members if m in before)
    quota, extra = divmod(sum(counts), len(members))
    sizes = sorted((partition_count(before[m]) for m in members if m in before), reverse=True)
    possible = 0
    for size in sizes:
        has_extra = extra > 0 and size > quota
        extra -= has_extra
        possible += min(size, quota + has_extra)
    assert kept == possible


@given(inputs())
def test_uniform_numbers_are_as_even_as_subscriptions_permit(wanted) -> None:
    found = assign_uniformly(wanted)
    loads = {member_id: partition_count(assignment) for member_id, assignment in found.items()}
    for member_id, assignment in found.items():
        for topic_id in assignment:
            others = [loads[m] for m, s in wanted.members.items() if topic_id in s.topics]
            assert loads[member_id] <= min(others) + 1


def test_a_partition_goes_to_a_member_in_the_rack_of_a_replica() -> None:
    racks = [frozenset({"x"}), frozenset({"y"}), frozenset({"x"}), frozenset({"y"})]
    members = {name: Subscriber(frozenset({A}), {}, rack=rack) for name, rack in (("1", "y"), ("2", "x"))}
    found = assign_uniformly(AssignmentInput(members, {A: 4}, {A: racks}))
    assert found == {"1": {A: frozenset({1, 3})}, "2": {A: frozenset({0, 2})}}


def test_ranges_of_several_topics_go_together_and_static_members_come_first() -> None:
    both = frozenset({A, B})
    members = {"a": Subscriber(both, {}), "z": Subscriber(both, {}, instance_id="i")}
    found = assign_ranges(AssignmentInput(members, {A: 3, B: 3}))
    first, rest = frozenset({0, 1}), frozenset({2})
    assert found == {"z": {A: first, B: first}, "a": {A: rest, B: rest}}


def test_the_size_counts_members_and_partitions() -> None:
    assert AssignmentInput({"a": Subscriber(frozenset(), {})}, {A: 3, B: 4}).size == 8
