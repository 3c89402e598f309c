"""The age of unread records counts from the first batch with records."""

from __future__ import annotations

import pytest
from log_kit import START_MS, append, batch_of, open_log, opened
from memory_files import MemoryFiles

from penstock.log.batch_times import MAX_SKIPPED_BATCHES, NO_RECORDS, unread_age_ms
from penstock.log.partition_log import PartitionLog
from penstock.wire.control_batch import Marker, build_marker


def append_markers(log: PartitionLog, count: int) -> None:
    for producer_id in range(count):
        append(log, build_marker(Marker(producer_id, 0, True, 0), START_MS))


async def test_control_batches_are_passed_over() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        append(log, batch_of(2))
        append_markers(log, 3)
        append(log, batch_of(1, timestamp_ms=START_MS + 9_000))
        append_markers(log, 1)
        assert log.batch_times([0, 2, 4, 5, 6, 7]) == [
            START_MS + 1, START_MS + 9_000, START_MS + 9_000, START_MS + 9_000, NO_RECORDS, None,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("markers", "time_ms"), [(MAX_SKIPPED_BATCHES, START_MS + 9_000), (MAX_SKIPPED_BATCHES + 1, START_MS)]
)
async def test_one_lookup_passes_over_a_bounded_number_of_control_batches(markers: int, time_ms: int) -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        append_markers(log, markers)
        append(log, batch_of(1, timestamp_ms=START_MS + 9_000))
        assert log.batch_times([0]) == [time_ms]


@pytest.mark.parametrize(
    ("time_ms", "age_ms"), [(900, 80), (990, 0), (1_500, 0), (NO_RECORDS, 0), (-1, None), (None, None)]
)
def test_an_age_counts_from_when_the_batch_became_visible(time_ms: int | None, age_ms: int | None) -> None:
    assert unread_age_ms(time_ms, now_ms=1_000, delay_ms=20) == age_ms
