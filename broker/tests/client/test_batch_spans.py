"""Selection of the batches of a response that are in an offset range, by their headers alone."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import DamagedBatch, OffsetRange
from penstock.client.batch_spans import PREFIX, BatchSpan, measure
from penstock.wire.batch import BASE_OFFSET
from penstock.wire.record import Record
from penstock.wire.records import build_batch


def batch(base: int, count: int) -> bytes:
    made = bytearray(build_batch([Record(value=b"v", timestamp_ms=1) for _ in range(count)]))
    BASE_OFFSET.pack_into(made, 0, base)
    return bytes(made)


def range_of(start: int, end: int) -> OffsetRange:
    return OffsetRange("t", 0, start, end)


def test_whole_batches_count_and_tell_what_is_next() -> None:
    data = batch(0, 3) + batch(3, 2)
    assert measure(memoryview(data), range_of(0, 100), 0) == BatchSpan(len(data), 5, 0)


def test_a_batch_that_is_cut_short_is_left_for_the_next_answer() -> None:
    first, second = batch(0, 3), batch(3, 2)
    for missing in range(1, len(second) - PREFIX.size):
        found = measure(memoryview((first + second)[:-missing]), range_of(0, 100), 0)
        assert found == BatchSpan(len(first), 3, len(second))
    assert measure(memoryview((first + second)[: len(first) + 10]), range_of(0, 100), 0) == BatchSpan(len(first), 3, 0)


def test_the_first_batch_may_begin_before_what_was_asked_for() -> None:
    data = batch(10, 10)
    assert measure(memoryview(data), range_of(15, 100), 15) == BatchSpan(len(data), 20, 0)


def test_batches_past_the_end_are_cut_off() -> None:
    first, rest = batch(0, 10), batch(10, 10) + batch(20, 10)
    assert measure(memoryview(first + rest), range_of(0, 5), 0) == BatchSpan(len(first), 10, 0)
    assert measure(memoryview(first + rest), range_of(0, 10), 0) == BatchSpan(len(first), 10, 0)


def test_a_range_whose_last_offsets_are_compacted_away_ends_where_the_next_batch_begins() -> None:
    first, far = batch(0, 10), batch(50, 10)
    assert measure(memoryview(first + far), range_of(0, 40), 0) == BatchSpan(len(first), 40, 0)
    assert measure(memoryview(far), range_of(20, 40), 20) == BatchSpan(0, 40, 0)
    cut = far[: PREFIX.size]
    assert measure(memoryview(cut), range_of(20, 40), 20) == BatchSpan(0, 40, 0)


def test_nothing_came() -> None:
    assert measure(memoryview(b""), range_of(7, 9), 7) == BatchSpan(0, 7, 0)


@pytest.mark.parametrize(("length", "delta"), [(-1, 0), (0, 0), (14, 0), (-(1 << 31), 0), (60, -1), (60, -(1 << 31))])
def test_lengths_that_cannot_be_are_named_with_their_place(length: int, delta: int) -> None:
    data = bytearray(batch(5, 1))
    struct.pack_into(">i", data, 8, length)
    struct.pack_into(">i", data, 23, delta)
    with pytest.raises(DamagedBatch, match=r'"t", partition 0, offset 5'):
        measure(memoryview(data), range_of(0, 100), 0)


def test_a_batch_that_was_read_before_is_not_read_again() -> None:
    with pytest.raises(DamagedBatch, match="ends at offset 4, but 5 is next"):
        measure(memoryview(batch(0, 5)), range_of(0, 100), 5)
    with pytest.raises(DamagedBatch):
        measure(memoryview(batch(5, 5) + batch(5, 5)), range_of(0, 100), 5)


@given(st.binary(max_size=200), st.integers(0, 100), st.integers(0, 100))
def test_any_bytes_are_measured_or_refused(data: bytes, start: int, length: int) -> None:
    try:
        found = measure(memoryview(data), range_of(start, start + length), start)
    except DamagedBatch:
        return
    assert 0 <= found.size_bytes <= len(data)
    assert found.next_offset >= start
