"""What is read of a batch: the keys of its records, and which of them pass the filter."""

from __future__ import annotations

import pytest
from share_partition_kit import TEN, A, Driver, K, Q, R, filtered

from penstock.filter import RecordFilter
from penstock.share.acknowledgement import AckType
from penstock.share.acquisition import AcquireMode
from penstock.share.contents import BatchContents, ContentsQuery, adjacent, decode_contents, no_keys
from penstock.share.partition import LogBatch
from penstock.wire.batch import read_header
from penstock.wire.compression import Codec, DecompressedTooLarge
from penstock.wire.records import Record, build_batch

MUCH = 1 << 20
BIG = RecordFilter("size > 2")


def batch_of(sizes: str, codec: Codec = Codec.NONE, keys: str = "") -> bytes:
    """Return a batch with a record for each digit, which is in its header "size"."""
    records = [
        Record(key=key.encode() if key != "-" else None, value=b"v", headers=(("size", size.encode()),), timestamp_ms=1)
        for size, key in zip(sizes, keys or "-" * len(sizes), strict=True)
    ]
    return build_batch(records, codec=codec)


def contents_of(batch: bytes, query: ContentsQuery, max_bytes: int = MUCH) -> BatchContents:
    return decode_contents(memoryview(batch), read_header(batch), query, max_bytes)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_records_that_pass_are_ranges_of_offsets(codec: Codec) -> None:
    found = contents_of(batch_of("355123", codec), ContentsQuery(False, BIG))
    assert found.matching == [(0, 2), (5, 5)]
    assert list(found.matching_between(1, 5)) == [(1, 2), (5, 5)]
    assert list(found.matching_between(3, 4)) == []


def test_keys_are_read_for_order_only() -> None:
    batch = batch_of("1111", keys="ab-a")
    assert contents_of(batch, ContentsQuery(False, None)) == (no_keys(), None)
    keys = contents_of(batch, ContentsQuery(True, BIG)).keys
    assert list(keys.offsets) == [0, 1, 3], "whether or not they pass: the window may have them from before"
    assert keys.hashes[0] == keys.hashes[2] != keys.hashes[1]


def test_without_a_filter_all_offsets_pass() -> None:
    assert list(contents_of(batch_of("11"), ContentsQuery(True, None)).matching_between(3, 9)) == [(3, 9)]


def test_records_that_cannot_be_decoded_pass() -> None:
    damaged = batch_of("111")[:-3] + b"\xff\xff\xff"
    assert contents_of(damaged, ContentsQuery(True, BIG)).matching is None


def test_a_batch_that_is_too_large_is_refused() -> None:
    with pytest.raises(DecompressedTooLarge):
        contents_of(batch_of("1" * 100, Codec.GZIP), ContentsQuery(False, BIG), max_bytes=50)


def test_adjacent_offsets_are_ranges() -> None:
    assert list(adjacent([])) == []
    assert list(adjacent([3])) == [(3, 3)]
    assert list(adjacent([1, 2, 3, 5, 7, 8])) == [(1, 3), (5, 5), (7, 8)]


# Share-partitions with a filter


def test_only_records_that_pass_are_acquired() -> None:
    d = Driver(filtered(0, "AabBc"), TEN._replace(first=5))
    assert d.acquire() == [(1, 2, 1), (4, 9, 1)]
    assert d.states[0] == (1, 2, Q, 1), "what leads the window is done"
    assert d.partition.filtered == 2


def test_filtered_records_are_done_without_a_delivery_and_count_for_the_lag() -> None:
    d = Driver(filtered(0, "aABCb"))
    d.acquire()
    assert d.states == [(0, 0, Q, 1), (1, 3, R, 0), (4, 4, Q, 1)]
    assert d.partition.completed == 3
    d.settle(0, 0, AckType.ACCEPT)
    assert d.partition.start_offset == 4


def test_a_partition_without_matching_records_moves_on() -> None:
    d = Driver(filtered(0, "ABC"), filtered(3, "D"))
    assert d.acquire() == []
    assert d.partition.start_offset == 4
    assert d.write().start_offset == 4, "the progress is stored"


def test_filtered_records_do_not_fill_the_window() -> None:
    d = Driver(filtered(0, "A" * 500 + "ab" + "A" * 500 + "c"), max_locks=2)
    assert d.acquire() == [(500, 501, 1)]
    assert d.acquire() == []
    d.settle(500, 500, AckType.ACCEPT)
    assert d.acquire() == [(1002, 1002, 1)]


@pytest.mark.parametrize("mode", list(AcquireMode))
def test_filtered_records_do_not_count_for_the_limit_of_a_request(mode: AcquireMode) -> None:
    d = Driver(filtered(0, "aAbBc"), filtered(5, "Ad"))
    assert d.acquire(max_records=3, mode=mode) == [(0, 0, 1), (2, 2, 1), (4, 4, 1)]
    assert d.acquire(mode=mode) == [(6, 6, 1)]


def test_a_batch_is_acquired_in_parts() -> None:
    d = Driver(filtered(0, "abAcdB"))
    assert d.exact(max_records=1) == [(0, 0, 1)]
    assert d.exact(max_records=2) == [(1, 1, 1), (3, 3, 1)]
    assert d.exact(max_records=2) == [(4, 4, 1)]
    assert d.states == [(0, 1, Q, 1), (2, 2, R, 0), (3, 4, Q, 1), (5, 5, R, 0)]


def test_a_released_record_is_delivered_again_though_the_filter_has_changed() -> None:
    d = Driver(filtered(0, "ab"))
    d.acquire()
    d.settle(0, 0, AckType.RELEASE)
    d.batches = [filtered(0, "AB")]
    assert d.acquire() == [(0, 0, 2)]


def test_a_changed_filter_does_not_bring_back_what_is_done() -> None:
    d = Driver(filtered(0, "aBB"), filtered(3, "CC"))
    assert d.exact(max_records=1) == [(0, 0, 1)]
    d.batches = [filtered(0, "abb"), filtered(3, "cc"), filtered(5, "e")]
    d.settle(0, 0, AckType.ACCEPT)
    assert d.acquire() == [(3, 5, 1)], "1 and 2 were read with the former filter"


def test_contents_that_are_not_known_end_the_acquisition() -> None:
    d = Driver(filtered(0, "a"), LogBatch(1, 2, read_contents=lambda: None), filtered(3, "b"))
    assert d.acquire() == [(0, 0, 1)]
    assert d.acquire() == []
    d.batches[1] = filtered(1, "Ac")
    assert d.acquire() == [(2, 3, 1)]


def test_a_new_leader_keeps_what_is_filtered_as_done() -> None:
    d = Driver(filtered(0, "aBc"))
    d.acquire()
    stored = d.write()
    assert [state for *_, state, _ in stored.runs] == [A, R, A]
    new = Driver(filtered(0, "abc"), start=stored.start_offset, runs=stored.runs)
    assert new.acquire() == [(0, 0, 2), (2, 2, 2)]
    assert K not in {state for *_, state, _ in new.states}
