"""With `share.order.by.key`, records of one key are delivered one at a time and in order."""

from __future__ import annotations

from share_partition_kit import LOCK_MS, OK, A, Driver, K, Q, filtered, keyed

from penstock.share.acknowledgement import AckType
from penstock.share.partition import LogBatch, ShareLimits
from penstock.share.redelivery import DeliveryLimit, RedeliveryBackoff
from penstock.share.window import StateRun

ACCEPT, RELEASE, REJECT = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT


def ordered(*batches: LogBatch, **options: object) -> Driver:
    return Driver(*batches, is_ordered=True, **options)  # type: ignore[arg-type]


def offsets(d: Driver, member: str = "a", max_records: int = 500) -> list[int]:
    return [offset for found in d.acquire(member, max_records) for offset in range(found.first, found.last + 1)]


def test_one_record_of_each_key_is_delivered_at_a_time() -> None:
    d = ordered(keyed(0, "aabab"))
    assert offsets(d) == [0, 2]
    assert offsets(d, "b") == []
    d.settle(0, 0, ACCEPT)
    assert offsets(d, "b") == [1], "only the next record of the key"
    d.settle(2, 2, REJECT)
    assert offsets(d, "c") == [4]


def test_records_without_a_key_have_no_order() -> None:
    d = ordered(keyed(0, "a--a"), LogBatch(4, 5))
    assert offsets(d) == [0, 1, 2, 4, 5]


def test_a_blocked_key_blocks_only_itself() -> None:
    d = ordered(keyed(0, "aaaa"), keyed(4, "abac"))
    assert offsets(d, max_records=1) == [0]
    assert offsets(d) == [5, 7]


def test_a_batch_of_different_keys_is_acquired_in_one_range() -> None:
    d = ordered(keyed(0, "abcdefgh"))
    assert d.acquire() == [(0, 7, 1)]


def test_a_released_record_comes_before_the_later_ones_of_its_key() -> None:
    d = ordered(keyed(0, "ab"), keyed(2, "ab"))
    assert offsets(d) == [0, 1]
    d.settle(0, 0, RELEASE)
    assert offsets(d, "b") == [0]
    d.settle(0, 0, ACCEPT, member="b")
    assert offsets(d, "b") == [2]


def test_a_record_in_back_off_blocks_its_key_only() -> None:
    d = ordered(keyed(0, "ab"), keyed(2, "abc"), backoff=RedeliveryBackoff(1000, 1, 1000))
    offsets(d)
    d.settle(0, 0, RELEASE)
    d.settle(1, 1, ACCEPT)
    assert offsets(d) == [3]
    d.pass_time(1000)
    assert offsets(d) == [0]


def test_a_lock_that_times_out_keeps_the_order() -> None:
    d = ordered(keyed(0, "aa"))
    assert offsets(d) == [0]
    d.pass_time(LOCK_MS)
    assert d.acquire("b") == [(0, 0, 2)]


def test_an_acknowledgement_frees_its_key_once_it_is_durable() -> None:
    d = ordered(keyed(0, "aa"))
    offsets(d)
    assert d.ack(0, 0, ACCEPT) is OK
    assert offsets(d) == []
    d.write(is_durable=False)
    assert offsets(d) == []
    d.settle(0, 0, ACCEPT)
    assert offsets(d) == [1]


def test_a_record_that_was_delivered_too_often_frees_its_key() -> None:
    d = ordered(keyed(0, "aa"), limit=2)
    offsets(d)
    d.settle(0, 0, RELEASE)
    assert d.acquire() == [(0, 0, 2)]
    d.settle(0, 0, RELEASE)
    assert d.acquire() == [(1, 1, 1)]


def test_a_lower_limit_that_archives_a_record_frees_its_key() -> None:
    d = ordered(keyed(0, "aa"))
    offsets(d)
    d.settle(0, 0, RELEASE)
    d.partition.limits.policy = DeliveryLimit(1)
    assert offsets(d) == []
    assert offsets(d) == [], "the store has the record as available"
    d.write()
    assert offsets(d) == [1]


