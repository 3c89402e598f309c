"""Fetch with a filter: batches without the records that do not pass, and offsets that move past them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fetch_kit import LONG_MS, fetch, only, read, request
from replica_kit import accepted, until
from wire_in_memory import Wire, opened_wire

from penstock.api import fetch_filters
from penstock.replica.leader import Leader
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import FetchResponse, PartitionData
from penstock.wire.records import Record, build_batch, iterate_batches, iterate_records

MUCH = 64 << 20
VERSIONS = [12, 13, 18]
FILTER = "type = 'a'"


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


async def filled(wire: Wire, *types: str, codec: Codec = Codec.NONE, value: bytes = b"v") -> Leader:
    """Create a topic with a batch for each text, which has a record for each of its letters."""
    partition = await wire.path.partition("t")
    for each in types:
        records = [
            Record(value=value, headers=(("type", letter.encode()),), timestamp_ms=1_700_000_000_000) for letter in each
        ]
        accepted(partition, memoryview(bytearray(build_batch(records, codec=codec))))
    await wire.path.flushed()
    return partition


def offsets(data: PartitionData) -> list[int]:
    return [
        record.offset
        for header, batch in iterate_batches(bytes(data.records or b""))
        for record in iterate_records(batch, header, MUCH)
    ]


async def filtered(
    wire: Wire, version: int = 12, *arguments: object, text: str = FILTER, **more: object
) -> PartitionData:
    exchange = wire.send(request(wire, version, *arguments, filter=text, **more), version)  # type: ignore[arg-type]
    assert exchange is not None
    await until(lambda: exchange.completed)
    return only(wire.decoded(exchange, FetchResponse, version))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_records_that_do_not_pass_are_left_out(wire, version, codec):
    await filled(wire, "abab", "bb", "ba", codec=codec)
    data = await filtered(wire, version)
    assert offsets(data) == [0, 2, 7]
    assert read(data) == [(0, 3), (6, 7)], "a batch without records is left out"
    assert wire.path.pins() == 0


async def test_the_last_batch_comes_without_records_so_that_the_reader_moves_on(wire):
    await filled(wire, "ab", "bbb", "bb")
    data = await filtered(wire)
    assert offsets(data) == [0]
    assert read(data) == [(0, 1), (5, 6)]


async def test_a_filter_is_that_of_its_request(wire):
    await filled(wire, "ab")
    assert offsets(await filtered(wire)) == [0]
    assert offsets(only(await fetch(wire, 12))) == [0, 1]
    assert offsets(await filtered(wire, text="type = 'b'")) == [1]


async def test_the_fields_of_the_producer_stay(wire):
    partition = await wire.path.partition("t")
    records = [Record(headers=(("type", letter),), timestamp_ms=1_700_000_000_000) for letter in (b"a", b"b")]
    accepted(partition, memoryview(bytearray(build_batch(records, producer_id=5, producer_epoch=0, base_sequence=0))))
    await wire.path.flushed()
    ((header, _),) = iterate_batches(bytes((await filtered(wire)).records))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 0, 0)
    assert (header.record_count, header.last_offset_delta) == (1, 1)


async def test_a_reader_at_the_end_waits_and_gets_what_arrives(wire):
    partition = await filled(wire, "ab")
    exchange = wire.send(request(wire, 12, {("t", 0): 2}, filter=FILTER, max_wait_ms=LONG_MS), 12)
    records = [Record(headers=(("type", letter),), timestamp_ms=1_700_000_000_000) for letter in (b"b", b"a")]
    accepted(partition, memoryview(bytearray(build_batch(records))))
    await until(lambda: exchange.completed)
    assert offsets(only(wire.decoded(exchange, FetchResponse, 12))) == [3]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_filter_that_cannot_be_parsed_is_refused(wire, version):
    await filled(wire, "a")
    response = await fetch(wire, version, filter="type = a")
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert not response.responses


async def test_an_error_of_a_partition_is_answered_as_without_a_filter(wire):
    await filled(wire, "a")
    assert (await filtered(wire, 12, {("t", 0): 9})).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_batch_that_decompresses_to_much_is_sent_whole(wire):
    value = b"\0" * (fetch_filters.MAX_BATCH_BYTES // 2)
    await filled(wire, "ab", "bb", codec=Codec.ZSTD, value=value)
    assert offsets(await filtered(wire)) == [0, 1, 2, 3]


async def test_what_exceeds_the_records_of_a_response_is_sent_whole(wire):
    many = fetch_filters.MAX_FILTERED_RECORDS - 1
    await filled(wire, "b" * many, "bb", "b")
    assert read(await filtered(wire, each={"partition_max_bytes": MUCH}, max_bytes=MUCH)) == [
        (many, many + 1),
        (many + 2, many + 2),
    ]


async def test_more_bytes_than_may_be_copied_are_sent_whole(wire):
    await filled(wire, *["b" * 10] * 5, value=b"x" * (fetch_filters.MAX_FILTERED_BYTES // 50))
    data = await filtered(wire, each={"partition_max_bytes": MUCH}, max_bytes=MUCH)
    assert len(offsets(data)) == 50
    assert wire.path.pins() == 0


async def test_a_damaged_slice_is_sent_as_it_is(wire):
    partition = await filled(wire, "ab")
    path = Path(partition.log.segments[0].path)
    damaged = path.read_bytes()[:-1] + b"\xff"
    path.write_bytes(damaged)
    assert bytes((await filtered(wire)).records) == damaged


async def test_the_response_is_dropped_if_the_connection_is_lost_meanwhile(wire):
    await filled(wire, "ab")
    exchange = wire.send(request(wire, 12, filter=FILTER), 12)
    exchange.is_disconnected = True
    await until(lambda: wire.path.pins() == 0)


async def test_a_session_keeps_its_partitions_with_a_filter(wire):
    await filled(wire, "ab", "b")
    response = await fetch_filtered(wire, request(wire, 12, filter=FILTER, session_epoch=0))
    assert response.session_id
    more = request(wire, 12, {}, filter=FILTER, session_id=response.session_id, session_epoch=1)
    assert offsets(only(await fetch_filtered(wire, more))) == [0]


async def fetch_filtered(wire: Wire, sent: object) -> FetchResponse:
    exchange = wire.send(sent, 12)  # type: ignore[arg-type]
    assert exchange is not None
    await until(lambda: exchange.completed)
    return wire.decoded(exchange, FetchResponse, 12)
