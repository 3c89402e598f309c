"""A compacted log keeps the last record of each key at its offset, and never blocks the event loop."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from log_kit import (
    SMALL,
    START_MS,
    HandClock,
    append,
    headers_in,
    note_seed,
    open_log,
    opened,
    read_all,
    settle,
)
from memory_files import CrashImages, MemoryFiles

from penstock.config.topic import DAY_MS, FOREVER
from penstock.log.compaction.runner import ProcessRunner
from penstock.log.partition_log import PartitionLog
from penstock.runtime.disk import OsFiles
from penstock.wire.batch import CRC, HEADER_SIZE, checksum
from penstock.wire.records import Codec, Record, build_batch, iterate_batches, iterate_records

COMPACT = replace(SMALL, cleanup_delete=False, cleanup_compact=True, min_cleanable_dirty_ratio=0.0)
NEVER = replace(COMPACT, min_compaction_lag_ms=FOREVER // 2)


def put(
    log: PartitionLog,
    key: bytes,
    value: bytes | None,
    timestamp_ms: int = START_MS,
    codec: Codec = Codec.NONE,
    pid: int = -1,
) -> int:
    """Append one record and return its offset."""
    record = Record(key=key, value=value, timestamp_ms=timestamp_ms)
    producer = {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0} if pid >= 0 else {}
    append(log, bytearray(build_batch([record], codec=codec, **producer)))
    return log.end_offset - 1


def records_of(log: PartitionLog) -> list[Record]:
    return [r for header, batch in iterate_batches(read_all(log)) for r in iterate_records(batch, header, 1 << 20)]


def fill(log: PartitionLog, rng: random.Random, count: int, keys: int = 8) -> dict[int, tuple[bytes, bytes | None]]:
    """Append records of a few keys and return them by offset."""
    appended = {}
    for number in range(count):
        key = b"key %d" % rng.randrange(keys)
        value = None if rng.random() < 0.1 else b"value %d " % number * rng.randrange(1, 4)
        appended[put(log, key, value, START_MS + number)] = key, value
    return appended


def expected(appended: dict[int, tuple[bytes, bytes | None]], below: int) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the last record of each key below an offset, and all records from it on."""
    last = {key: offset for offset, (key, _) in appended.items() if offset < below}
    return {o: kv for o, kv in appended.items() if o >= below or last[kv[0]] == o}


async def test_the_last_record_of_each_key_stays_at_its_offset() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        appended = fill(log, random.Random(1), 300)
        await log.flush()
        before, sealed_end = log.size_bytes, log.segments[-2].end_offset
        log.reconfigure(COMPACT)
        await settle(directory)
        assert {r.offset: (r.key, r.value) for r in records_of(log)} == expected(appended, sealed_end)
        assert log.size_bytes < before / 2
        assert len(log.segments) == 2, "small segments are joined"
        assert log.compacted_until == sealed_end


async def test_appending_reading_and_compacting_again_go_on_after_a_restart() -> None:
    files, rng = MemoryFiles(), random.Random(2)
    async with opened(files, "/data") as directory:
        log = open_log(directory, COMPACT)
        appended = fill(log, rng, 200)
        await settle(directory)
    for clean in (True, False):
        async with opened(files, "/data", clean=clean) as directory:
            log = open_log(directory, COMPACT)
            appended |= fill(log, rng, 200)
            await settle(directory)
            assert log.compacted_until == log.segments[-2].end_offset
            assert {r.offset: (r.key, r.value) for r in records_of(log)} == expected(appended, log.compacted_until)
            offsets = [r.offset for r in records_of(log)]
            for offset in range(log.end_offset):
                part = log.read(offset, 1, log.end_offset, at_least_one=True)
                assert part is not None
                header = headers_in(part.file.read_at(part.position, part.size))[0]
                part.release()
                assert header.base_offset == next(o for o in offsets if o >= offset)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_a_batch_that_loses_records_keeps_its_codec_its_span_and_its_producer(codec: Codec) -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        records = [
            Record(key=b"a", value=b"1" * 50),
            Record(key=b"b", value=b"2" * 50),
            Record(key=b"a", value=b"3" * 50),
        ]
        fields = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11}
        append(log, bytearray(build_batch(records, codec=codec, **fields)), epoch=5)
        for number in range(40):
            put(log, b"b", b"later %d" % number * 5)
        log.reconfigure(COMPACT)
        await settle(directory)
        header = headers_in(read_all(log))[0]
        assert (header.codec, header.base_offset, header.last_offset_delta, header.record_count) == (codec, 0, 2, 1)
        assert (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch) == (7, 3, 11, 5)


async def test_the_last_batch_of_a_producer_stays_even_when_nothing_in_it_does() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        put(log, b"a", b"old", pid=9)
        put(log, b"a", b"newer", pid=9)
        for number in range(60):
            put(log, b"a", b"newest %d" % number * 4)
        log.reconfigure(COMPACT)
        await settle(directory)
        header = headers_in(read_all(log))[0]
        assert (header.producer_id, header.base_offset, header.record_count) == (9, 1, 0)


async def test_a_tombstone_stays_for_delete_retention_after_its_first_cleaning() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, NEVER)
        put(log, b"gone", b"value")
        tombstone = put(log, b"gone", None)

        async def compact() -> list[int]:
            for number in range(60):
                put(log, b"other", b"%d" % number * 9)
            await settle(directory)
            return [r.offset for r in records_of(log) if r.key == b"gone"]

        log.reconfigure(COMPACT)
        assert await compact() == [tombstone]
        clock.advance(DAY_MS - 1000)
        assert await compact() == [tombstone]
        clock.advance(2000)
        assert await compact() == []


