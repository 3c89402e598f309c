"""Waiters for the deletion of records on all replicas, without I/O."""

from __future__ import annotations

from functools import partial

from penstock.replica.deletions import DeletionWaiter, DeletionWaiters


def waiting(*offsets: int) -> tuple[DeletionWaiters, list[tuple[int, int]]]:
    """Return waiters for these offsets, and the list that receives (offset, error) for each."""
    results: list[tuple[int, int]] = []
    deletions = DeletionWaiters()
    for offset in offsets:
        deletions.add(DeletionWaiter(offset, lambda error, offset=offset: results.append((offset, error))))  # type: ignore[misc]
    return deletions, results


def test_those_are_told_whose_offset_all_have_reached_and_the_others_wait() -> None:
    deletions, results = waiting(7, 3, 5, 5, 9)
    deletions.complete_up_to(2)
    assert results == []
    deletions.complete_up_to(5)
    assert results == [(3, 0), (5, 0), (5, 0)]
    deletions.complete_up_to(6)
    assert [deletion.offset for deletion in deletions] == [7, 9]


def test_all_are_told_when_there_is_nothing_to_wait_for_any_more() -> None:
    deletions, results = waiting(7, 3)
    deletions.fail(6)
    assert results == [(3, 6), (7, 6)]
    deletions.complete_up_to(100)
    assert len(results) == 2


def test_who_is_forgotten_is_told_nothing_and_may_be_forgotten_again() -> None:
    deletions, results = waiting(3)
    mine = DeletionWaiter(3, partial(results.append))  # type: ignore[arg-type]
    deletions.add(mine)
    for _ in range(2):
        deletions.cancel(mine)
    deletions.complete_up_to(3)
    assert results == [(3, 0)]
