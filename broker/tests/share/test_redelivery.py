"""Released records are delivered again after their back-off, without a delay for their neighbours."""

from __future__ import annotations

import pytest
from share_partition_kit import INVALID, LOCK_MS, OK, TEN, A, Driver, Q

from penstock.share.acknowledgement import AckBatch, AckType
from penstock.share.acquisition import AcquireRequest
from penstock.share.partition import LogBatch, ShareLimits
from penstock.share.redelivery import MAX_DELAY_MS, NEVER, NO_BACKOFF, Delay, DeliveryLimit, RedeliveryBackoff
from penstock.share.window import StateRun

SECOND = 1000
BACKOFF = RedeliveryBackoff(SECOND, 3, 5 * SECOND)
RELEASE = AckType.RELEASE


def test_the_back_off_grows_with_each_delivery_up_to_its_maximum() -> None:
    assert [BACKOFF.after(count) for count in range(5)] == [0, 1000, 3000, 5000, 5000]
    assert NO_BACKOFF.after(7) == 0
    assert RedeliveryBackoff(10, 100, SECOND).after(1 << 15) == SECOND, "no overflow"
    assert RedeliveryBackoff(10 * SECOND, 2, SECOND).after(1) == SECOND, "the maximum bounds the first back-off too"


def test_a_released_record_is_available_after_its_back_off() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire()
    d.settle(0, 9, RELEASE)
    assert d.partition.next_deadline_ms == SECOND
    d.pass_time(SECOND - 1)
    assert d.acquire() == []
    d.pass_time(1)
    assert d.acquire() == [(0, 9, 2)]
    d.settle(0, 9, RELEASE)
    d.pass_time(3 * SECOND - 1)
    assert d.acquire() == []
    d.pass_time(1)
    assert d.acquire() == [(0, 9, 3)]


def test_the_neighbours_of_a_record_in_back_off_are_delivered() -> None:
    d = Driver(TEN, LogBatch(10, 19), backoff=BACKOFF)
    d.exact("a", 5)
    d.settle(1, 2, RELEASE)
    assert d.exact("b", 8) == [(5, 12, 1)]
    d.pass_time(SECOND)
    assert d.exact("b", 3) == [(1, 2, 2), (13, 13, 1)]


def test_a_record_whose_lock_times_out_has_a_back_off() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire()
    d.pass_time(LOCK_MS)
    assert d.partition.expire(d.now_ms)
    assert d.partition.next_deadline_ms == LOCK_MS + SECOND
    assert d.acquire("b") == []
    d.pass_time(SECOND)
    assert d.acquire("b") == [(0, 9, 2)]


def test_the_records_of_a_session_that_ends_have_a_back_off() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire("a")
    assert d.partition.release_member("a", d.now_ms)
    assert d.acquire("b") == []
    d.pass_time(SECOND)
    assert d.acquire("b") == [(0, 9, 2)]


@pytest.mark.parametrize("backoff", [NO_BACKOFF, BACKOFF])
def test_a_client_can_name_the_delay_of_a_release(backoff: RedeliveryBackoff) -> None:
    d = Driver(TEN, backoff=backoff)
    d.acquire()
    d.settle(0, 4, RELEASE, delay_ms=7 * SECOND)
    d.settle(5, 9, RELEASE, delay_ms=0)
    assert d.acquire() == [(5, 9, 2)]
    d.pass_time(7 * SECOND - 1)
    assert d.acquire() == []
    d.pass_time(1)
    assert d.acquire() == [(0, 4, 2)]


@pytest.mark.parametrize(("delay_ms", "error"), [(-2, INVALID), (MAX_DELAY_MS + 1, INVALID), (MAX_DELAY_MS, OK)])
def test_a_delay_is_bounded(delay_ms: int, error: int) -> None:
    d = Driver(TEN)
    d.acquire()
    assert d.ack(0, 9, RELEASE, delay_ms=delay_ms) is error


def test_other_acknowledgements_ignore_the_delay() -> None:
    d = Driver(LogBatch(0, 1))
    d.acquire()
    d.settle(0, 1, AckType.ACCEPT, AckType.REJECT, delay_ms=SECOND)
    assert (d.partition.start_offset, d.partition.delays.next_end_ms) == (2, NEVER)


