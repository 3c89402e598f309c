"""The leader rejects batches that a consumer could not read, and recompresses batches for the topic's codec."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace

import cramjam
import pytest
from replica_kit import DataPath, accepted, batch_of, patched, stored, stored_headers

from penstock.config.topic import TopicConfig
from penstock.replica import inspection
from penstock.replica.acceptance import MAX_RECORD_ERRORS
from penstock.replica.inspection import VALID, inspect_fully
from penstock.wire.batch import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, checksum, read_header
from penstock.wire.compression import Codec, compress
from penstock.wire.errors import ErrorCode
from penstock.wire.record import Record
from penstock.wire.records import build_batch, iterate_records


def assembled(body: bytes, count: int, codec: int = 0) -> memoryview:
    """Return a batch with a valid CRC whose header claims `count` records."""
    header = read_header(batch_of(1))._replace(
        batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(body),
        attributes=codec,
        last_offset_delta=count - 1,
        record_count=count,
    )
    batch = memoryview(bytearray(HEADER.pack(*header) + body))
    struct.pack_into(">I", batch, 17, checksum(batch, 0, len(batch)))
    return batch


def body_of(count: int) -> bytes:
    return bytes(batch_of(count)[HEADER_SIZE:])


DAMAGES = {
    "garbage": (lambda codec: b"\x00garbage-not-compressed", 3),
    "a short piece of garbage": (lambda codec: b"garbage", 1),
    "cut short": (lambda codec: bytes(compress(codec, body_of(40)))[:-3], 40),
    "nothing": (lambda codec: bytes(compress(codec, b"")), 1),
    "fewer records than claimed": (lambda codec: compress(codec, body_of(3)), 5),
    "more records than claimed": (lambda codec: compress(codec, body_of(3)), 2),
    "one of many records less than claimed": (lambda codec: compress(codec, body_of(999)), 1000),
    "one of many records more than claimed": (lambda codec: compress(codec, body_of(1001)), 1000),
    "a byte behind the records": (lambda codec: compress(codec, body_of(3) + b"x"), 3),
    "a record that is longer than the batch": (lambda codec: compress(codec, b"\x60" + body_of(3)[1:]), 3),
    "a record of a negative length": (lambda codec: compress(codec, b"\x01" + body_of(3)[1:]), 3),
    "no records but text": (lambda codec: compress(codec, b"2026-01-01 INFO started" * 20), 4),
}


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("damage", DAMAGES)
def test_records_that_are_not_what_the_header_says_are_found(damage: str, codec: Codec) -> None:
    make, count = DAMAGES[damage]
    batch = assembled(bytes(make(codec)), count, codec)
    found = inspect_fully(batch, read_header(batch), TopicConfig(), "t", 0)
    assert found.refusal is not None
    assert found.refusal.error == ErrorCode.INVALID_RECORD
    assert (found.refusal.message or "").startswith("the batch's records are damaged: ")


async def test_a_damaged_batch_is_refused_and_leaves_nothing(path: DataPath) -> None:
    partition = await path.partition()
    for codec in Codec:
        for make, count in DAMAGES.values():
            done = partition.append(assembled(bytes(make(codec)), count, codec))
            assert (done.error, done.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert partition.log.end_offset == 0
    for codec in Codec:
        accepted(partition, batch_of(3, codec=codec))


@pytest.mark.parametrize("validation", ["none", "ends", "all"])
def test_sound_batches_pass(validation: str) -> None:
    config = replace(TopicConfig(), record_validation=validation)
    for codec in Codec:
        for count in (1, 3, 33, 2000):
            batch = batch_of(count, codec=codec)
            assert inspect_fully(batch, read_header(batch), config, "t", 0) == VALID


async def test_damage_in_the_middle_is_found_where_every_record_is_parsed(path: DataPath) -> None:
    body = bytearray(body_of(201))
    at = -1
    for _ in range(101):
        at = body.index(b"some value", at + 1)
    body[at - 1] = 0x7E  # the value is longer than its record
    batch = assembled(bytes(body), 201)
    accepted(await path.partition("ends"), memoryview(bytearray(batch)))
    partition = await path.partition("all", penstock_record_validation="all")
    done = partition.append(batch)
    assert done.error == ErrorCode.INVALID_RECORD
    assert "record 100" in (done.message or "")


async def test_a_topic_can_do_without_the_check(path: DataPath) -> None:
    partition = await path.partition(penstock_record_validation="none")
    accepted(partition, assembled(b"\x00garbage-not-compressed", 3, Codec.GZIP))


@pytest.mark.parametrize("damaged", [True, False])
async def test_lz4_blocks_that_refer_to_each_other_are_refused_as_java_clients_cannot_read_them(
    path: DataPath, damaged: bool
) -> None:
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=damaged)
    compressor.compress(body_of(100))
    partition = await path.partition()
    done = partition.append(assembled(bytes(compressor.finish()), 100, Codec.LZ4))
    assert done.error == (ErrorCode.INVALID_RECORD if damaged else ErrorCode.NONE)


async def test_snappy_without_blocks_and_gzip_in_two_members_pass(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, assembled(bytes(cramjam.snappy.compress_raw(body_of(3))), 3, Codec.SNAPPY))
    body = body_of(40)
    accepted(partition, assembled(gzip.compress(body[:100]) + gzip.compress(body[100:]), 40, Codec.GZIP))


# Errors of single records (KIP-467)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4], ids=lambda codec: codec.name)
async def test_records_without_a_key_are_named_by_a_compacted_topic(path: DataPath, codec: Codec) -> None:
    partition = await path.partition(cleanup_policy="compact")
    records = [Record(key=None if index % 10 == 3 else b"k", value=b"v") for index in range(100)]
    done = partition.append(memoryview(bytearray(build_batch(records, codec=codec))))
    assert done.error == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in done.record_errors] == [3, 13, 23, 33, 43, 53, 63, 73, 83, 93]
    assert {error.message for error in done.record_errors} == {"the record has no key"}
    assert 'topic "t"' in (done.message or "")
    assert "10 records rejected, the first at index 3, 13, 23" in (done.message or "")


async def test_an_answer_names_a_bounded_number_of_records(path: DataPath) -> None:
    partition = await path.partition(cleanup_policy="compact")
    done = partition.append(batch_of(MAX_RECORD_ERRORS + 500, key=None))
    assert len(done.record_errors) == MAX_RECORD_ERRORS
    assert f"{MAX_RECORD_ERRORS + 500} records rejected" in (done.message or "")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=lambda codec: codec.name)
async def test_records_whose_time_is_out_of_bounds_are_named(path: DataPath, codec: Codec) -> None:
    partition = await path.partition(message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="60000")
    now_ms = path.clock.now_ms
    times = [now_ms, now_ms + 2000, now_ms, now_ms - 60_001, -1, now_ms + 1000]
    records = [Record(value=b"v", timestamp_ms=time) for time in times]
    done = partition.append(memoryview(bytearray(build_batch(records, codec=codec))))
    assert done.error == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in done.record_errors] == [1, 3]
    assert str(now_ms + 2000) in done.record_errors[0].message


async def test_a_header_whose_times_are_out_of_bounds_is_no_reason_where_no_records_are(path: DataPath) -> None:
    partition = await path.partition(message_timestamp_before_max_ms="60000")
    now_ms = path.clock.now_ms
    accepted(partition, batch_of(1, timestamp_ms=now_ms, base_timestamp_ms=now_ms - 120_000))


@pytest.mark.parametrize("timestamp_ms", [-1, -2, -5_000_000])
async def test_times_before_1970_are_taken_where_the_topic_has_no_bound(path: DataPath, timestamp_ms: int) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(1, timestamp_ms=timestamp_ms))
    accepted(partition, batch_of(1))
    assert partition.log.offset_for_timestamp(0, 2) is not None
    tight = await path.partition("tight", message_timestamp_before_max_ms="60000")
    assert tight.append(batch_of(1, timestamp_ms=timestamp_ms)).error == (
        ErrorCode.NONE if timestamp_ms == -1 else ErrorCode.INVALID_TIMESTAMP
    )


# compression.type

TYPES = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("target", TYPES)
async def test_batches_are_stored_in_the_topics_codec(path: DataPath, target: str) -> None:
    partition = await path.partition(compression_type=target)
    for source in Codec:
        start, sequence = partition.log.end_offset, 42 * source
        first = batch_of(40, codec=source, producer=(7, 0, sequence))
        came = bytes(first)
        assert accepted(partition, first).base_offset == start
        assert accepted(partition, batch_of(2, codec=source, producer=(7, 0, sequence + 40))).base_offset == start + 40
        assert accepted(partition, memoryview(bytearray(came))).base_offset == start, "a repeated batch is found again"
        *_, stored_first, stored_second = stored_headers(partition.log)
        assert [(h.base_offset, h.last_offset, h.codec) for h in (stored_first, stored_second)] == [
            (start, start + 39, TYPES[target]),
            (start + 40, start + 41, TYPES[target]),
        ]
        kept = {"base_offset": 0, "leader_epoch": 0, "crc": 0, "batch_length": 0, "attributes": 0}
        assert stored_first._replace(**kept) == read_header(came)._replace(**kept)
        behind = stored_first.size_bytes + stored_second.size_bytes
        batch = memoryview(stored(partition.log))[-behind:][: stored_first.size_bytes]
        given = [record.value for record in iterate_records(memoryview(came), read_header(came), 1 << 20)]
        assert [record.value for record in iterate_records(batch, stored_first, 1 << 20)] == given
        if TYPES[target] == source:
            assert batch[HEADER_SIZE:] == came[HEADER_SIZE:], "a batch in the topic's codec is left as it came"


async def test_a_batch_stays_as_it_is_while_its_thread_inspects_others(path: DataPath) -> None:
    """Each inspection overwrites the thread's buffer for decompressed records."""
    partition = await path.partition(compression_type="uncompressed")
    first, second = batch_of(3, codec=Codec.LZ4), batch_of(40, codec=Codec.ZSTD)
    made = inspect_fully(first, read_header(first), partition.config, "t", 0).batch
    assert made is not None
    before = bytes(made)
    inspect_fully(second, read_header(second), partition.config, "t", 0)
    assert bytes(made) == before