def test_a_lock_of_the_last_delivery_that_times_out_frees_its_key_once_that_is_durable() -> None:
    d = ordered(keyed(0, "aa"), limit=2)
    offsets(d)
    d.settle(0, 0, RELEASE)
    assert d.acquire() == [(0, 0, 2)]
    d.pass_time(LOCK_MS)
    assert offsets(d) == []
    d.write(is_durable=False)
    assert offsets(d) == [], "a failed write frees nothing"
    d.write()
    assert offsets(d) == [1]


def test_the_end_of_a_session_frees_the_keys_of_its_last_deliveries_once_that_is_durable() -> None:
    d = ordered(keyed(0, "aa"), limit=1)
    offsets(d)
    d.partition.release_member("a", d.now_ms)
    assert offsets(d, "b") == []
    d.write()
    assert offsets(d, "b") == [1]


def test_a_write_frees_no_key_of_a_record_that_was_done_after_it_began() -> None:
    d = ordered(keyed(0, "abab"), limit=1)
    offsets(d)
    assert d.ack(1, 1, ACCEPT) is OK
    stored = d.partition.begin_write()
    d.pass_time(LOCK_MS)
    d.partition.expire(d.now_ms)
    d.partition.complete_write(True)
    assert offsets(d, "b") == [3]
    assert stored is not None
    successor = ordered(*d.batches, start=stored.start_offset, runs=stored.runs)
    assert offsets(successor) == [0, 3]
    d.write()
    assert offsets(d, "b") == [2]


def test_a_new_leader_delivers_nothing_before_what_it_archived_is_durable() -> None:
    d = ordered(keyed(0, "aab"), limit=1, runs=[StateRun(0, 0, A, 1)])
    assert d.partition.next_fetch_offset() is None
    d.write(is_durable=False)
    assert d.partition.next_fetch_offset() is None
    d.write()
    assert offsets(d) == [1, 2]


def test_the_order_begins_once_the_store_has_what_was_done_before() -> None:
    d = Driver(keyed(0, "ab"), keyed(2, "ab"), limit=1)
    d.exact("a", 2)
    assert d.ack(1, 1, ACCEPT) is OK
    d.partition.begin_write()
    d.pass_time(LOCK_MS)
    d.partition.expire(d.now_ms)
    d.partition.configure(ShareLimits(LOCK_MS, 2000, DeliveryLimit(1), is_ordered=True))
    d.partition.complete_write(True)
    assert offsets(d) == []
    d.write()
    assert offsets(d) == [2, 3]


def test_records_that_are_not_durably_done_take_room() -> None:
    d = ordered(keyed(0, "abc"), keyed(3, "defgh"), limit=1, max_locks=3)
    assert offsets(d) == [0, 1, 2]
    d.pass_time(LOCK_MS)
    assert offsets(d) == []
    assert d.partition.start_offset == 3
    assert d.partition.next_fetch_offset() is None
    d.write()
    assert offsets(d) == [3, 4, 5]


def test_a_record_that_is_deleted_after_its_last_delivery_is_removed_once() -> None:
    d = ordered(keyed(0, "abaa"), limit=1)
    offsets(d)
    assert d.ack(0, 0, ACCEPT) is OK
    d.partition.begin_write()
    d.pass_time(LOCK_MS)
    d.partition.expire(d.now_ms)
    d.partition.on_log_start(3)
    d.partition.complete_write(True)
    assert offsets(d) == []
    d.write()
    assert offsets(d) == [3]


def test_deleted_and_compacted_records_free_their_key() -> None:
    d = ordered(keyed(0, "aaaa"))
    offsets(d)
    d.partition.on_log_start(2)
    assert offsets(d) == []
    d.write()
    assert offsets(d) == [2]
    d.settle(2, 2, RELEASE)
    d.batches = [keyed(3, "a")]
    assert offsets(d) == [], "this read finds that 2 is gone"
    assert offsets(d) == []
    d.write()
    assert offsets(d) == [3]


