"""A share-partition decides by itself, on virtual time and with writes that the test completes."""

from __future__ import annotations

import pytest
from share_partition_kit import INVALID, INVALID_STATE, LOCK_MS, OK, TEN, A, Driver, K, Q, R

from penstock.share.acknowledgement import AckBatch, AckType
from penstock.share.partition import LogBatch, ShareSnapshot
from penstock.share.redelivery import DeliveryLimit
from penstock.share.window import StateRun

# Acquisition


def test_new_records_are_acquired_by_one_member() -> None:
    d = Driver(TEN)
    assert d.acquire("a") == [(0, 9, 1)]
    assert d.acquire("b") == []
    assert d.states == [(0, 9, Q, 1)]


def test_batch_optimized_acquisition_ends_at_the_batch_in_which_the_limit_is_reached() -> None:
    d = Driver(TEN, LogBatch(10, 19), LogBatch(20, 29))
    assert d.acquire(max_records=11) == [(0, 19, 1)]


def test_the_record_limit_is_exact() -> None:
    d = Driver(TEN, LogBatch(10, 19))
    assert d.exact("a", 3) == [(0, 2, 1)]
    assert d.exact("b", 9) == [(3, 11, 1)]


def test_a_read_from_within_a_batch_acquires_only_the_rest_of_it() -> None:
    d = Driver(TEN, start=4)
    assert d.acquire() == [(4, 9, 1)]


def test_locks_are_limited_within_a_batch() -> None:
    d = Driver(LogBatch(0, 999), max_locks=100)
    assert d.acquire("a", 5) == [(0, 99, 1)]
    assert d.partition.next_fetch_offset() is None
    d.settle(0, 9, AckType.ACCEPT)
    assert d.acquire("b") == [(100, 109, 1)]


def test_records_that_wait_behind_an_unacknowledged_one_count_as_locks() -> None:
    d = Driver(LogBatch(0, 199), max_locks=100)
    d.acquire()
    d.settle(1, 99, AckType.ACCEPT)
    assert d.acquire("b") == []
    assert d.partition.start_offset == 0


def test_offsets_between_batches_are_archived() -> None:
    d = Driver(LogBatch(0, 4), LogBatch(8, 9))
    assert d.acquire() == [(0, 4, 1), (8, 9, 1)]
    assert d.states == [(0, 4, Q, 1), (5, 7, R, 0), (8, 9, Q, 1)]
    d.settle(0, 4, AckType.ACCEPT)
    assert d.partition.start_offset == 8


def test_a_long_gap_uses_no_locks() -> None:
    d = Driver(LogBatch(0, 0), LogBatch(1_000_000, 1_000_098), max_locks=100)
    assert d.acquire() == [(0, 0, 1), (1_000_000, 1_000_098, 1)]


def test_undeliverable_batches_are_archived_and_do_not_hold_back_the_start() -> None:
    d = Driver(LogBatch(0, 4, is_deliverable=False), LogBatch(5, 9))
    assert d.acquire() == [(5, 9, 1)]
    assert d.partition.start_offset == 5


def test_a_released_record_that_compaction_removed_is_archived() -> None:
    d = Driver(TEN)
    d.acquire()
    d.settle(0, 9, AckType.RELEASE)
    d.batches = [LogBatch(5, 9)]
    assert d.acquire("b") == [(5, 9, 2)]
    assert d.partition.start_offset == 5


def test_a_released_record_in_a_batch_that_was_aborted_is_archived() -> None:
    d = Driver(LogBatch(0, 4), LogBatch(5, 9))
    d.acquire()
    d.settle(0, 9, AckType.RELEASE)
    d.batches[0] = LogBatch(0, 4, is_deliverable=False)
    assert d.acquire() == [(5, 9, 2)]


def test_released_records_are_delivered_before_new_ones() -> None:
    d = Driver(TEN, LogBatch(10, 19))
    d.exact("a", 10)
    d.settle(2, 3, AckType.RELEASE)
    assert d.exact("b", 5) == [(2, 3, 2), (10, 12, 1)]


# Acknowledgement


def test_an_acknowledgement_takes_effect_once_it_is_durable() -> None:
    d = Driver(TEN)
    d.acquire()
    result = d.partition.acknowledge("a", [AckBatch(0, 9, [AckType.ACCEPT])], 0)
    assert result == (OK, 1)
    assert d.partition.start_offset == 0
    assert d.partition.begin_write() == ShareSnapshot(10, [])
    assert d.partition.start_offset == 0
    assert d.partition.complete_write(True) == 1
    assert d.partition.start_offset == 10


def test_a_failed_write_returns_the_records_to_their_holder() -> None:
    d = Driver(TEN)
    d.acquire()
    assert d.ack(0, 9, AckType.ACCEPT) is OK
    d.write(is_durable=False)
    assert d.states == [(0, 9, Q, 1)]
    d.settle(0, 9, AckType.ACCEPT)
    assert d.partition.start_offset == 10


