"""Batches are decoded on the event loop or in a thread, once, and with the settings that the group has now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_kit import DataPath, accepted, opened_data_path, until

from penstock.filter import RecordFilter
from penstock.log.types import LogSlice
from penstock.replica.leader import Leader
from penstock.share.contents import BatchContents, ContentsQuery
from penstock.share.decoding import MAX_INLINE_RECORDS, BatchDecoder
from penstock.wire.batch import BatchHeader, read_header
from penstock.wire.records import Record, build_batch

A, B = (ContentsQuery(False, RecordFilter(f"type = '{kind}'")) for kind in "ab")
LARGE = MAX_INLINE_RECORDS + 1


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with opened_data_path(tmp_path) as opened:
        yield opened


class Reader:
    """A share-partition that reads a partition's first batches."""

    def __init__(self, path: DataPath, role: Leader) -> None:
        self.path, self.role = path, role
        self.decoded = 0
        self.decoder = BatchDecoder(role, self.on_decoded)

    def on_decoded(self) -> None:
        self.decoded += 1

    def batches(self, records: LogSlice) -> list[tuple[int, BatchHeader]]:
        data, position = records.file.read_at(records.position, records.size), 0
        found = []
        while position < len(data):
            header = read_header(data, position)
            found.append((records.position + position, header))
            position += header.size_bytes
        return found

    def contents(self, query: ContentsQuery, number: int = 0) -> BatchContents | None:
        """Return the contents of a batch, asked for as in a new acquisition."""
        self.decoder.start_turn(query)
        records = self.role.read(0, 1 << 20, at_least_one=True)
        assert records is not None
        try:
            position, header = self.batches(records)[number]
            return self.decoder.contents(records, position, header)
        finally:
            records.release()

    async def decoded_contents(self, query: ContentsQuery, number: int = 0) -> BatchContents:
        """Return the contents of a batch that a thread decodes."""
        before = self.decoded
        assert self.contents(query, number) is None
        await until(lambda: self.decoded > before)
        found = self.contents(query, number)
        assert found is not None
        return found


async def opened_reader(path: DataPath, *batches: str) -> Reader:
    """Create a partition with batches that have a record for each letter, which is in its header."""
    role = await path.partition("t")
    for types in batches:
        records = [Record(headers=(("type", kind.encode()),), timestamp_ms=1_700_000_000_000) for kind in types]
        accepted(role, memoryview(bytearray(build_batch(records))))
    await path.flushed()
    return Reader(path, role)


async def test_a_small_batch_is_decoded_at_once(path: DataPath) -> None:
    reader = await opened_reader(path, "aab")
    found = reader.contents(A)
    assert found is not None
    assert found.matching == [(0, 1)]
    assert reader.decoder.thread_reads == 0


async def test_a_changed_filter_decodes_again(path: DataPath) -> None:
    reader = await opened_reader(path, "aab")
    reader.contents(A)
    found = reader.contents(B)
    assert found is not None
    assert found.matching == [(2, 2)]


async def test_a_large_batch_is_decoded_in_a_thread_with_those_that_follow(path: DataPath) -> None:
    reader = await opened_reader(path, "a" * LARGE, "ab")
    assert (await reader.decoded_contents(A)).matching == [(0, LARGE - 1)]
    following = reader.contents(A, 1)
    assert following is not None
    assert following.matching == [(LARGE, LARGE)]
    assert (reader.decoder.thread_reads, path.pins()) == (1, 0)


async def test_only_one_thread_decodes_at_a_time(path: DataPath) -> None:
    reader = await opened_reader(path, "a" * LARGE)
    assert reader.contents(A) is None
    assert reader.contents(A) is None
    assert reader.decoder.thread_reads == 1
    await until(lambda: reader.decoded == 1)


async def test_what_a_thread_decoded_with_a_former_filter_is_not_used(path: DataPath) -> None:
    reader = await opened_reader(path, "a" * LARGE + "b")
    assert reader.contents(A) is None
    assert reader.contents(B) is None, "while the thread works for the former filter"
    await until(lambda: reader.decoded == 1)
    assert (await reader.decoded_contents(B)).matching == [(LARGE, LARGE)]


async def test_batches_that_the_read_has_passed_are_dropped(path: DataPath) -> None:
    reader = await opened_reader(path, "a" * LARGE, "ab")
    await reader.decoded_contents(A)
    reader.contents(A, 1)
    assert reader.contents(A, 0) is None, "it is decoded again"
    await until(lambda: reader.decoded == 2)


async def test_the_records_of_many_small_batches_are_bounded_in_one_acquisition(path: DataPath) -> None:
    reader = await opened_reader(path, *["a" * 200] * 4)
    reader.decoder.start_turn(A)
    records = reader.role.read(0, 1 << 20, at_least_one=True)
    assert records is not None
    known = [reader.decoder.contents(records, position, header) for position, header in reader.batches(records)]
    records.release()
    assert [each is not None for each in known] == [True, True, False, False]
    await until(lambda: reader.decoded == 1)
