"""Invalid batches with a correct CRC raise `CorruptBatch`, which names topic, partition and offset."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock_spark_kit.raw import answer, reseal, rows_of, with_body

from penstock.wire.batch import CONTROL, HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL
from penstock.wire.compression import Codec, compress
from penstock.wire.record import Record
from penstock.wire.records import BatchBuilder, build_batch, iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import write_varlong
from penstock_spark.decode import hops, sections
from penstock_spark.decode.decoder import RangeDecoder
from penstock_spark.model.errors import CorruptBatch
from penstock_spark.model.ranges import READ_COMMITTED, OffsetRange

PLAIN = build_batch([Record(key=b"k", value=b"value")], base_offset=40)


def decode(log: bytes | bytearray, aborted: list[tuple[int, int]] | None = None) -> list[object]:
    decoder = RangeDecoder(OffsetRange("flights", 3, 0, 1 << 40), READ_COMMITTED, True)
    return list(rows_of(decoder.feed(answer(log, aborted or []))))


def refused(log: bytes | bytearray, reason: str, aborted: list[tuple[int, int]] | None = None) -> None:
    with pytest.raises(CorruptBatch) as caught:
        decode(log, aborted)
    text = str(caught.value)
    assert text.startswith("flights-3: cannot read the batch at offset ")
    assert reason in text


def varint(value: int) -> bytes:
    out = bytearray()
    write_varlong(out, value)
    return bytes(out)


def record(*parts: bytes | int, size: int | None = None) -> bytes:
    """Encode a record: numbers become varints; the first part is the attributes."""
    body = b"".join(part if isinstance(part, bytes) else varint(part) for part in parts)
    return varint(len(body) if size is None else size) + body


def changed(at: int, data: bytes, batch: bytes = PLAIN) -> bytearray:
    """Return the batch with changed bytes in its header and a correct CRC."""
    log = bytearray(batch)
    log[at : at + len(data)] = data
    length = log[8:12]
    reseal(log)
    log[8:12] = length
    return log


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_message_formats_are_named(magic: int) -> None:
    refused(changed(16, bytes([magic])), f"it has message format {magic}; only format 2 can be read")


def test_an_old_message_shorter_than_a_batch_is_told_by_its_format() -> None:
    refused(bytes(8) + (14).to_bytes(4, "big") + bytes(4) + b"\1" + bytes(9), "message format 1")


def test_a_wrong_crc_is_told() -> None:
    log = bytearray(PLAIN)
    log[-2] ^= 1
    refused(log, "cannot read the batch at offset 40: its CRC is wrong")


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, (-1).to_bytes(8, "big", signed=True), "its offset is out of range"),
        (0, (1 << 62).to_bytes(8, "big"), "its offset is out of range"),
        (8, (48).to_bytes(4, "big"), "claims a length of 48"),
        (8, (-9).to_bytes(4, "big", signed=True), "claims a length of -9"),
        (23, (-1).to_bytes(4, "big", signed=True), "claims 1 records in 0 offsets"),
        (57, (-1).to_bytes(4, "big", signed=True), "claims -1 records"),
        (57, (2).to_bytes(4, "big"), "claims 2 records in 1 offsets"),
        (21, (5).to_bytes(2, "big"), "codec 5 is unknown"),
        (21, (7).to_bytes(2, "big"), "codec 7 is unknown"),
        (21, (1).to_bytes(2, "big"), "damaged gzip data"),
        (21, (2).to_bytes(2, "big"), "damaged snappy data"),
        (21, (3).to_bytes(2, "big"), "damaged lz4 data"),
        (21, (4).to_bytes(2, "big"), "damaged zstd data"),
        (27, (2**63 - 1).to_bytes(8, "big"), "its timestamp is out of range"),
    ],
)
def test_headers_that_lie_are_told(at: int, data: bytes, reason: str) -> None:
    refused(changed(at, data), reason)


def test_counts_are_held_against_the_bytes_that_are_there() -> None:
    log = changed(23, (2**31 - 1).to_bytes(4, "big"))
    refused(changed(57, (2**31 - 1).to_bytes(4, "big"), bytes(log)), "claims 2147483647 records in 13 bytes")


def test_batches_that_stand_in_the_wrong_order_are_told() -> None:
    later = build_batch([Record(value=b"x")], base_offset=50)
    refused(later + PLAIN, "cannot read the batch at offset 40: it follows a batch that ends at offset 50")
    refused(PLAIN + PLAIN, "it follows a batch that ends at offset 40")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_decompresses_to_too_much_is_refused(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "MAX_DECOMPRESSED_BYTES", 100_000)
    builder = BatchBuilder()
    builder.append(None, bytes(99_000))
    assert len(decode(builder.build(codec=codec))) == 1
    builder.append(None, bytes(2_000))
    refused(builder.build(codec=codec), "decompress to more than 100000 bytes")


GOOD = record(b"\0", 0, 0, -1, 1, b"v", 0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (record(b"\0", 0, 0, -1, 1, b"v", 0, size=8), "claims 8 bytes"),
        (record(b"\0", 0, 0, -1, 1, b"v", 0, size=-1), "claims -1 bytes"),
        (GOOD + b"\0", "1 bytes follow"),
        (b"\xff" * 12, "more than 64 bits"),
        (record(b"\0", 0, 1, -1, 1, b"v", 0), "its offset is outside the batch"),
        (record(b"\0", 0, -1, -1, 1, b"v", 0), "its offset is outside the batch"),
        (record(b"\0", 0, 0, -2, 1, b"v", 0), "its key exceeds the record"),
        (record(b"\0", 0, 0, 9, b"k", 1, b"v", 0), "its key exceeds the record"),
        (record(b"\0", 0, 0, 2**62, b"k", 1, b"v", 0), "its key exceeds the record"),
        (record(b"\0", 0, 0, -1, 3, b"v", 0), "its value exceeds the record"),
        (record(b"\0", 0, 0, -1, -2, b"v", 0), "its value exceeds the record"),
        (record(b"\0", 0, 0, -1, 2**62, b"v", 0), "its value exceeds the record"),
        (record(b"\0", 0, 0, -1, 2, b"v", 0), "its headers do not end with the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 0, 0), "its headers do not end with the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", -1), "its headers do not end with the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 2**40, 1, b"h", -1), "its headers do not end with the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 2, 1, b"h", -1), "its headers do not end with the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 1, 1, b"h", -1, 0), "its headers do not end with the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 1, -1, -1, 0), "the key of a header exceeds the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 1, 5, b"h", -1), "the key of a header exceeds the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 1, 1, b"h", 4, b"v"), "the value of a header exceeds the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 1, 1, b"h", -2), "the value of a header exceeds the record"),
        (record(b"\0", 0, 0, -1, 1, b"v", 1, b"\xff" * 11, -2), "a varint in its headers has more than 64 bits"),
        (record(b"\0", b"\xff" * 11, 0, -1, 1, b"v", 0), "a varint has more than 64 bits"),
        (record(b"\0", 2**62, 0, -1, 1, b"v", 0), "its timestamp is out of range"),
        (record(b"\0" * 5), "claims 1 records in 6 bytes"),
        (record(b"\0", 0, 0, -1, 20_000, b"v", 0, size=2**40), "claims 1099511627776 bytes"),
        (record(b"\0", 0, 0, -1, 0, 10_001, *[0, 0] * 10_001), "10001 headers, more than 10000"),
    ],
)
def test_records_that_lie_are_told(body: bytes, reason: str) -> None:
    refused(with_body(PLAIN, body), reason)
    refused(GOOD_BATCH + with_body(PLAIN, body), reason)


GOOD_BATCH = with_body(build_batch([Record(value=b"v")]), GOOD)


def test_offsets_that_do_not_rise_are_told() -> None:
    two = build_batch([Record(value=b"a"), Record(value=b"b")])
    body = record(b"\0", 0, 1, -1, 1, b"v", 0)
    refused(with_body(two, body + body), "record 1: its offset is not greater than the previous one")


def test_a_batch_may_not_have_a_record_of_its_neighbours() -> None:
    """The sum of the record counts is correct, each single count is wrong."""
    first, second = (record(b"\0", 0, delta, -1, 10, b"v" * 10, 0) for delta in (0, 1))
    two = build_batch([Record(), Record()])
    short = changed(57, (1).to_bytes(4, "big"), bytes(with_body(two, first + first)))
    long = with_body(build_batch([Record(), Record()], base_offset=2), second)
    refused(short + long, "cannot read the batch at offset 0: 17 bytes follow its 1 records")


def test_a_record_that_ends_before_its_parts_do_is_told() -> None:
    two = build_batch([Record(value=b"a"), Record(value=b"b")])
    body = record(b"\0" * 5) + record(b"\0", 0, 1, -1, 10, b"v" * 10, 0)
    refused(with_body(two, body), "record 0: its headers do not end with the record")


def test_the_batch_that_is_named_is_the_one_that_lies() -> None:
    good = bytes(GOOD_BATCH)
    longer = with_body(PLAIN, record(b"\0", 0, 0, -1, 1, b"v", 0, size=9))
    log = good + longer + build_batch([Record(value=b"x" * 100)], base_offset=41)
    refused(log, "cannot read the batch at offset 40: record 0 claims 9 bytes where 7 are left")


@pytest.mark.parametrize("body", [b"", b"\xff" * 30, record(b"\0", 0, 0, 2, b"kk", 1, b"v", 0)])
def test_damaged_markers_are_told(body: bytes) -> None:
    marker = build_batch(
        [Record(key=b"1234", value=b"123456")], base_offset=7, producer_id=5, producer_epoch=0,
        attributes=CONTROL | TRANSACTIONAL,
    )  # fmt: skip
    refused(with_body(marker, body), "cannot read the batch at offset 7: its control record is damaged", [(5, 0)])


def test_a_key_of_a_header_that_is_no_text_is_replaced_as_java_does() -> None:
    keys = {
        b"\xff": "\ufffd",
        b"a\xc3": "a\ufffd",
        b"\xed\xa0\x80x": "\ufffdx",
        b"\xed\xa0x": "\ufffdx",
        b"\xed\xbf\xbf\xed\x9f\xbf": "\ufffd\ud7ff",
        b"\xf0\x80\x80": "\ufffd\ufffd\ufffd",
        b"\xe2\x82": "\ufffd",
        "ü".encode(): "ü",
    }
    body = record(b"\0", 0, 0, -1, 0, len(keys), *[part for key in keys for part in (len(key), key, -1)])
    (row,) = rows_of(
        RangeDecoder(OffsetRange("t", 0, 0, 99), READ_COMMITTED, True).feed(answer(with_body(PLAIN, body)))
    )
    assert row.headers == tuple((text, None) for text in keys.values())


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(list(Codec)), st.booleans(), st.booleans())
def test_changed_bytes_are_told_or_read_as_one_by_one(seed: int, codec: Codec, appended: bool, striding: bool) -> None:
    """Bytes are changed before compression, so that most changes do more than break the compression."""
    rng = random.Random(seed)
    log = bytearray()
    for _ in range(rng.randint(1, 4)):
        log += one_batch(rng, len(log), codec, appended)
    with pytest.MonkeyPatch.context() as patch:
        if striding:
            for name, value in (("MIN_STRIDE_RECORDS", 2), ("RECORDS_PER_STRETCH", 2), ("MIN_STRETCHES", 1)):
                patch.setattr(hops, name, value)
        found: list[object] | None
        try:
            found = decode(log)
        except CorruptBatch:
            found = None
    try:
        wanted = one_by_one(log)
    except (MalformedMessage, OverflowError):
        return  # the reference reader rejects header keys that are not UTF-8; Java and the decoder accept them
    if found is not None:
        assert [(row.offset, row.key, row.value) for row in found] == wanted
    else:
        assert not plainly_sound(log), "a sound log is called corrupt"


def one_batch(rng: random.Random, base_offset: int, codec: Codec, appended: bool) -> bytearray:
    builder = BatchBuilder()
    for _ in range(rng.randint(1, 9)):
        pairs = [("h", b"1"), ("i", None)] if rng.random() < 0.3 else []
        key = rng.choice([None, b"", b"key"])
        builder.append(key, rng.choice([None, b"", b"value" * rng.randint(1, 30)]), pairs, rng.randint(0, 900))
    batch = builder.build(base_offset=base_offset, attributes=LOG_APPEND_TIME if appended else 0)
    body = bytearray(batch[HEADER_SIZE:])
    for _ in range(rng.randint(1, 3)):
        body[rng.randrange(len(body))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    out = bytearray(batch[:HEADER_SIZE]) + compress(codec, bytes(body))
    out[22] |= codec
    return reseal(out)


def one_by_one(log: bytearray) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for header, batch in iterate_batches(log)
        for record in iterate_records(batch, header, 1 << 20)
    ]


def plainly_sound(log: bytearray) -> bool:
    """Return whether offsets ascend and timestamps are valid, which the reference reader does not check."""
    rows = [r for header, batch in iterate_batches(log) for r in iterate_records(batch, header, 1 << 20)]
    offsets = [row.offset for row in rows]
    return all(a < b for a, b in pairwise(offsets)) and all(abs(row.timestamp_ms) < 2**63 // 1000 for row in rows)