def test_a_new_leader_keeps_the_order() -> None:
    batches = keyed(0, "abab"), keyed(4, "abc")
    d = ordered(*batches)
    assert offsets(d) == [0, 1, 6]
    assert d.ack(1, 1, ACCEPT) is OK
    stored = d.write()
    assert stored.runs == [(0, 0, A, 1), (1, 1, K, 1), (2, 5, A, 0), (6, 6, A, 1)]
    successor = ordered(*batches, start=stored.start_offset, runs=stored.runs)
    assert offsets(successor, "b") == [0, 3, 6]


def test_a_new_leader_delivers_nothing_before_it_knows_the_keys() -> None:
    runs = [StateRun(0, 1, K, 1), StateRun(2, 2, A, 1), StateRun(3, 5, A, 0)]
    d = ordered(keyed(0, "ab"), keyed(2, "ab"), keyed(4, "ba"), runs=runs)
    d.partition.configure(ShareLimits(LOCK_MS, 2000, DeliveryLimit(5), is_ordered=False))
    assert d.exact("a", 2) == [(2, 2, 2), (3, 3, 1)]
    d.partition.configure(ShareLimits(LOCK_MS, 2000, DeliveryLimit(5), is_ordered=True))
    assert d.partition.next_fetch_offset() == 2, "the start of the window, where nothing is available"
    assert offsets(d, "b") == []
    d.settle(3, 3, ACCEPT)
    assert offsets(d, "b") == [4]


def test_without_the_setting_what_was_blocked_is_delivered() -> None:
    d = ordered(keyed(0, "aaab"))
    offsets(d)
    d.partition.configure(ShareLimits(LOCK_MS, 2000, DeliveryLimit(5)))
    assert offsets(d) == [1, 2]


def test_blocked_records_count_as_in_flight() -> None:
    d = ordered(keyed(0, "aaaaaaaa"), keyed(8, "bc"), max_locks=9)
    assert offsets(d, max_records=1) == [0]
    assert offsets(d) == [8]
    assert d.partition.next_fetch_offset() is None
    d.settle(0, 0, ACCEPT)
    assert offsets(d) == [1, 9]


def test_a_batch_whose_keys_cannot_be_read_ends_the_acquisition() -> None:
    d = ordered(keyed(0, "ab"), LogBatch(2, 3, read_contents=lambda: None))
    assert offsets(d) == [0, 1]
    assert d.states == [(0, 1, Q, 1)]
    assert offsets(d) == []
    d.batches[1] = keyed(2, "ac")
    assert offsets(d) == [3]


def test_many_deleted_records_cost_no_more_than_the_index() -> None:
    d = ordered(keyed(0, "aa"))
    offsets(d)
    d.partition.on_log_start(1 << 50)
    assert d.partition.next_fetch_offset() == 1 << 50


def test_records_that_do_not_fit_in_the_window_keep_their_order_later() -> None:
    d = ordered(keyed(0, "aaaab"), max_locks=2)
    for offset in range(3):
        assert offsets(d) == [offset]
        d.settle(offset, offset, ACCEPT)
    assert offsets(d) == [3, 4]


# Together with `share.filter`


def test_a_record_that_is_filtered_does_not_block_its_key() -> None:
    d = ordered(filtered(0, "aAab"))
    assert offsets(d) == [0, 3]
    d.settle(0, 0, ACCEPT)
    assert offsets(d) == [2]


def test_filtered_records_take_no_room_of_an_ordered_group() -> None:
    d = ordered(filtered(0, "aAAAAAAAab"), filtered(10, "Ac"), max_locks=3)
    assert offsets(d) == [0, 9]
    d.settle(0, 0, ACCEPT)
    assert offsets(d) == [8, 11]