def test_after_a_failed_write_the_lock_still_times_out() -> None:
    d = Driver(TEN)
    d.acquire()
    d.ack(0, 9, AckType.ACCEPT)
    d.partition.begin_write()
    d.now_ms = LOCK_MS
    assert not d.partition.expire(d.now_ms), "an acknowledged record does not time out during its write"
    d.partition.complete_write(False)
    assert d.partition.expire(d.now_ms)
    assert d.acquire("b") == [(0, 9, 2)]


def test_acknowledgements_during_a_write_share_the_next_one() -> None:
    d = Driver(TEN)
    d.acquire()
    assert d.partition.acknowledge("a", [AckBatch(0, 0, [AckType.ACCEPT])], 0).write == 1
    assert d.partition.begin_write() is not None
    assert d.partition.acknowledge("a", [AckBatch(1, 1, [AckType.ACCEPT])], 0).write == 2
    assert d.partition.acknowledge("a", [AckBatch(2, 2, [AckType.ACCEPT])], 0).write == 2
    assert d.partition.begin_write() is None
    d.partition.complete_write(False)
    assert d.states == [(0, 0, Q, 1), (1, 2, Q, 1), (3, 9, Q, 1)]
    assert d.partition.begin_write() == ShareSnapshot(0, [(0, 0, A, 1), (1, 2, K, 1), (3, 9, A, 1)])
    d.partition.complete_write(True)
    assert d.states == [(0, 0, Q, 1), (1, 2, K, 1), (3, 9, Q, 1)]


def test_each_record_may_have_its_own_type() -> None:
    d = Driver(LogBatch(0, 3))
    d.acquire()
    d.settle(0, 3, AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.GAP)
    assert d.states == [(1, 1, A, 1), (2, 3, R, 1)]


@pytest.mark.parametrize("ack_type", [AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW])
def test_only_the_holder_may_acknowledge(ack_type: AckType) -> None:
    d = Driver(TEN)
    d.acquire("a")
    assert d.ack(0, 9, ack_type, member="b") is INVALID_STATE
    assert d.states == [(0, 9, Q, 1)]


def test_a_record_is_acknowledged_once() -> None:
    d = Driver(TEN)
    d.acquire()
    assert d.ack(0, 4, AckType.ACCEPT) is OK
    assert d.ack(0, 4, AckType.RELEASE) is INVALID_STATE
    d.write()
    assert d.ack(4, 5, AckType.ACCEPT) is INVALID_STATE
    d.settle(5, 5, AckType.ACCEPT)
    assert d.partition.start_offset == 6


def test_acknowledgements_of_a_request_succeed_or_fail_together() -> None:
    d = Driver(TEN)
    d.exact("a", 5)
    batches = [AckBatch(0, 1, [AckType.ACCEPT]), AckBatch(4, 5, [AckType.ACCEPT])]
    d.exact("b", 5)
    assert d.partition.acknowledge("a", batches, 0) == (INVALID_STATE, 0)
    assert d.partition.begin_write() is None


@pytest.mark.parametrize(
    "batches",
    [
        [AckBatch(0, 10, [1])],
        [AckBatch(5, 4, [1])],
        [AckBatch(-1, 4, [1])],
        [AckBatch(0, 3, [1, 1])],
        [AckBatch(0, 3, [])],
        [AckBatch(0, 3, [5])],
        [AckBatch(0, 3, [-1])],
        [AckBatch(3, 4, [1]), AckBatch(0, 1, [1])],
        [AckBatch(0, 3, [1]), AckBatch(3, 4, [1])],
    ],
)
def test_malformed_acknowledgements_are_refused(batches: list[AckBatch]) -> None:
    d = Driver(TEN)
    d.acquire()
    assert d.partition.acknowledge("a", batches, 0) == (INVALID, 0)


# Locks and delivery counts


def test_a_lock_times_out_and_the_record_goes_to_another_member() -> None:
    d = Driver(TEN)
    d.acquire("a")
    assert d.partition.next_deadline_ms == LOCK_MS
    d.now_ms = LOCK_MS - 1
    assert d.acquire("b") == []
    d.now_ms = LOCK_MS
    assert d.acquire("b") == [(0, 9, 2)]
    assert d.ack(0, 9, AckType.ACCEPT, member="a") is INVALID_STATE


def test_a_renewed_lock_lasts_from_the_renewal() -> None:
    d = Driver(TEN)
    d.acquire("a")
    d.now_ms = LOCK_MS - 1
    assert d.partition.acknowledge("a", [AckBatch(0, 4, [AckType.RENEW])], d.now_ms) == (OK, 0)
    d.now_ms = LOCK_MS
    assert d.acquire("b") == [(5, 9, 2)]
    d.now_ms = 2 * LOCK_MS - 1
    assert d.acquire("b") == [(0, 4, 2)]


def test_a_record_is_archived_after_its_last_delivery() -> None:
    d = Driver(LogBatch(0, 0), limit=2)
    d.acquire()
    d.settle(0, 0, AckType.RELEASE)
    assert d.acquire() == [(0, 0, 2)]
    d.settle(0, 0, AckType.RELEASE)
    assert d.partition.start_offset == 1
    assert d.acquire() == []


