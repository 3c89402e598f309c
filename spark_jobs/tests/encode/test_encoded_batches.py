"""Encoded batches of any rows are valid and contain those rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock_spark_kit.raw import Row, answer, rows_of

from penstock.wire.batch import BatchHeader
from penstock.wire.records import iterate_records, validate_batch
from penstock_spark.decode.decoder import RangeDecoder
from penstock_spark.encode import batches as batches_module
from penstock_spark.encode.batches import encode
from penstock_spark.encode.ports import EncodableRows, EncodedBatch, ProducerId
from penstock_spark.model.columns import HEADER
from penstock_spark.model.ranges import READ_UNCOMMITTED, OffsetRange

NO_PRODUCER = ProducerId(-1, -1, False)
MAX = 1 << 30

octets = st.none() | st.binary(max_size=20) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 9000, b"\0" * 130])
headers = st.none() | st.lists(st.tuples(st.text(max_size=70), octets), max_size=3)
times = st.integers(0, 2**41) | st.sampled_from([-1, 0, 2**53, -(2**53)])
tables = st.lists(st.tuples(octets, octets, headers, times), max_size=40)
Table = list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]]


def as_rows(table: Table, *, with_headers: bool = True) -> EncodableRows:
    lists = [None if row[2] is None else [{"key": k, "value": v} for k, v in row[2]] for row in table]
    return EncodableRows(
        pa.array([row[0] for row in table], pa.binary()),
        pa.array([row[1] for row in table], pa.binary()),
        pa.array(lists, pa.list_(HEADER)) if with_headers else None,
        np.array([row[3] for row in table], np.int64),
    )


def headers_of(batches: list[EncodedBatch], max_bytes: int = MAX) -> list[BatchHeader]:
    """Return each batch's header, after a check against the broker's rules."""
    found = []
    for batch in batches:
        header = validate_batch(memoryview(batch.data), MAX)
        assert isinstance(header, BatchHeader), header
        assert header.record_count == batch.records
        records = list(iterate_records(memoryview(batch.data), header, MAX))
        assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
        found.append(header)
    return found


def as_log(batches: list[EncodedBatch]) -> bytearray:
    """Return the batches as a leader writes them, with offsets."""
    log, offset = bytearray(), 0
    for batch in batches:
        log += offset.to_bytes(8, "big") + batch.data[8:]
        offset += batch.records
    return log


def as_records(table: Table, *, with_headers: bool = True) -> list[Row]:
    return [
        Row(offset, time_ms, 0, key, value, tuple(pairs) if pairs and with_headers else None)
        for offset, (key, value, pairs, time_ms) in enumerate(table)
    ]


def read_back(batches: list[EncodedBatch]) -> list[Row]:
    records = []
    base = 0
    for batch, header in zip(batches, headers_of(batches), strict=True):
        for record in iterate_records(memoryview(batch.data), header, MAX):
            row = Row(base + record.offset, record.timestamp_ms, 0, record.key, record.value, record.headers or None)
            records.append(row)
        base += batch.records
    return records


@settings(max_examples=80, deadline=None)
@given(tables, st.integers(0, 4), st.sampled_from([1, 150, 10_000, 1 << 20]), st.booleans(), st.booleans())
def test_the_batches_hold_the_rows(
    table: Table, codec: int, max_bytes: int, with_headers: bool, small_blocks: bool
) -> None:
    table = [row for row in table if row[3] >= -1]
    with pytest.MonkeyPatch.context() as patch:
        if small_blocks:
            patch.setattr(batches_module, "BLOCK_BYTES", 300)
        batches = encode(as_rows(table, with_headers=with_headers), codec, max_bytes, NO_PRODUCER, -1)
    assert read_back(batches) == as_records(table, with_headers=with_headers)
    for header in headers_of(batches):
        assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (codec, -1, -1, -1)
        assert not header.is_transactional
    if codec == 0:
        assert all(len(batch.data) <= max_bytes or batch.records == 1 for batch in batches)
    decoder = RangeDecoder(OffsetRange("t", 0, 0, len(table)), READ_UNCOMMITTED, True)
    assert rows_of(decoder.feed(answer(as_log(batches)))) == as_records(table, with_headers=with_headers)


@settings(max_examples=30, deadline=None)
@given(tables.filter(bool), st.data())
def test_rows_may_be_a_slice_of_more(table: Table, data: st.DataObject) -> None:
    table = [(key, value, pairs, max(time_ms, 0)) for key, value, pairs, time_ms in table]
    first = data.draw(st.integers(0, len(table)), "first")
    end = data.draw(st.integers(first, len(table)), "end")
    whole = as_rows(table)
    assert whole.headers is not None
    part = slice(first, end)
    rows = EncodableRows(whole.key[part], whole.value[part], whole.headers[part], whole.timestamp_ms[part])
    assert read_back(encode(rows, 0, 10_000, NO_PRODUCER, -1)) == as_records(table[part])


@settings(max_examples=30, deadline=None)
@given(tables.filter(bool))
def test_times_before_1970_and_far_apart_are_kept(table: Table) -> None:
    batches = encode(as_rows(table), 0, 10_000, NO_PRODUCER, -1)
    decoder = RangeDecoder(OffsetRange("t", 0, 0, len(table)), READ_UNCOMMITTED, True)
    assert rows_of(decoder.feed(answer(as_log(batches)))) == as_records(table)


def test_no_rows_are_no_batches() -> None:
    assert encode(as_rows([]), 0, 1000, NO_PRODUCER, -1) == []


def test_sequences_go_on_from_batch_to_batch_and_wrap() -> None:
    table: Table = [(None, b"x" * 30, None, 5)] * 10
    batches = encode(as_rows(table), 0, 61 + 3 * 40, ProducerId(77, 3, True), 2**31 - 7)
    found = headers_of(batches)
    assert [batch.records for batch in batches] == [3, 3, 3, 1]
    assert [header.base_sequence for header in found] == [2**31 - 7, 2**31 - 4, 2**31 - 1, 2]
    assert {(header.producer_id, header.producer_epoch, header.is_transactional) for header in found} == {(77, 3, True)}


def test_an_idempotent_producer_need_not_be_transactional() -> None:
    (header,) = headers_of(encode(as_rows([(b"k", b"v", None, 5)]), 0, 1000, ProducerId(77, 3, False), 4))
    assert (header.producer_id, header.base_sequence, header.is_transactional) == (77, 4, False)


def test_batches_are_filled() -> None:
    table: Table = [(b"key", b"x" * 100, None, 1000 + n) for n in range(5_000)]
    batches = encode(as_rows(table), 0, 100_000, NO_PRODUCER, -1)
    assert all(98_000 < len(batch.data) <= 100_000 for batch in batches[:-1])


def test_a_header_without_a_key_is_refused() -> None:
    keys = pa.array([None], pa.string())
    structs = pa.StructArray.from_arrays([keys, pa.array([b"v"])], names=["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), structs)
    rows = EncodableRows(pa.array([b"k"]), pa.array([b"v"]), lists, np.array([0]))
    with pytest.raises(ValueError, match="a header has no key"):
        encode(rows, 0, 1000, NO_PRODUCER, -1)


def test_times_too_far_apart_for_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="ms apart"):
        encode(as_rows([(None, b"", None, -(2**62)), (None, b"", None, 2**61)]), 0, 1000, NO_PRODUCER, -1)
