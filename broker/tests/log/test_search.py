"""Searches by timestamp find the first record at or after it, for any order of timestamps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from log_kit import SMALL, START_MS, any_seed, append, note_seed, open_log, opened
from memory_files import MemoryFiles

from penstock.log.partition_log import PartitionLog
from penstock.wire.batch import CRC, HEADER_SIZE, checksum, stamp_log_append_time
from penstock.wire.records import Codec, Record, build_batch


def put(log: PartitionLog, times: list[int], codec: Codec = Codec.NONE, epoch: int = 1) -> None:
    append(
        log,
        bytearray(build_batch([Record(key=b"k", value=b"v" * 20, timestamp_ms=t) for t in times], codec=codec)),
        epoch,
    )


async def test_the_first_record_at_or_after_a_time_is_found_like_by_looking_at_all() -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    files = MemoryFiles()
    times: list[int] = []
    config = replace(SMALL, index_interval_bytes=300)

    def check(log: PartitionLog) -> None:
        for _ in range(60):
            target_ms, limit = START_MS + rng.randrange(-10, 1300), rng.randrange(len(times) + 1)
            start = log.start_offset
            expected = next(((o, t) for o, t in enumerate(times[:limit]) if t >= target_ms and o >= start), None)
            found = log.offset_for_timestamp(target_ms, limit)
            assert (found and (found.offset, found.timestamp_ms)) == expected
            largest = max(((t, -o) for o, t in enumerate(times[:limit]) if o >= start), default=None)
            top = log.offset_of_max_timestamp(limit)
            batch_aligned = limit == len(times)
            if batch_aligned:
                assert (top and (top.timestamp_ms, -top.offset)) == largest

    async with opened(files, "/data") as directory:
        log = open_log(directory, config)
        for number in range(150):
            some = [START_MS + number * 8 + rng.randrange(-200, 200) for _ in range(rng.randrange(1, 5))]
            put(log, some, rng.choice(list(Codec)))
            times += some
        check(log)
    async with opened(files, "/data") as directory:
        log = open_log(directory, config)
        check(log)
        await log.delete_records_before(77)
        check(log)


async def test_the_answer_has_the_epoch_of_its_batch() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        put(log, [START_MS], epoch=3)
        put(log, [START_MS + 10], epoch=8)
        found = log.offset_for_timestamp(START_MS + 5, 2)
        assert found is not None
        assert (found.offset, found.leader_epoch) == (1, 8)


async def test_with_log_append_time_the_batchs_time_is_that_of_each_record() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        batch = bytearray(build_batch([Record(key=b"k", value=b"v", timestamp_ms=t) for t in (1, 2, 3)]))
        stamp_log_append_time(memoryview(batch), 0, len(batch), 0, START_MS)
        append(log, batch)
        found = log.offset_for_timestamp(START_MS, 3)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (0, START_MS)
        assert log.offset_for_timestamp(START_MS + 1, 3) is None


@pytest.mark.parametrize("timestamp_ms", [0, START_MS])
async def test_an_empty_log_has_nothing_to_find(timestamp_ms: int) -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        assert log.offset_for_timestamp(timestamp_ms, 0) is None
        assert log.offset_of_max_timestamp(0) is None


async def test_bytes_that_are_no_records_under_a_right_crc_are_found_as_a_whole_batch() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, SMALL)
        put(log, [START_MS])
        put(log, [START_MS + 5, START_MS + 6])
        append(log, garbage(START_MS + 10))
        put(log, [START_MS + 20])
        found = log.offset_for_timestamp(START_MS + 8, log.end_offset)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (3, START_MS + 10)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("bound", ["MAX_DECOMPRESSED_BYTES", "MAX_SCANNED_RECORDS"])
async def test_a_batch_too_large_to_be_opened_in_the_broker_is_found_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, bound: str
) -> None:
    monkeypatch.setattr(f"penstock.log.search.{bound}", 40 if bound == "MAX_SCANNED_RECORDS" else 1000)
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, segment_bytes=1 << 20))
        put(log, [START_MS + i for i in range(10)], codec)
        put(log, [START_MS + 100 + i for i in range(50)], codec)
        found = log.offset_for_timestamp(START_MS + 120, log.end_offset)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (10, START_MS + 149), "it begins before what was looked for"
        within = log.offset_for_timestamp(START_MS + 5, log.end_offset)
        assert within is not None
        assert within.offset == 5


def garbage(timestamp_ms: int) -> bytearray:
    """Return a batch with a matching CRC over invalid records."""
    batch = bytearray(build_batch([Record(key=b"k", value=b"v" * 20, timestamp_ms=timestamp_ms)]))
    batch[HEADER_SIZE:] = b"\xff" * (len(batch) - HEADER_SIZE)
    CRC.pack_into(batch, 17, checksum(memoryview(batch), 0, len(batch)))
    return batch