async def test_log_append_time_goes_with_another_codec(path: DataPath) -> None:
    partition = await path.partition(compression_type="zstd", message_timestamp_type="LogAppendTime")
    accepted(partition, batch_of(40))
    (header,) = stored_headers(partition.log)
    assert (header.codec, header.max_timestamp_ms) == (Codec.ZSTD, path.clock.now_ms)


@pytest.mark.parametrize("source", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name)
async def test_a_damaged_batch_is_refused_where_it_would_be_compressed_anew(path: DataPath, source: Codec) -> None:
    for validation in ("ends", "none"):
        partition = await path.partition(validation, compression_type="zstd", penstock_record_validation=validation)
        done = partition.append(assembled(b"\x00garbage-not-compressed", 3, Codec.GZIP))
        assert done.error == ErrorCode.INVALID_RECORD
        wrong_crc = patched(batch_of(3, codec=source), ">B", 75, 255, sealed=False)
        assert partition.append(wrong_crc).error == ErrorCode.CORRUPT_MESSAGE


async def test_a_batch_that_is_too_large_in_the_topics_codec_is_refused(path: DataPath) -> None:
    partition = await path.partition(compression_type="uncompressed", max_message_bytes="2000")
    done = partition.append(batch_of(10, value=bytes(1000), codec=Codec.GZIP))
    assert done.error == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes is 2000" in (done.message or "")


