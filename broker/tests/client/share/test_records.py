"""Decoding of acquired records: of batches that others share, with gaps, and damaged ones."""

from __future__ import annotations

import pytest

from penstock.client import TopicPartition
from penstock.client.share.acquired import AcquiredPartition
from penstock.client.share.records import MAX_ACQUIRED_RECORDS, decode_acquired, delivery_counts
from penstock.client.share.types import Acknowledgement
from penstock.wire.batch_builder import build_batch
from penstock.wire.messages.share_fetch import AcquiredRecords, PartitionData
from penstock.wire.record import Record
from penstock.wire.schema import MalformedMessage

LOCK_END_S = 30.0


def partition() -> AcquiredPartition:
    return AcquiredPartition(TopicPartition("t", 0), lambda kind: None, lambda result: None)


def batch(first: int, count: int) -> bytes:
    records = [Record(n, 1000, b"k", b"%d" % n, (("h", b"v"),)) for n in range(first, first + count)]
    return bytes(build_batch(records, base_offset=first))


def test_only_acquired_records_of_a_batch_are_returned_with_their_delivery_counts() -> None:
    acquired = partition()
    data = PartitionData(
        records=batch(0, 5) + batch(5, 5), acquired_records=[AcquiredRecords(1, 2, 1), AcquiredRecords(6, 6, 3)]
    )
    records, error = decode_acquired(acquired, data, LOCK_END_S)
    assert error is None
    assert [(r.offset, r.value, r.delivery_count) for r in records] == [(1, b"1", 1), (2, b"2", 1), (6, b"6", 3)]
    assert (records[0].topic, records[0].partition, records[0].key, records[0].headers) == (
        "t", 0, b"k", (("h", b"v"),)
    )  # fmt: skip
    assert acquired.held == dict.fromkeys((1, 2, 6), LOCK_END_S)
    assert not acquired.pending


def test_acquired_offsets_without_a_record_are_acknowledged_as_gaps() -> None:
    acquired = partition()
    data = PartitionData(records=batch(2, 2), acquired_records=[AcquiredRecords(0, 5, 1)])
    records, _ = decode_acquired(acquired, data, LOCK_END_S)
    assert [r.offset for r in records] == [2, 3]
    assert {offset: choice.type for offset, choice in acquired.pending.items()} == dict.fromkeys(
        (0, 1, 4, 5), Acknowledgement.GAP
    )


def test_records_of_a_damaged_batch_are_rejected_and_others_returned() -> None:
    acquired, damaged = partition(), bytearray(batch(0, 3))
    damaged[-1] ^= 1
    data = PartitionData(records=bytes(damaged) + batch(3, 2), acquired_records=[AcquiredRecords(0, 4, 1)])
    records, error = decode_acquired(acquired, data, LOCK_END_S)
    assert [r.offset for r in records] == [3, 4]
    assert {offset: choice.type for offset, choice in acquired.pending.items()} == dict.fromkeys(
        range(3), Acknowledgement.REJECT
    )
    assert "t-0: the records of a damaged batch were rejected: batch at offset 0 has an invalid CRC" in str(error)


@pytest.mark.parametrize(("first", "last"), [(3, 2), (-1, 0), (0, MAX_ACQUIRED_RECORDS)])
def test_invalid_ranges_are_refused_before_they_are_expanded(first: int, last: int) -> None:
    with pytest.raises(MalformedMessage, match=f"from offset {first} to {last}"):
        delivery_counts([AcquiredRecords(first, last, 1)])
