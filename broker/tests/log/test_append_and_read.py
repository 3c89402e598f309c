"""Reads return the appended bytes, as whole batches within a size limit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from log_kit import SMALL, UNFLUSHED, append, batch_of, headers_in, open_log, opened, read_all
from memory_files import MemoryFiles

from penstock.log.types import CorruptLog, OffsetOutOfRange


async def test_batches_come_back_byte_for_byte_across_segments() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        batches = [append(log, batch_of(n % 5 + 1)) for n in range(100)]
        assert len(log.segments) > 3
        assert read_all(log) == b"".join(batches)
        assert log.size_bytes == sum(map(len, batches))
        assert log.end_offset == sum(n % 5 + 1 for n in range(100))


async def test_an_offset_within_a_batch_gives_the_whole_batch() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        batches = [append(log, batch_of(5)) for _ in range(60)]
        for offset in random.Random(1).sample(range(log.end_offset), 80):
            assert read_all(log, offset) == b"".join(batches[offset // 5 :])


@pytest.mark.parametrize("max_bytes", [1, 100, 300, 700, 5000])
@pytest.mark.parametrize("index_interval_bytes", [0, 256, 1 << 20])
async def test_reads_take_whole_batches_up_to_the_bound(max_bytes: int, index_interval_bytes: int) -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, index_interval_bytes=index_interval_bytes, segment_bytes=4000))
        batches = [append(log, batch_of(3)) for _ in range(80)]
        offset = 0
        while offset < log.end_offset:
            part = log.read(offset, max_bytes, log.end_offset, at_least_one=True)
            assert part is not None
            found = headers_in(part.file.read_at(part.position, part.size))
            part.release()
            assert found[0].base_offset == offset
            assert part.size <= max_bytes or len(found) == 1
            offset = found[-1].last_offset + 1
        assert read_all(log, max_bytes=max_bytes) == b"".join(batches)


async def test_a_reader_that_uses_less_than_it_reads_continues_at_a_moved_location() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        batches = [append(log, batch_of(3)) for _ in range(60)]
        assert len(log.segments) > 3
        for offset in range(log.end_offset):
            part = log.read(offset, 1 << 20, log.end_offset, at_least_one=True)
            assert part is not None
            data = part.file.read_at(part.position, part.size)
            part.release()
            first = headers_in(data)[0]
            assert data.startswith(batches[offset // 3])
            is_in_batch = offset < first.last_offset
            log.reader.move_location(offset, offset + 1, part.position + (0 if is_in_batch else first.size_bytes))
            assert offset not in log.reader.locations
            assert offset + 1 in log.reader.locations


async def test_a_location_behind_the_end_of_its_segment_is_not_cached() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        append(log, batch_of(3))
        log.reader.move_location(0, 3, log.segments[0].size + 1)
        assert 3 not in log.reader.locations


async def test_without_at_least_one_a_batch_that_is_too_large_is_not_given() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        size = len(append(log))
        append(log)
        assert log.read(0, size - 1, log.end_offset, at_least_one=False) is None
        part = log.read(0, size, log.end_offset, at_least_one=False)
        assert part is not None
        assert part.size == size
        part.release()


async def test_nothing_at_or_above_the_limit_is_read() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        batches = [append(log, batch_of(4)) for _ in range(50)]
        for limit in range(0, 200, 4):
            assert read_all(log, 0, limit) == b"".join(batches[: limit // 4])
            assert log.read(limit, 1 << 20, limit, at_least_one=True) is None


async def test_the_end_gives_nothing_and_what_lies_outside_is_out_of_range() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        assert log.read(0, 1000, 0, at_least_one=True) is None
        append(log, batch_of(5))
        assert log.read(5, 1000, 5, at_least_one=True) is None
        for offset in (-1, 6):
            with pytest.raises(OffsetOutOfRange, match=str(offset)):
                log.read(offset, 1000, 5, at_least_one=True)
        await log.delete_records_before(3)
        with pytest.raises(OffsetOutOfRange):
            log.read(2, 1000, 5, at_least_one=True)
        assert headers_in(read_all(log, 3))[0].base_offset == 0


async def test_gaps_between_offsets_are_read_over() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        bases, batches = [], []
        await log.permit_gaps()
        for number in range(60):
            base = log.end_offset + (number % 3) * 7
            bases.append(base)
            batches.append(append(log, batch_of(2), base_offset=base))
        for offset in range(log.end_offset):
            first = next(i for i, base in enumerate(bases) if base + 1 >= offset)
            assert read_all(log, offset) == b"".join(batches[first:])


async def test_going_on_where_a_read_ended_reads_no_file() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory, UNFLUSHED)
        for _ in range(20):
            append(log)
        part = log.read(0, 1 << 20, log.end_offset, at_least_one=True)
        assert part is not None
        part.release()
        end = log.end_offset
        append(log)
        reads = []
        part.file.read_at = lambda offset, size: reads.append(offset)  # type: ignore[method-assign, assignment, func-returns-value]
        more = log.read(end, 1 << 20, log.end_offset, at_least_one=True)
        assert more is not None
        assert not reads
        assert more.position == part.position + part.size
        more.release()


async def test_a_partition_without_data_has_no_directory_and_no_file() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        assert not files.exists(log.directory)
        assert directory.pool.open_files == 0
        append(log)
        assert files.exists(log.directory)
    assert b'"topic": "events"' in files.read(f"{log.directory}/partition.json")


async def test_open_files_are_bounded_whatever_the_number_of_logs() -> None:
    async with opened(MemoryFiles(), "/data", max_open_files=10) as directory:
        logs = [open_log(directory, partition=n) for n in range(50)]
        batches = []
        for log in logs:
            batches.append(append(log))
            await log.flush()
            assert directory.pool.open_files <= 10
        for log, batch in zip(logs, batches, strict=True):
            assert read_all(log) == batch
            assert directory.pool.open_files <= 10


async def test_a_slice_in_use_keeps_its_file_open() -> None:
    async with opened(MemoryFiles(), "/data", max_open_files=3) as directory:
        logs = [open_log(directory, partition=n) for n in range(10)]
        batch = append(logs[0])
        await logs[0].flush()
        part = logs[0].read(0, 1000, 3, at_least_one=True)
        assert part is not None
        for log in logs[1:]:
            append(log)
            await log.flush()
        assert part.file.read_at(part.position, part.size) == batch
        part.release()
        with pytest.raises(AssertionError, match="released twice"):
            part.release()


async def test_a_segment_that_shrank_behind_our_back_is_found_out() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        while len(log.segments) < 3:
            append(log)
        await log.flush()
        directory.pool.close(log.segments[0])
        file = files.open(log.segments[0].path)
        file.truncate(file.size() - 1)
        with pytest.raises(CorruptLog, match=r"00000000000000000000\.log"):
            log.read(0, 1000, log.end_offset, at_least_one=True)


async def test_an_append_anywhere_but_at_the_end_is_refused() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        append(log)
        with pytest.raises(AssertionError, match="offset 1 is behind 3"):
            append(log, base_offset=1)
        with pytest.raises(AssertionError, match="gaps are not permitted"):
            append(log, base_offset=4)