async def test_the_broker_setting_gives_the_codec_of_topics_without_their_own(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(3))
    await path.alter("t", "compression.type", "lz4")
    accepted(partition, batch_of(3))
    await path.alter("t", "compression.type", "producer")
    accepted(partition, batch_of(3))
    assert [header.codec for header in stored_headers(partition.log)] == [0, Codec.LZ4, 0]


@pytest.mark.parametrize(
    ("codec", "field", "fast", "thorough"),
    [
        (Codec.GZIP, "compression_gzip_level", 1, 9),
        (Codec.LZ4, "compression_lz4_level", 9, 12),
        (Codec.ZSTD, "compression_zstd_level", -50, 19),
    ],
)
def test_levels_decide_how_small_batches_become(codec: Codec, field: str, fast: int, thorough: int) -> None:
    words = [f"{i * 7919 % 1000} is {'odd' if i % 2 else 'even'}".encode() for i in range(3000)]
    batch = memoryview(bytearray(build_batch([Record(value=word) for word in words])))
    sizes = []
    for chosen in (fast, thorough):
        config = replace(TopicConfig(), compression_codec=codec, **{field: chosen})
        found = inspect_fully(batch, read_header(batch), config, "t", 0)
        assert found.batch is not None, found
        sizes.append(len(found.batch))
    assert sizes[1] < sizes[0]


def test_the_limit_of_decompressed_bytes_is_bounded_for_the_largest_batches() -> None:
    largest = replace(TopicConfig(), max_message_bytes=1 << 30)
    assert inspection.decompressed_limit(largest) == inspection.MAX_DECOMPRESSED_BYTES