async def test_nothing_above_the_high_watermark_or_younger_than_the_lag_is_compacted() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, replace(COMPACT, min_compaction_lag_ms=5000))
        log.retention_limit = lambda: 20
        for number in range(200):
            put(log, b"k", b"%d" % number * 9, START_MS + number)
        await settle(directory)
        assert len(records_of(log)) == 200
        clock.advance(10_000)
        log.reconfigure(log.config)
        await settle(directory)
        assert len(records_of(log)) == 200, "the first segment reaches past the limit"
        end = log.segments[1].end_offset
        log.retention_limit = lambda: end
        log.reconfigure(log.config)
        await settle(directory)
        assert [r.offset for r in records_of(log)] == [end - 1, *range(end, 200)]


async def test_a_clean_log_is_left_alone_until_it_is_dirty_enough() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        config = replace(COMPACT, min_cleanable_dirty_ratio=0.9)
        log = open_log(directory, config)
        for number in range(100):
            put(log, b"key %d" % number, b"v" * 50)
        await settle(directory)
        first = directory.compactor.compactions
        for number in range(30):
            put(log, b"other %d" % number, b"v" * 50)
        await settle(directory)
        assert (first, directory.compactor.compactions) == (1, 1)
        log.reconfigure(replace(config, min_cleanable_dirty_ratio=0.1))
        await settle(directory)
        assert directory.compactor.compactions == 2


async def test_more_keys_than_fit_into_memory_are_compacted_in_several_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.compaction.compactor.MAX_KEYS_IN_MEMORY", 10)
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        appended = fill(log, random.Random(3), 300, keys=50)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert directory.compactor.compactions > 3
        sealed_end = log.compacted_until
        assert {r.offset: (r.key, r.value) for r in records_of(log)} == expected(appended, sealed_end)


async def test_a_reader_that_is_sending_an_old_segment_is_not_disturbed() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        fill(log, random.Random(4), 100)
        part = log.read(0, 1 << 20, log.end_offset, at_least_one=True)
        assert part is not None
        content = part.file.read_at(part.position, part.size)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert part.file.read_at(part.position, part.size) == content
        part.release()


async def test_searches_by_time_find_the_records_that_stayed() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, COMPACT)
        fill(log, random.Random(5), 300)
        await settle(directory)
        kept = records_of(log)
        for record in kept:
            found = log.offset_for_timestamp(record.timestamp_ms, log.end_offset)
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (record.offset, record.timestamp_ms)


@pytest.mark.slow
async def test_a_crash_at_any_step_of_a_compaction_finds_the_old_segments_or_the_new() -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
    note_seed(seed)
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory, NEVER)
        appended = fill(log, random.Random(seed), 150)
        await log.flush()
        await settle(directory)
        first = len(files.trace)
        log.reconfigure(replace(COMPACT, file_delete_delay_ms=0))
        await settle(directory)
        last = expected(appended, log.compacted_until)
        swapped = len(files.trace)
    assert swapped - first > 20
    images, outcomes = CrashImages(files.trace), set()
    for steps in range(first, len(files.trace) + 1):
        image = images.image(steps, random.Random(f"{seed} {steps}"))
        async with opened(image, "/data") as directory:
            assert not directory.corrupt, f"seed {seed}, step {steps}: {directory.corrupt}"
            found = {r.offset: (r.key, r.value) for r in records_of(open_log(directory, NEVER))}
            assert found in (appended, last), f"seed {seed}, step {steps}: neither the old log nor the new"
            outcomes.add(len(found))
    assert len(outcomes) == 2


@pytest.mark.integration
async def test_the_worker_is_a_process_of_its_own_and_its_death_only_puts_compaction_off(tmp_path: Path) -> None:
    runner = ProcessRunner()
    async with opened(OsFiles(), str(tmp_path), compaction=runner) as directory:
        log = open_log(directory, COMPACT)
        appended = fill(log, random.Random(6), 200)
        await settle(directory)
        assert {r.offset: (r.key, r.value) for r in records_of(log)} == expected(appended, log.compacted_until)
        assert directory.compactor.compactions
        assert runner.process is not None
        assert runner.process.pid != os.getpid()
        os.kill(runner.process.pid, signal.SIGKILL)
        await runner.process.wait()
        appended |= fill(log, random.Random(7), 100)
        await settle(directory)
        appended |= fill(log, random.Random(8), 100)
        await settle(directory)
        assert log.compacted_until == log.segments[-2].end_offset
        assert {r.offset: (r.key, r.value) for r in records_of(log)} == expected(appended, log.compacted_until)
    assert runner.process is None


async def test_a_batch_that_holds_no_records_under_a_right_crc_stays_and_stops_nobody() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        batch = bytearray(build_batch([Record(key=b"k", value=b"v" * 30, timestamp_ms=START_MS)]))
        batch[HEADER_SIZE:] = b"\xff" * (len(batch) - HEADER_SIZE)
        CRC.pack_into(batch, 17, checksum(memoryview(batch), 0, len(batch)))
        append(log, batch)
        fill(log, random.Random(3), 300)
        await log.flush()
        before = log.size_bytes
        log.reconfigure(COMPACT)
        await settle(directory)
        assert log.size_bytes < before / 2
        kept = next(iterate_batches(read_all(log)))[1]
        assert bytes(kept[HEADER_SIZE:]) == bytes(batch[HEADER_SIZE:])
