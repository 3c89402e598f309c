"""Who waits until replicas have deleted: without I/O."""

from __future__ import annotations

from functools import partial

from penstock.replica.deletions import Deletion, Deletions


def waiting(*offsets: int) -> tuple[Deletions, list[tuple[int, int]]]:
    """For these offsets; what they are told is noted as (offset, error)."""
    told: list[tuple[int, int]] = []
    deletions = Deletions()
    for offset in offsets:
        deletions.wait(Deletion(offset, lambda error, offset=offset: told.append((offset, error))))  # type: ignore[misc]
    return deletions, told


def test_those_are_told_whose_offset_all_have_reached_and_the_others_wait() -> None:
    deletions, told = waiting(7, 3, 5, 5, 9)
    deletions.settle(2)
    assert told == []
    deletions.settle(5)
    assert told == [(3, 0), (5, 0), (5, 0)]
    deletions.settle(6)
    assert [deletion.offset for deletion in deletions] == [7, 9]


def test_all_are_told_when_there_is_nothing_to_wait_for_any_more() -> None:
    deletions, told = waiting(7, 3)
    deletions.fail(6)
    assert told == [(3, 6), (7, 6)]
    deletions.settle(100)
    assert len(told) == 2


def test_who_is_forgotten_is_told_nothing_and_may_be_forgotten_again() -> None:
    deletions, told = waiting(3)
    mine = Deletion(3, partial(told.append))  # type: ignore[arg-type]
    deletions.wait(mine)
    for _ in range(2):
        deletions.forget(mine)
    deletions.settle(3)
    assert told == [(3, 0)]
