"""The ISR and the resulting high watermark, without I/O and with times as arguments."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.replica.isr import InSyncReplicas, IsrChange, ReplicaProgress, effective_min_isr
from penstock.state.view import PartitionView

KEY = UUID(int=5), 0


def placed(
    isr: list[int], epochs: list[int] | None = None, replicas: list[int] | None = None, **more: object
) -> PartitionView:
    given = [100 + i for i in isr] if epochs is None else epochs
    view = PartitionView(0, replicas or [1, 2, 3], 1, 4, isr, given, revision=10)
    for name, value in more.items():
        setattr(view, name, value)
    return view


def in_sync(view: PartitionView | None = None, epoch_start: int = 0) -> InSyncReplicas:
    return InSyncReplicas(1, view or placed([1, 2, 3]), epoch_start, 0)


def proposed(isr: InSyncReplicas, gone: set[int], joined: list[tuple[int, int]], min_isr: int = 1) -> IsrChange:
    change = isr.pending = isr.make_change(KEY, 101, gone, joined, min_isr)
    isr.update_members()
    return change


def test_a_follower_that_has_told_nothing_holds_everything_up() -> None:
    isr = in_sync()
    isr.record((2, 102), 10, 10, 10, 0)
    assert isr.min_flushed_offset(10) == -1


def test_the_least_of_what_all_have_flushed_counts_the_leader_too() -> None:
    isr = in_sync()
    isr.record((2, 102), 10, 8, 10, 0)
    isr.record((3, 103), 10, 9, 10, 0)
    assert isr.min_flushed_offset(10) == 8
    assert isr.min_flushed_offset(7) == 7


def test_what_all_have_deleted_lies_below_the_least_of_their_starts_and_the_leaders() -> None:
    isr = in_sync(placed([1, 2]))
    assert isr.min_start_offset(7) == -1
    for broker_id, start in ((2, 6), (3, 2)):
        progress = isr.record((broker_id, 100 + broker_id), 10, 10, 10, 0)
        assert progress is not None
        progress.log_start_offset = start
    assert (isr.min_start_offset(7), isr.min_start_offset(5)) == (6, 5)
    proposed(isr, set(), [(3, 103)])
    assert isr.min_start_offset(7) == 2


def test_who_is_not_in_the_isr_holds_nobody_up() -> None:
    isr = in_sync(placed([1, 2]))
    isr.record((2, 102), 10, 10, 10, 0)
    isr.record((3, 103), 1, 1, 10, 0)
    assert isr.min_flushed_offset(10) == 10


def test_a_follower_cannot_have_flushed_what_it_has_not_written() -> None:
    isr = in_sync(placed([1, 2]))
    isr.record((2, 102), 5, 900, 10, 0)
    assert isr.min_flushed_offset(10) == 5


def test_a_broker_without_a_replica_is_nobody() -> None:
    assert in_sync().record((9, 109), 10, 10, 10, 0) is None


def test_another_incarnation_does_not_move_what_the_old_one_told() -> None:
    isr = in_sync(placed([1, 2]))
    isr.record((2, 102), 3, 3, 10, 0)
    new = isr.record((2, 250), 10, 10, 10, 5)
    assert new is not None
    assert isr.min_flushed_offset(10) == 3
    assert new in isr.out_of_sync()
    isr.update(placed([1, 2], [101, 250], revision=11), 6)
    assert isr.min_flushed_offset(10) == 10
    assert not isr.former


def test_an_older_incarnation_is_not_heard_any_more() -> None:
    isr = in_sync(placed([1, 2], [101, 250]))
    isr.record((2, 250), 4, 4, 10, 0)
    assert isr.record((2, 102), 10, 10, 10, 0) is None
    assert isr.min_flushed_offset(10) == 4


def test_records_without_epochs_mean_whoever_fetches() -> None:
    isr = in_sync(placed([1, 2], []))
    isr.record((2, 102), 7, 7, 10, 0)
    assert isr.min_flushed_offset(10) == 7
    assert proposed(isr, set(), []).isr == [(1, 101), (2, 102)]


def test_while_somebody_leaves_they_still_count() -> None:
    isr = in_sync()
    isr.record((2, 102), 10, 10, 10, 0)
    isr.record((3, 103), 4, 4, 10, 0)
    change = proposed(isr, {3}, [])
    assert change.isr == [(1, 101), (2, 102)]
    assert isr.min_flushed_offset(10) == 4
    isr.update(placed([1, 2], revision=11), 0)
    assert isr.pending is None
    assert isr.min_flushed_offset(10) == 10


def test_while_somebody_joins_they_count_already() -> None:
    isr = in_sync(placed([1, 2]))
    isr.record((2, 102), 10, 10, 10, 0)
    isr.record((3, 103), 6, 6, 10, 0)
    change = proposed(isr, set(), [(3, 103)])
    assert change.isr == [(1, 101), (2, 102), (3, 103)]
    assert isr.min_flushed_offset(10) == 6


def test_a_view_that_has_not_changed_decides_nothing() -> None:
    isr = in_sync()
    change = proposed(isr, {3}, [])
    isr.update(placed([1, 2, 3]), 0)
    assert isr.pending is change


def test_members_stay_in_the_order_of_the_replicas() -> None:
    isr = in_sync(placed([1], replicas=[3, 1, 2]))
    for broker_id in (2, 3):
        isr.record((broker_id, 100 + broker_id), 1, 1, 1, 0)
    assert [m[0] for m in proposed(isr, set(), [(2, 102), (3, 103)]).isr] == [3, 1, 2]


@pytest.mark.parametrize(("min_isr", "eligible"), [(1, []), (2, [2, 3]), (3, [2, 3])])
def test_who_leaves_is_eligible_where_too_few_are_left(min_isr: int, eligible: list[int]) -> None:
    isr = in_sync()
    assert proposed(isr, {2, 3}, [], min_isr).eligible == eligible


def test_an_incarnation_that_is_gone_is_not_eligible() -> None:
    isr = in_sync()
    isr.record((3, 250), 0, 0, 10, 0)
    assert proposed(isr, {2, 3}, [], 2).eligible == [2]


def test_who_has_left_must_be_heard_of_before_it_is_back() -> None:
    isr = in_sync()
    isr.record((3, 103), 10, 10, 10, 0)
    isr.update(placed([1, 2], revision=11), 0)
    assert isr.out_of_sync() == []
    isr.record((3, 103), 10, 10, 10, 0)
    assert [p.broker_id for p in isr.out_of_sync()] == [3]


def test_a_follower_has_caught_up_when_it_has_what_there_was_at_its_last_fetch() -> None:
    progress = ReplicaProgress(2, 102, 0)
    progress.record(50, 50, 100, 10)
    assert progress.caught_up_ms == 0
    progress.record(100, 99, 150, 20)
    assert progress.caught_up_ms == 0, "what is not on its disk it does not have"
    progress.record(150, 150, 200, 30)
    assert progress.caught_up_ms == 20
    progress.record(200, 200, 200, 40)
    assert progress.caught_up_ms == 40


def test_min_insync_replicas_asks_for_no_more_than_there_are_and_for_none_that_is_being_added() -> None:
    assert effective_min_isr(placed([1], replicas=[1, 2]), 3) == 2
    assert effective_min_isr(placed([1], replicas=[1, 2, 3]), 2) == 2
    assert effective_min_isr(placed([1], replicas=[1, 2, 3], adding=[2, 3]), 2) == 1
