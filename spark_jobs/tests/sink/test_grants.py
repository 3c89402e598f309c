"""A partition is granted to one task at a time, in the order of requests, with the next sequence number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_spark.sink.grants import GrantNotHeld, PartitionGrant, PartitionGrants

A, B, C = ("t", 0), ("t", 1), ("t", 2)


def test_a_free_partition_is_granted_at_once_from_sequence_zero() -> None:
    assert PartitionGrants().acquire(1, 10, [A]) == PartitionGrant(1, 10, A, 0)


def test_the_next_holder_goes_on_where_the_last_one_ended() -> None:
    grants = PartitionGrants()
    grants.acquire(1, 10, [A])
    assert grants.acquire(2, 20, [A]) is None
    assert grants.release(1, A, 500) == PartitionGrant(2, 20, A, 500)


def test_of_several_candidates_the_first_free_one_is_granted() -> None:
    grants = PartitionGrants()
    grants.acquire(1, 10, [A])
    assert grants.acquire(2, 20, [A, B, C]) == PartitionGrant(2, 20, B, 0)


def test_who_waits_longest_for_a_partition_gets_it() -> None:
    grants = PartitionGrants()
    grants.acquire(1, 10, [A])
    grants.acquire(1, 11, [B])
    assert grants.acquire(2, 20, [A]) is None
    assert grants.acquire(3, 30, [A, B]) is None
    assert grants.acquire(4, 40, [B]) is None
    assert grants.release(1, B, 7) == PartitionGrant(3, 30, B, 7)
    assert grants.release(1, A, 5) == PartitionGrant(2, 20, A, 5)
    assert grants.release(3, B, 9) == PartitionGrant(4, 40, B, 9)


def test_a_partition_can_only_be_given_back_by_its_holder() -> None:
    grants = PartitionGrants()
    grants.acquire(1, 10, [A])
    with pytest.raises(GrantNotHeld, match="t-0"):
        grants.release(2, A, 1)
    with pytest.raises(GrantNotHeld, match="sequence number -1"):
        grants.release(1, A, -1)


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(1, 5), st.data())
def test_tasks_that_give_back_before_they_ask_again_always_come_to_an_end(
    tasks: int, partitions: int, data: st.DataObject
) -> None:
    """Each task writes rows to partitions in any order, several at once; a holder always releases its grant."""
    grants = PartitionGrants()
    work = {
        task: data.draw(st.lists(st.tuples(st.integers(0, partitions - 1), st.integers(1, 9)), max_size=8))
        for task in range(tasks)
    }
    written: dict[tuple[str, int], list[tuple[int, int]]] = {}
    left = {task: list(todo) for task, todo in work.items()}
    asked: dict[tuple[int, int], int] = {}
    counts: dict[tuple[int, int], int] = {}
    holding: list[PartitionGrant] = []

    def took(grant: PartitionGrant | None) -> None:
        if grant is not None:
            holding.append(grant)

    number = 0
    while any(left.values()) or holding:
        can_ask = [
            task
            for task, todo in left.items()
            if todo and not any(holder == task and p == todo[0][0] for (holder, _), p in open_requests(asked, holding))
        ]
        if can_ask and (not holding or data.draw(st.booleans())):
            task = data.draw(st.sampled_from(can_ask))
            partition, count = left[task].pop(0)
            number += 1
            asked[task, number] = partition
            counts[task, number] = count
            took(grants.acquire(task, number, [("t", partition)]))
        else:
            assert holding, "all wait and no task holds a partition"
            grant = holding.pop(data.draw(st.integers(0, len(holding) - 1)))
            count = counts.pop((grant.holder, grant.number))
            del asked[grant.holder, grant.number]
            written.setdefault(grant.partition, []).append((grant.next_sequence, count))
            took(grants.release(grant.holder, grant.partition, grant.next_sequence + count))
        held = [grant.partition for grant in holding]
        assert len(held) == len(set(held)), "a partition has two writers"
    assert not asked
    for runs in written.values():
        ends = [0, *(start + count for start, count in runs)]
        assert [start for start, _ in runs] == ends[:-1], "sequences have a gap or overlap"


def open_requests(
    asked: dict[tuple[int, int], int], holding: list[PartitionGrant]
) -> list[tuple[tuple[int, int], int]]:
    """Return the open requests with their partitions: a task has at most one request per partition."""
    assert all((grant.holder, grant.number) in asked for grant in holding)
    return list(asked.items())