def test_a_release_whose_write_fails_has_no_delay() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire()
    assert d.ack(0, 9, RELEASE) is OK
    d.write(is_durable=False)
    assert (d.states, d.partition.delays.next_end_ms) == ([(0, 9, Q, 1)], NEVER)


def test_a_delay_that_is_over_before_the_write_is_durable_ends_with_it() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire()
    assert d.ack(0, 9, RELEASE) is OK
    d.pass_time(SECOND)
    d.write()
    assert d.partition.expire(d.now_ms)
    assert d.acquire() == [(0, 9, 2)]


def test_records_released_one_by_one_are_available_together() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire()
    for offset in range(10):
        d.pass_time(0.9)
        d.settle(offset, offset, RELEASE)
    d.now_ms = SECOND + 10.0
    assert d.partition.expire(d.now_ms)
    assert d.states == [(0, 9, A, 1)]


def test_a_new_leader_starts_the_back_offs_anew() -> None:
    runs = [StateRun(0, 4, A, 1), StateRun(5, 9, A, 2)]
    d = Driver(TEN, LogBatch(10, 11), runs=runs, backoff=BACKOFF)
    assert d.acquire() == [(10, 11, 1)]
    d.pass_time(SECOND)
    assert d.acquire() == [(0, 4, 2)]
    d.pass_time(2 * SECOND)
    assert d.acquire() == [(5, 9, 3)]


def test_a_claim_by_the_same_leader_continues_the_delays() -> None:
    d = Driver(TEN, runs=[StateRun(0, 9, A, 1)], backoff=BACKOFF, delays=[Delay(2 * SECOND, 3, 4)])
    assert d.acquire() == [(0, 2, 2), (5, 9, 2)]
    d.pass_time(2 * SECOND)
    assert d.acquire() == [(3, 4, 2)]


def test_delays_of_an_earlier_claim_concern_records_in_the_window_only() -> None:
    d = Driver(TEN, LogBatch(10, 19), start=10, delays=[Delay(SECOND, 3, 4), Delay(SECOND, 12, 13)])
    assert d.acquire() == [(10, 19, 1)]


def test_the_delays_of_deleted_records_are_dropped() -> None:
    d = Driver(TEN)
    d.acquire()
    d.settle(0, 4, RELEASE, delay_ms=MAX_DELAY_MS)
    d.settle(5, 9, RELEASE, delay_ms=SECOND)
    d.partition.on_log_start(5)
    assert [delay.first for delay in d.partition.delays] == [5]
    d.partition.on_log_start(10)
    assert d.partition.delays.next_end_ms == NEVER


def test_a_record_in_back_off_that_compaction_removed_is_archived() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire()
    d.settle(0, 9, RELEASE)
    d.batches = [LogBatch(5, 9)]
    d.partition.acquire(AcquireRequest("a", 1), 0, d.batches, d.now_ms)
    assert d.partition.start_offset == 5
    d.pass_time(SECOND)
    assert d.acquire() == [(5, 9, 2)]


def test_changed_settings_apply_to_the_next_back_off() -> None:
    d = Driver(TEN, backoff=BACKOFF)
    d.acquire()
    d.settle(0, 9, RELEASE)
    d.partition.configure(ShareLimits(LOCK_MS, 2000, DeliveryLimit(5)))
    assert d.acquire() == []
    d.pass_time(SECOND)
    assert d.acquire() == [(0, 9, 2)]
    d.settle(0, 9, RELEASE)
    assert d.acquire() == [(0, 9, 3)]


def test_a_record_in_back_off_counts_as_in_flight() -> None:
    d = Driver(TEN, LogBatch(10, 19), backoff=BACKOFF, max_locks=10)
    d.acquire()
    d.settle(0, 9, RELEASE)
    assert d.partition.next_fetch_offset() is None
    d.pass_time(SECOND)
    assert d.acquire() == [(0, 9, 2)]


def test_the_last_delivery_has_no_back_off() -> None:
    d = Driver(LogBatch(0, 0), limit=2, backoff=BACKOFF)
    d.acquire()
    d.settle(0, 0, RELEASE)
    d.pass_time(SECOND)
    d.acquire()
    assert d.partition.acknowledge("a", [AckBatch(0, 0, [RELEASE])], d.now_ms).error is OK
    d.write()
    assert (d.partition.start_offset, d.partition.delays.next_end_ms) == (1, NEVER)
