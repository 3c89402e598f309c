"""The assignor of share groups: each partition has a member, each member a partition, in even numbers."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.group.modern.assignment import NOTHING, Assignment
from penstock.group.modern.assignors import AssignmentInput, Subscriber
from penstock.group.modern.sharing import assign_shared

T, U = UUID(int=1), UUID(int=2)


def members_of(count: int, topics=(T,), owned: dict[str, Assignment] | None = None) -> dict[str, Subscriber]:
    names = (f"m{index:03}" for index in range(count))
    return {name: Subscriber(frozenset(topics), (owned or {}).get(name, NOTHING)) for name in names}


def loads_of(assigned: dict[str, Assignment]) -> Counter:
    return Counter((t, i) for found in assigned.values() for t, indexes in found.items() for i in indexes)


@pytest.mark.parametrize(("members", "partitions"), [(1, 6), (2, 6), (4, 6), (6, 6), (7, 6), (13, 6), (200, 3)])
def test_members_and_partitions_are_even(members: int, partitions: int) -> None:
    assigned = assign_shared(AssignmentInput(members_of(members), {T: partitions}))
    sizes, loads = [len(found[T]) for found in assigned.values()], loads_of(assigned)
    assert len(loads) == partitions
    assert max(sizes) - min(sizes) <= 1
    assert max(loads.values()) - min(loads.values()) <= 1
    assert len(sizes) == members


def test_without_partitions_nothing_is_assigned() -> None:
    assert assign_shared(AssignmentInput(members_of(3), {})) == {"m000": {}, "m001": {}, "m002": {}}


def test_members_share_only_topics_that_they_subscribe_to() -> None:
    members = members_of(2) | {"other": Subscriber(frozenset({U}), NOTHING)}
    assigned = assign_shared(AssignmentInput(members, {T: 1, U: 2}))
    assert assigned["m000"] == assigned["m001"] == {T: frozenset({0})}
    assert assigned["other"] == {U: frozenset({0, 1})}


@settings(max_examples=settings().max_examples * 2)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 5))
def test_members_that_stay_keep_a_partition_if_nothing_else_changes(before: int, after: int, partitions: int) -> None:
    first = assign_shared(AssignmentInput(members_of(before), {T: partitions}))
    second = assign_shared(AssignmentInput(members_of(after, owned=first), {T: partitions}))
    again = assign_shared(AssignmentInput(members_of(after, owned=second), {T: partitions}))
    assert second == again
    if after:
        loads = loads_of(second)
        assert len(loads) == partitions
        assert max(loads.values()) <= -(-after // partitions)
        assert all(second.values())


@pytest.mark.parametrize("gone", [f"m{index:03}" for index in range(9)])
def test_the_other_members_keep_their_partitions_when_one_leaves(gone: str) -> None:
    first = assign_shared(AssignmentInput(members_of(9), {T: 3}))
    rest = {name: member for name, member in members_of(9, owned=first).items() if name != gone}
    assert assign_shared(AssignmentInput(rest, {T: 3})) == {name: first[name] for name in rest}
