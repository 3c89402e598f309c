"""Scheduled records are read from the log like by looking at all batches."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from log_kit import SMALL, START_MS, any_seed, append, batch_of, note_seed, open_log, opened
from memory_files import MemoryFiles

from penstock.log.partition_log import PartitionLog
from penstock.log.scheduled_records import FoundBody, read_bodies, replay_schedule
from penstock.log.types import CorruptLog
from penstock.wire.scheduled_batch import ScheduledRow, build_delivered, build_scheduled

Rows = list[tuple[int, int, int, int]]


class AppliedBatches:
    """A schedule that records what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, list[tuple[int, int, int]]]] = []
        self.delivered: list[tuple[int, list[int]]] = []

    def apply_rows(self, base_offset: int, rows: Iterable[tuple[int, int, int, int]]) -> None:
        self.rows.append((base_offset, [row[:3] for row in rows]))

    def apply_delivered(self, base_offset: int, origins: Iterable[int]) -> None:
        self.delivered.append((base_offset, list(origins)))


def append_rows(log: PartitionLog, rows: list[ScheduledRow]) -> int:
    base = log.end_offset
    append(log, build_scheduled(rows, None, START_MS))
    return base


async def test_batches_and_bodies_are_found_like_by_looking_at_all() -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    expected, bodies = AppliedBatches(), dict[int, bytes]()
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, index_interval_bytes=300))
        for _ in range(200):
            kind = rng.randrange(3)
            base = log.end_offset
            if kind == 0:
                append(log, batch_of(rng.randrange(1, 4), timestamp_ms=START_MS))
            elif kind == 1:
                origins = [rng.randrange(1 << 40) for _ in range(rng.randrange(1, 5))]
                append(log, build_delivered([(origin, b"\1\1\2") for origin in origins], START_MS))
                expected.delivered.append((base, origins))
            else:
                rows = [
                    ScheduledRow(rng.randrange(1 << 40), -1, rng.randrange(99), rng.randbytes(rng.randrange(0, 90)))
                    for _ in range(rng.randrange(1, 6))
                ]
                append_rows(log, rows)
                expected.rows.append((base, [row[:3] for row in rows]))
                bodies |= {base + i: row.body for i, row in enumerate(rows)}
        await log.flush()
        assert len(log.segments) > 3
        found = AppliedBatches()
        replay_schedule(log.new_search(), 0, log.end_offset, found)
        assert (found.rows, found.delivered) == (expected.rows, expected.delivered)
        middle = expected.rows[40][0]
        later = AppliedBatches()
        replay_schedule(log.new_search(), middle, expected.rows[50][0], later)
        assert later.rows == expected.rows[40:50]
        for _ in range(40):
            locations = rng.sample(sorted(bodies), rng.randrange(1, 30))
            most = rng.randrange(1, 400)
            read = read_bodies(log.new_search(), locations, most)
            assert read == [FoundBody(location, bodies[location]) for location in locations[: len(read)]]
            sizes = [len(bodies[location]) for location in locations]
            assert len(read) == 1 or sum(sizes[: len(read)]) <= most
            assert len(read) == len(locations) or sum(sizes[: len(read) + 1]) > most


async def test_records_that_were_deleted_with_the_start_of_the_log_have_no_body() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, segment_bytes=1024))
        append_rows(log, [ScheduledRow(1, -1, 0, b"x" * 900)])
        kept = append_rows(log, [ScheduledRow(1, -1, 0, b"y" * 900)])
        await log.flush()
        await log.delete_records_before(kept)
        assert read_bodies(log.new_search(), [0, kept], 1 << 20) == [(0, None), (kept, b"y" * 900)]


async def test_a_location_without_a_scheduled_record_is_an_error() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, SMALL)
        append(log, batch_of(2, timestamp_ms=START_MS))
        with pytest.raises(CorruptLog, match="no scheduled record at offset 1"):
            read_bodies(log.new_search(), [1], 1 << 20)
