"""Records of fetched batches, from the position, without control batches and aborted transactions."""

from __future__ import annotations

import struct

import pytest

from penstock.client.errors import IllegalState
from penstock.client.positions import PartitionState, Positions
from penstock.client.types import SkippedBatch, TopicPartition
from penstock.filter import RecordFilter
from penstock.wire.batch import CONTROL, TRANSACTIONAL, checksum, read_header
from penstock.wire.batch_builder import build_batch
from penstock.wire.batch_filter import rebuild_batch
from penstock.wire.messages.fetch import AbortedTransaction
from penstock.wire.record import Record
from penstock.wire.schema import MalformedMessage

TP = TopicPartition("t", 0)


def batch(base: int, count: int, *, producer_id: int = -1, attributes: int = 0, codec: int = 0) -> bytes:
    records = [Record(base + n, 1000 + n, None, b"%d" % (base + n)) for n in range(count)]
    return build_batch(records, base_offset=base, producer_id=producer_id, attributes=attributes, codec=codec)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    record = Record(offset, 1000, struct.pack(">hh", 0, int(commit)), b"\0" * 6)
    return build_batch([record], base_offset=offset, producer_id=producer_id, attributes=TRANSACTIONAL | CONTROL)


def damaged(base: int, count: int) -> bytes:
    """Return a batch with a valid CRC over invalid compressed records."""
    data = bytearray(batch(base, count, codec=1))
    data[-12:-8] = b"\xff\xff\xff\xff"
    struct.pack_into(">I", data, 17, checksum(memoryview(data), 0, len(data)))
    return bytes(data)


def state_at(offset: int) -> PartitionState:
    state = PartitionState(TP)
    state.seek(offset)
    return state


def fill(state: PartitionState, *batches: bytes, aborted: list[AbortedTransaction] | None = None) -> None:
    state.append_batches(memoryview(b"".join(batches)), aborted, aborted is not None)


def offsets(state: PartitionState) -> list[int]:
    return [record.offset for record in state.read_records(1000)]


@pytest.mark.parametrize("codec", range(5))
def test_records_before_the_position_are_left_out_of_a_batch_that_begins_earlier(codec: int) -> None:
    state = state_at(3)
    fill(state, batch(0, 6, codec=codec))
    assert offsets(state) == [3, 4, 5]
    assert state.position == 6


def test_taking_a_few_leaves_the_position_behind_them() -> None:
    state = state_at(0)
    fill(state, batch(0, 3), batch(3, 3))
    assert [r.offset for r in state.read_records(4)] == [0, 1, 2, 3]
    assert state.position == 4
    record = state.next_record()
    assert record is not None
    assert record.offset == 4


def test_a_batch_that_is_cut_short_is_not_taken_and_is_fetched_again() -> None:
    state = state_at(0)
    fill(state, batch(0, 3), batch(3, 3)[:-5])
    assert offsets(state) == [0, 1, 2]
    assert state.fetch_offset == 3


def test_a_damaged_batch_takes_no_good_record_with_it_and_is_passed_by_seeking_alone() -> None:
    state = state_at(0)
    fill(state, batch(0, 2), damaged(2, 2), batch(4, 1))
    assert offsets(state) == [0, 1]
    for _ in range(2):
        with pytest.raises(MalformedMessage):
            state.read_records(1000)
        assert state.position == 2
    with pytest.raises(MalformedMessage):
        state.next_record()
    assert state.position == 2
    state.seek(4)
    fill(state, batch(4, 1))
    assert offsets(state) == [4]


def test_damaged_batches_are_left_out_and_named_where_that_is_asked_for() -> None:
    skipped: list[SkippedBatch] = []
    state = PartitionState(TP, skipped.append)
    state.seek(0)
    fill(state, damaged(0, 2), batch(2, 2), damaged(4, 3), damaged(7, 1), batch(8, 1), damaged(9, 2))
    assert offsets(state) == [2, 3, 8]
    assert state.position == 11
    assert [(found.partition, found.first_offset, found.last_offset) for found in skipped] == [
        (TP, 0, 1), (TP, 4, 6), (TP, 7, 7), (TP, 9, 10),
    ]  # fmt: skip
    assert all("damaged gzip data" in found.reason for found in skipped)
    assert state.next_record() is None
    assert state.buffered_bytes == 0


def test_seeking_throws_away_what_is_buffered() -> None:
    state = state_at(0)
    fill(state, batch(0, 3))
    version = state.version
    state.seek(1)
    assert not state.has_records
    assert state.buffered_bytes == 0
    assert state.version != version


def test_control_batches_are_never_handed_out_and_move_the_position_on() -> None:
    state = state_at(0)
    fill(state, batch(0, 2), marker(2, 7, commit=True))
    assert offsets(state) == [0, 1]
    assert state.read_records(1) == []
    assert state.position == 3


def test_read_committed_leaves_out_what_was_aborted_and_only_that() -> None:
    state = state_at(0)
    mine = TRANSACTIONAL
    fill(
        state,
        batch(0, 2, producer_id=7, attributes=mine),
        batch(2, 2, producer_id=8, attributes=mine),
        batch(4, 1),
        marker(5, 7, commit=False),
        batch(6, 1, producer_id=7, attributes=mine),
        marker(7, 8, commit=True),
        marker(8, 7, commit=True),
        aborted=[AbortedTransaction(producer_id=7, first_offset=0)],
    )
    assert offsets(state) == [2, 3, 4, 6]
    assert state.position == 9


def test_read_uncommitted_hands_out_everything_but_markers() -> None:
    state = state_at(0)
    fill(state, batch(0, 2, producer_id=7, attributes=TRANSACTIONAL), marker(2, 7, commit=False))
    assert offsets(state) == [0, 1]


def test_an_assignment_keeps_the_state_of_what_stays() -> None:
    positions = Positions()
    other = TopicPartition("t", 1)
    assert positions.assign([TP]) == {TP}
    positions.state(TP).seek(5)
    assert positions.assign([TP, other]) == {other}
    assert positions.state(TP).position == 5
    positions.assign([other])
    with pytest.raises(IllegalState, match="t-0 is not assigned"):
        positions.state(TP)


def test_no_partition_is_always_the_first_rotated() -> None:
    positions = Positions()
    positions.assign(TopicPartition("t", p) for p in range(3))
    assert {positions.rotated()[0].tp.partition for _ in range(3)} == {0, 1, 2}


# Filters


def odd(base: int, count: int) -> bytes:
    """Return a batch whose records have their offset in a header."""
    records = [Record(base + n, 1000, None, b"", (("odd", b"%d" % ((base + n) % 2)),)) for n in range(count)]
    return build_batch(records, base_offset=base)


def test_records_that_do_not_pass_the_filter_are_left_out_and_moved_past() -> None:
    state = PartitionState(TP, record_filter=RecordFilter("odd = 1"))
    state.seek(0)
    fill(state, odd(0, 5), batch(5, 3), odd(8, 3), batch(11, 2))
    assert [record.offset for record in state.read_records(2)] == [1, 3]
    assert state.position == 5, "after the last record of its batch that passes"
    record = state.next_record()
    assert record is not None
    assert (record.offset, state.position) == (9, 11)
    assert state.next_record() is None
    assert state.position == 13


def test_a_batch_without_records_moves_the_position_on() -> None:
    state = state_at(0)
    fill(state, rebuild_batch(read_header(batch(0, 5)), []))
    assert offsets(state) == []
    assert (state.position, state.fetch_offset) == (5, 5)
