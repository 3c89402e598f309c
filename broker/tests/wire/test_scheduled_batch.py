"""Scheduled and delivered batches: what is written is read, and damage is found."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.batch import ATTRIBUTES, CRC, CRC_OFFSET, CRC_START, BatchHeader, checksum, read_header
from penstock.wire.batch_check import validate_batch
from penstock.wire.control_batch import KEY
from penstock.wire.errors import ErrorCode
from penstock.wire.record import Record
from penstock.wire.records import build_batch, iterate_records
from penstock.wire.scheduled_batch import (
    CANCELS,
    DELIVERED,
    ORIGIN,
    SCHEDULED,
    ScheduledRow,
    build_delivered,
    build_scheduled,
    encode_body,
    hash_key,
    is_delivered,
    is_scheduled,
    parse_origins,
    parse_places,
    parse_table,
    table_size,
)
from penstock.wire.schema import MalformedMessage

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=9), st.none() | st.binary(max_size=9)))
RECORDS = st.builds(
    Record,
    key=st.none() | st.binary(max_size=9),
    value=st.none() | st.binary(max_size=200),
    headers=st.builds(tuple, HEADERS | st.lists(st.just(("n", b"v")), min_size=63, max_size=65)),
)
ROWS = st.lists(st.builds(ScheduledRow, NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=300)), min_size=1, max_size=20)
PRODUCER = read_header(build_batch([Record(value=b"x")] * 3, producer_id=7, producer_epoch=2, base_sequence=5))


def table_of(batch: bytearray, header: BatchHeader) -> list[tuple[int, int, int, bytes]]:
    """Return the rows with their bodies, as read in two steps."""
    table = parse_table(batch[: table_size(header)], header)
    start, found = table.bodies_at, []
    for due_ms, origin, key_hash, end in table.rows:
        found.append((due_ms, origin, key_hash, bytes(batch[start : table.bodies_at + end])))
        start = table.bodies_at + end
    return found


@given(ROWS, st.sampled_from([None, PRODUCER]))
def test_the_rows_of_a_scheduled_batch_are_read_from_its_first_bytes(
    rows: list[ScheduledRow], producer: BatchHeader | None
) -> None:
    batch = build_scheduled(rows, producer, 99)
    header = read_header(batch)
    assert is_scheduled(header)
    assert not is_delivered(header)
    assert header.crc == checksum(memoryview(batch), 0, len(batch))
    assert header.size_bytes == len(batch)
    assert header.last_offset_delta == len(rows) - 1
    expected = (-1, -1, -1) if producer is None else (7, 2, 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == expected
    assert table_of(batch, header) == rows


def test_clients_find_a_control_record_of_an_unknown_type() -> None:
    batch = build_scheduled([ScheduledRow(1, -1, 0, b"body")], None, 99)
    header = read_header(batch)
    (record,) = iterate_records(memoryview(batch), header, 1 << 20)
    assert record.key is not None
    version, kind = KEY.unpack(record.key)
    assert (version, header.is_control, record.offset) == (0, True, 0)
    assert kind not in range(64), "the types of Kafka's control records are small numbers"


@given(st.lists(st.tuples(RECORDS, st.integers(0, (1 << 63) - 1)), min_size=1, max_size=20))
def test_a_delivered_batch_has_the_records_and_their_origins(records: list[tuple[Record, int]]) -> None:
    batch = build_delivered([(origin, encode_body(record)) for record, origin in records], 99)
    header = read_header(batch)
    assert is_delivered(header)
    assert not is_scheduled(header)
    assert header.crc == checksum(memoryview(batch), 0, len(batch))
    expected = [
        Record(i, 99, record.key, record.value, (*record.headers, (ORIGIN, b"%d" % origin)))
        for i, (record, origin) in enumerate(records)
    ]
    assert list(iterate_records(memoryview(batch), header, 1 << 20)) == expected
    assert list(parse_origins(batch, header)) == [origin for _, origin in records]


@given(ROWS, st.data())
def test_a_damaged_scheduled_batch_is_refused_or_read_within_its_bounds(
    rows: list[ScheduledRow], data: st.DataObject
) -> None:
    batch = build_scheduled(rows, None, 99)
    header = read_header(batch)
    at = data.draw(st.integers(61, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(61, len(batch)))
    try:
        table = parse_table(batch[:cut], header)
    except MalformedMessage:
        return
    assert len(table.rows) == len(rows)
    assert 0 <= table.rows[-1][3] <= header.size_bytes - table.bodies_at


@given(ROWS, st.data())
def test_the_bodies_of_single_rows_are_found_where_the_whole_table_has_them(
    rows: list[ScheduledRow], data: st.DataObject
) -> None:
    batch = build_scheduled(rows, None, 99)
    header = read_header(batch)
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    places = list(parse_places(batch[: table_size(header)], header, numbers))
    assert [bytes(batch[at : at + size]) for at, size in places] == [rows[number].body for number in numbers]


@given(ROWS, st.data())
def test_the_bodies_of_a_damaged_batch_are_within_its_bounds(rows: list[ScheduledRow], data: st.DataObject) -> None:
    batch = build_scheduled(rows, None, 99)
    header = read_header(batch)
    batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(61, len(batch)))
    with contextlib.suppress(MalformedMessage):
        for at, size in parse_places(batch[:cut], header, range(len(rows))):
            assert 61 < at <= at + size <= header.size_bytes


def test_a_body_that_ends_before_it_starts_is_refused() -> None:
    batch = build_scheduled([ScheduledRow(1, -1, 0, b"b" * size) for size in (70, 9, 9)], None, 99)
    header = read_header(batch)
    at = batch.index((79).to_bytes(4, "big"))
    batch[at + 3] = 69
    assert list(parse_places(batch, header, [0])), "the rows before are not damaged"
    with pytest.raises(MalformedMessage, match="row 1"):
        list(parse_places(batch, header, [1]))


@given(st.binary(max_size=300), st.integers(0, 50))
def test_damaged_origins_are_refused(body: bytes, count: int) -> None:
    header = read_header(build_delivered([(1, b"\1\1\2")], 99))._replace(record_count=count)
    with contextlib.suppress(MalformedMessage):
        assert len(list(parse_origins(bytes(61) + body, header))) == count


@pytest.mark.parametrize("attribute", [SCHEDULED, DELIVERED, SCHEDULED | 0x20])
def test_producers_cannot_send_the_attributes(attribute: int) -> None:
    batch = memoryview(bytearray(build_batch([Record(value=b"x")])))
    ATTRIBUTES.pack_into(batch, CRC_START, attribute)
    CRC.pack_into(batch, CRC_OFFSET, checksum(batch, 0, len(batch)))
    assert validate_batch(batch, 1 << 20) is ErrorCode.INVALID_RECORD


def test_keys_have_different_hashes_and_records_without_key_have_none() -> None:
    hashes = {hash_key(b"%d" % i) for i in range(10_000)}
    assert len(hashes) == 10_000
    assert hash_key(None) not in hashes
    assert hash_key(b"a") == hash_key(b"a")
    assert CANCELS == -1
