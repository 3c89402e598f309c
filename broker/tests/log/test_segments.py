"""Segment rolls, and the content of the indexes."""

from __future__ import annotations

import struct
from dataclasses import replace

from log_kit import SMALL, START_MS, append, batch_of, open_log, opened, read_all, settle
from memory_files import MemoryFiles

from penstock.log.index import MAX_ENTRIES, OffsetIndex
from penstock.log.partition_log import PartitionLog


def entries(files: MemoryFiles, path: str, layout: str) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack(layout, files.read(path)))


async def test_a_segment_is_full_at_segment_bytes() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        for _ in range(60):
            append(log)
        sizes = [s.size for s in log.segments]
        batch_size = len(batch_of())
        assert all(SMALL.segment_bytes - batch_size < size <= SMALL.segment_bytes for size in sizes[:-1])


async def test_a_batch_larger_than_a_segment_gets_one_to_itself() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        append(log)
        large = append(log, batch_of(1, value=b"x" * 5000))
        append(log)
        assert [s.base_offset for s in log.segments] == [0, 3, 4]
        assert read_all(log, 3, 4) == large


async def test_a_segment_ends_when_its_first_batch_is_older_than_segment_ms() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, segment_ms=10_000))
        append(log, batch_of(1, timestamp_ms=START_MS))
        append(log, batch_of(1, timestamp_ms=START_MS + 10_000))
        assert len(log.segments) == 1
        append(log, batch_of(1, timestamp_ms=START_MS + 10_001))
        assert len(log.segments) == 2


async def test_a_segment_ends_where_relative_offsets_would_not_fit() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        await log.permit_gaps()
        first = append(log, batch_of(1))
        second = append(log, batch_of(1), base_offset=(1 << 31) - 1)
        third = append(log, batch_of(1), base_offset=1 << 31)
        fourth = append(log, batch_of(1), base_offset=1 << 40)
        assert [s.base_offset for s in log.segments] == [0, 1 << 31, 1 << 40]
        assert read_all(log) == first + second + third + fourth


async def test_a_segment_ends_when_its_index_is_full() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        append(log)
        assert log.active is not None
        assert log.active.indexes is not None
        index = OffsetIndex()
        index.offsets.extend(range(MAX_ENTRIES))
        index.positions.extend(range(MAX_ENTRIES))
        log.active.indexes.offsets = index
        append(log)
        assert len(log.segments) == 2


async def test_index_files_have_the_known_formats() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory, replace(SMALL, index_interval_bytes=300))
        while len(log.segments) < 2:
            append(log, batch_of(3, timestamp_ms=START_MS + log.end_offset))
        directory.start_checkpoint(log)
        await settle(directory)
        segment, size = log.segments[0], len(batch_of())
        every = -(-300 // size)
        count = -(-segment.size // size // every) if segment.size // size % every else segment.size // size // every
        positions = [n * every * size for n in range(count)]
        assert entries(files, segment.index_path, ">ii") == [(p // size * 3, p) for p in positions]
        times = entries(files, segment.time_index_path, ">qi")
        assert times[0] == (START_MS + 2, 0)
        assert times[-1] == (segment.max_timestamp_ms, segment.end_offset - 3)
        assert times == sorted(times)


async def test_indexes_go_on_growing_after_a_restart() -> None:
    files = MemoryFiles()

    def check(log: PartitionLog) -> None:
        data = files.read(log.segments[0].index_path)
        index = OffsetIndex.decode(data, log.segments[0].size)
        assert len(index) > 10
        assert index.positions[0] == 0

    async with opened(files, "/data") as directory:
        log = open_log(directory, replace(SMALL, segment_bytes=1 << 20))
        for _ in range(30):
            append(log)
    async with opened(files, "/data") as directory:
        log = open_log(directory, replace(SMALL, segment_bytes=1 << 20))
        for _ in range(30):
            append(log)
        directory.start_checkpoint(log)
        await settle(directory)
        check(log)
