"""Record batches are compatible with other implementations, and malformed batches are rejected."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from penstock.wire.batch import CRC, HEADER_SIZE, BatchHeader, checksum, read_header
from penstock.wire.errors import ErrorCode
from penstock.wire.records import (
    BatchBuilder,
    Codec,
    Record,
    build_batch,
    iterate_batches,
    iterate_records,
    record_size_bound,
    validate_batch,
)
from penstock.wire.schema import MalformedMessage

MIB = 1 << 20

contents = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=10), contents), max_size=4).map(tuple)
records = st.lists(
    st.builds(Record, timestamp_ms=st.integers(0, 1 << 42), key=contents, value=contents, headers=headers),
    min_size=1,
    max_size=30,
)


def read(batch: bytes, max_bytes: int = MIB) -> list[Record]:
    return list(iterate_records(memoryview(batch), read_header(batch), max_bytes))


def numbered(given: list[Record], base_offset: int) -> list[Record]:
    return [Record(base_offset + i, r.timestamp_ms, r.key, r.value, r.headers) for i, r in enumerate(given)]


@settings(deadline=None)
@given(records, st.sampled_from(list(Codec)), st.integers(0, 1 << 50))
def test_records_come_back_as_they_were(given_records: list[Record], codec: Codec, base_offset: int) -> None:
    batch = build_batch(given_records, base_offset=base_offset, codec=codec)
    assert read(batch) == numbered(given_records, base_offset)
    assert isinstance(validate_batch(memoryview(batch), MIB), BatchHeader)
    header = read_header(batch)
    assert header.size_bytes == len(batch)
    assert header.max_timestamp_ms == max(r.timestamp_ms for r in given_records)
    assert header.base_timestamp_ms == given_records[0].timestamp_ms


@settings(deadline=None, max_examples=60)
@given(records, st.sampled_from(list(Codec)))
def test_other_clients_read_what_is_written_here(given_records: list[Record], codec: Codec) -> None:
    batch = build_batch(given_records, base_offset=7, codec=codec)
    readers = [DefaultRecordBatch]
    if codec in (Codec.NONE, Codec.GZIP):  # kafka-python needs another package for each other codec
        readers.append(KafkaPythonBatch)
    for reader in readers:
        theirs = reader(batch)
        assert theirs.validate_crc()
        found = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
        assert found == numbered(given_records, 7)


@settings(deadline=None, max_examples=60)
@given(records, st.sampled_from(list(Codec)))
def test_what_other_clients_write_is_read_here(given_records: list[Record], codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for i, r in enumerate(given_records):
        assert builder.append(i, r.timestamp_ms, r.key, r.value, list(r.headers)) is not None
    batch = bytes(builder.build())
    assert isinstance(validate_batch(memoryview(batch), MIB), BatchHeader)
    assert read(batch) == numbered(given_records, 0)


def test_a_batch_keeps_what_compaction_left_of_it() -> None:
    kept = [Record(12, 1000, b"k", b"v"), Record(15, 900, b"l", None)]
    batch = build_batch(
        kept,
        base_offset=10,
        last_offset_delta=9,
        base_timestamp_ms=800,
        max_timestamp_ms=5000,
        leader_epoch=3,
        producer_id=77,
        producer_epoch=2,
        base_sequence=40,
    )
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 19, 2)
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.leader_epoch) == (800, 5000, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 40)
    assert read(batch) == kept


def test_offsets_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="must increase"):
        build_batch([Record(5), Record(5)], base_offset=5)
    with pytest.raises(ValueError, match="is lower than the last record"):
        build_batch([Record(5)], base_offset=0, last_offset_delta=4)


def test_the_brokers_time_stands_for_every_records_own() -> None:
    batch = bytearray(build_batch([Record(timestamp_ms=5), Record(timestamp_ms=9)]))
    struct.pack_into(">h", batch, 21, 0x08)
    struct.pack_into(">q", batch, 35, 1234)
    assert [r.timestamp_ms for r in read(bytes(batch))] == [1234, 1234]


@given(contents, contents, headers)
def test_a_records_size_is_foreseen(key: bytes | None, value: bytes | None, given_headers: tuple) -> None:
    builder = BatchBuilder()
    before = builder.size_bytes
    builder.append(key, value, given_headers, 1 << 40)
    assert before == HEADER_SIZE
    assert builder.size_bytes - before <= record_size_bound(key, value, given_headers)
    assert len(builder.build()) == builder.size_bytes


def test_a_partial_batch_at_the_end_is_left_out() -> None:
    one, two = build_batch([Record(value=b"1")]), build_batch([Record(value=b"2")], base_offset=1)
    whole = one + two
    for end in range(len(one), len(whole)):
        found = list(iterate_batches(whole[:end]))
        assert [bytes(view) for _, view in found] == [one], end
    assert [h.base_offset for h, _ in iterate_batches(whole)] == [0, 1]
    assert list(iterate_batches(b"")) == []


def test_batches_that_are_damaged_or_of_another_format_are_told() -> None:
    batch = bytearray(build_batch([Record(value=b"1" * 50)]))
    batch[80] ^= 1
    with pytest.raises(MalformedMessage, match="invalid CRC"):
        list(iterate_batches(batch))
    assert len(list(iterate_batches(batch, check_crc=False))) == 1
    batch[16] = 1
    with pytest.raises(MalformedMessage, match="format 1"):
        list(iterate_batches(batch))
    batch[16] = 2
    struct.pack_into(">i", batch, 8, -5)
    with pytest.raises(MalformedMessage, match="invalid size of 7 bytes"):
        list(iterate_batches(batch))


def test_mutated_records_are_records_or_malformed_and_nothing_else() -> None:
    rng = random.Random(5)
    some = [Record(timestamp_ms=i, key=b"k", value=rng.randbytes(40), headers=(("h", b"1"),)) for i in range(5)]
    for codec in Codec:
        batch = build_batch(some, codec=codec)
        for _ in range(1500):
            mutated = bytearray(batch)
            for _ in range(rng.randrange(1, 4)):
                mutated[rng.randrange(21, len(mutated))] = rng.randrange(256)
            try:
                found = read(bytes(mutated), 1 << 16)
            except MalformedMessage:
                continue
            assert len(found) == read_header(mutated).record_count


def with_fields(batch: bytes, **fields: int) -> memoryview:
    """Return the batch with changed header fields and a matching CRC."""
    header = read_header(batch)._replace(**fields)
    changed = bytearray(batch)
    struct.pack_into(">qiibIhiqqqhii", changed, 0, *header)
    if "crc" not in fields:
        CRC.pack_into(changed, 17, checksum(memoryview(changed), 0, len(changed)))
    return memoryview(changed)


GOOD = build_batch([Record(timestamp_ms=10, value=b"v" * 20) for _ in range(4)])
ZIPPED = build_batch([Record(timestamp_ms=10, value=b"v" * 20) for _ in range(4)], codec=Codec.LZ4)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, None),
        ({"magic": 0}, ErrorCode.INVALID_RECORD),
        ({"magic": 1}, ErrorCode.INVALID_RECORD),
        ({"magic": 77}, ErrorCode.CORRUPT_MESSAGE),
        ({"crc": 5}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -(1 << 31)}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": (1 << 31) - 1}, ErrorCode.INVALID_RECORD),
        ({"batch_length": len(GOOD) - 12 + 1}, ErrorCode.INVALID_RECORD),
        ({"batch_length": len(GOOD) - 12 - 1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 3}, ErrorCode.INVALID_RECORD),
        ({"record_count": -4, "last_offset_delta": -5}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 7}, ErrorCode.INVALID_RECORD),
        ({"record_count": 1000, "last_offset_delta": 999}, ErrorCode.INVALID_RECORD),
        ({"record_count": (1 << 31) - 1, "last_offset_delta": (1 << 31) - 2}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x40}, ErrorCode.INVALID_RECORD),
        ({"attributes": -0x8000}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
        ({"base_timestamp_ms": -2}, None),
        ({"max_timestamp_ms": -2}, None),
        ({"base_timestamp_ms": -1, "max_timestamp_ms": -1}, None),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}, None),
        ({"producer_id": 5, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -2}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10, "producer_id": 5, "producer_epoch": 0, "base_sequence": 0}, None),
    ],
    ids=str,
)
def test_a_producers_batch_is_judged_by_its_header(fields: dict[str, int], error: ErrorCode | None) -> None:
    batch = with_fields(GOOD, **fields)
    assert validate_batch(batch, MIB) == (error or read_header(batch))


def test_no_compression_makes_two_thousand_million_records_of_a_few_bytes() -> None:
    many = {"record_count": (1 << 31) - 1, "last_offset_delta": (1 << 31) - 2}
    for codec in Codec:
        batch = build_batch([Record(value=b"x" * 50)], codec=codec)
        assert validate_batch(with_fields(batch, **many), MIB) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [c for c in Codec if c])
def test_records_as_small_and_alike_as_can_be_are_no_impossible_count(codec: Codec) -> None:
    builder = BatchBuilder()
    builder.body += bytes.fromhex("0c000000010100") * 400_000  # null key and value, every delta 0
    builder.count = builder.next_offset_delta = 400_000
    batch = builder.build(codec=codec)
    assert isinstance(validate_batch(memoryview(batch), 100 * MIB), BatchHeader)


def test_a_batch_has_a_largest_size() -> None:
    assert isinstance(validate_batch(memoryview(GOOD), len(GOOD)), BatchHeader)
    assert validate_batch(memoryview(GOOD), len(GOOD) - 1) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_cut_short_is_refused_wherever_it_is_cut() -> None:
    for end in range(len(GOOD)):
        assert validate_batch(memoryview(GOOD)[:end], MIB) is ErrorCode.INVALID_RECORD
    assert validate_batch(memoryview(GOOD + GOOD), MIB) is ErrorCode.INVALID_RECORD
    old_format = b"\0" * 11 + b"\x18" + b"\0" * 4 + b"\x01" + b"\0" * 19
    assert validate_batch(memoryview(old_format), MIB) is ErrorCode.INVALID_RECORD


def test_a_flipped_bit_anywhere_under_the_crc_is_seen() -> None:
    for position in range(21, len(GOOD)):
        flipped = bytearray(GOOD)
        flipped[position] ^= 0x10
        assert validate_batch(memoryview(flipped), MIB) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.slow
@pytest.mark.parametrize("codec", [c for c in Codec if c])
def test_cve_2023_34455_a_decompression_bomb_costs_an_error_and_no_memory(codec: Codec) -> None:
    batch = build_batch([Record(value=b"\0" * (64 * MIB))], codec=codec)
    header = read_header(batch)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="more than 1048576 bytes"):
            list(iterate_records(memoryview(batch), header, MIB))
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB + len(batch)
    finally:
        tracemalloc.stop()


def test_a_count_without_records_is_refused_before_any_is_read() -> None:
    header: BatchHeader = read_header(GOOD)._replace(record_count=1 << 30)
    with pytest.raises(MalformedMessage, match="a batch with 1073741824 records"):
        next(iterate_records(memoryview(GOOD), header, MIB))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("0c00000001010e", "headers"),  # 7 headers, but no bytes for them
        ("0c0000000101ff", "damaged"),  # a varint without an end
        ("0c000000010500", "a length of -3"),
        ("0c000000010800", "1 bytes left"),
        ("0c00000202010100", "in a batch with last offset delta"),  # an offset past the batch's last
        ("0a000000010100", "add up|left"),  # a wrong size
        ("7f000000010100", "a record of -64 bytes"),
        ("fe0f000000010100", "a record of"),
    ],
)
def test_records_that_lie_about_themselves_are_malformed(record: str, why: str) -> None:
    builder = BatchBuilder()
    builder.body += bytes.fromhex(record)
    builder.count = builder.next_offset_delta = 1
    with pytest.raises(MalformedMessage, match=why):
        read(builder.build())


@pytest.mark.parametrize(
    ("piece", "error"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"\xff" * 11, ErrorCode.INVALID_RECORD),
        (b"\0" * 8 + b"\xff\xff\xff\xff", ErrorCode.CORRUPT_MESSAGE),
        (b"\0" * 11 + b"\x0d", ErrorCode.CORRUPT_MESSAGE),
        (b"\0" * 11 + b"\x0e", ErrorCode.INVALID_RECORD),
        (b"\0" * 11 + b"\x40" + b"\0" * 4 + b"\x03", ErrorCode.CORRUPT_MESSAGE),
        (b"\0" * 11 + b"\x40" + b"\0" * 4 + b"\x02", ErrorCode.INVALID_RECORD),
    ],
)
def test_a_piece_that_cannot_begin_a_batch_is_corrupt_and_any_other_invalid(piece: bytes, error: ErrorCode) -> None:
    assert validate_batch(memoryview(piece), MIB) is error