def test_a_lock_of_the_last_delivery_that_times_out_archives_the_record() -> None:
    d = Driver(LogBatch(0, 0), limit=2)
    d.acquire()
    d.settle(0, 0, AckType.RELEASE)
    d.acquire()
    assert d.partition.expire(LOCK_MS)
    assert d.write() == ShareSnapshot(1, [])


def test_near_the_limit_batches_shrink_to_single_records() -> None:
    d = Driver(LogBatch(0, 7))
    sizes = []
    for _ in range(5):
        (found,) = d.acquire()
        sizes.append(found.last - found.first + 1)
        d.settle(found.first, found.last, AckType.RELEASE)
    assert sizes == [8, 8, 8, 4, 1]


def test_a_suspicious_record_is_not_delivered_with_others() -> None:
    d = Driver(LogBatch(0, 1), LogBatch(2, 9), runs=[StateRun(0, 0, A, 1), StateRun(1, 1, A, 4)])
    assert d.acquire("a") == [(0, 0, 2)]
    assert d.acquire("b") == [(1, 1, 5)]
    assert d.acquire("c") == [(2, 9, 1)]


def test_a_lower_limit_archives_what_has_reached_it() -> None:
    d = Driver(TEN)
    d.acquire()
    d.settle(0, 9, AckType.RELEASE)
    d.partition.limits.policy = DeliveryLimit(1)
    assert d.acquire() == []
    assert d.write() == ShareSnapshot(10, [])


def test_the_end_of_a_session_releases_its_locks_only() -> None:
    d = Driver(TEN)
    d.exact("a", 5)
    d.exact("b", 5)
    assert d.partition.release_member("a", d.now_ms)
    assert d.states == [(0, 4, A, 1), (5, 9, Q, 1)]
    assert not d.partition.release_member("a", d.now_ms)


# Start offset and failover


def test_the_start_advances_over_final_records_only() -> None:
    d = Driver(TEN)
    d.acquire()
    d.settle(0, 1, AckType.ACCEPT)
    d.settle(5, 9, AckType.REJECT)
    assert d.partition.start_offset == 2
    assert d.partition.completed == 5
    d.settle(2, 4, AckType.ACCEPT)
    assert (d.partition.start_offset, d.partition.completed) == (10, 0)


def test_deleted_records_leave_the_window_in_any_state() -> None:
    d = Driver(TEN)
    d.acquire()
    d.partition.on_log_start(4)
    assert d.ack(0, 5, AckType.ACCEPT) is OK
    assert d.write() == ShareSnapshot(6, [(6, 9, A, 1)])
    d.partition.on_log_start(50)
    assert (d.partition.start_offset, d.states) == (50, [])


def test_deletion_during_a_write_does_not_lose_its_result() -> None:
    d = Driver(TEN)
    d.acquire()
    d.ack(0, 9, AckType.ACCEPT)
    d.partition.begin_write()
    d.partition.on_log_start(5)
    d.partition.complete_write(True)
    assert d.partition.start_offset == 10


def test_a_new_leader_redelivers_what_was_held_and_nothing_that_was_acknowledged() -> None:
    d = Driver(TEN)
    d.acquire()
    assert d.ack(0, 2, AckType.ACCEPT) is OK
    assert d.ack(5, 6, AckType.REJECT) is OK
    stored = d.write()
    assert (stored.start_offset, stored.runs) == (3, [(3, 4, A, 1), (5, 6, R, 1), (7, 9, A, 1)])
    successor = Driver(TEN, start=stored.start_offset, runs=stored.runs)
    assert successor.acquire("b") == [(3, 4, 2), (7, 9, 2)]


def test_a_new_leader_archives_what_was_held_for_the_last_time() -> None:
    d = Driver(TEN, runs=[StateRun(0, 9, A, 5)])
    assert d.acquire() == []
    assert d.write() == ShareSnapshot(10, [])


def test_a_partition_is_idle_once_all_is_written_and_nothing_is_held() -> None:
    d = Driver(TEN)
    assert d.partition.is_idle
    d.acquire()
    assert not d.partition.is_idle
    d.ack(0, 9, AckType.RELEASE)
    d.partition.begin_write()
    assert not d.partition.is_idle
    d.partition.complete_write(True)
    assert d.partition.is_idle


def test_a_late_acknowledgement_of_a_record_that_is_done_is_refused_below_the_start_offset_too() -> None:
    d = Driver(TEN)
    d.acquire()
    d.settle(0, 4, AckType.ACCEPT)
    assert d.partition.start_offset == 5
    assert d.ack(0, 4, AckType.ACCEPT) is INVALID_STATE
    assert d.ack(4, 5, AckType.ACCEPT) is INVALID_STATE
    d.partition.on_log_start(7)
    assert d.ack(6, 8, AckType.ACCEPT) is OK, "the log has deleted offset 6"
