"""How far each group is behind: in records, and in the age of the first batch that it has not read.

The age is read from that batch's header: an index lookup on the loop, and 61 bytes of the file in a thread, as an old
batch may have to come from the disk. Costs nothing between two questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from penstock.http.sources import CommittedSource, PartitionSource, Sources
from penstock.log.types import LogError, LogSlice
from penstock.wire.batch import HEADER_SIZE, read_header


class Lag(NamedTuple):
    """A group's place in a partition; `seconds` is None where the age could not be read."""

    group: str
    topic: str
    partition: int
    committed_offset: int
    records: int
    seconds: float | None


async def measure_lags(sources: Sources) -> list[Lag]:
    """The lag of each group in each partition that it has committed an offset for."""
    lags: list[Lag] = []
    unread: list[LogSlice] = []
    of_slice: list[int] = []
    try:
        for committed in sources.committed():
            lag, batch = lag_of(committed, sources.partitions.find(committed.topic, committed.partition))
            if batch is not None:
                unread.append(batch)
                of_slice.append(len(lags))
            lags.append(lag)
        if unread:
            times = await asyncio.get_running_loop().run_in_executor(None, read_times, list(unread))
            now_ms = sources.clock.wall_ms()
            for number, time_ms in zip(of_slice, times, strict=True):
                if time_ms is not None:
                    lags[number] = lags[number]._replace(seconds=max(now_ms - time_ms, 0) / 1000)
    finally:
        for batch in unread:
            batch.release()
    return lags


def lag_of(committed: CommittedSource, partition: PartitionSource | None) -> tuple[Lag, LogSlice | None]:
    """The lag in records, and the first unread batch where there is one."""
    lag = Lag(committed.group_id, committed.topic, committed.partition, committed.offset, 0, 0.0)
    if partition is None:
        return lag, None
    offset = max(committed.offset, partition.log.start_offset)
    behind = partition.high_watermark - offset
    if behind <= 0:
        return lag, None
    lag = lag._replace(records=behind, seconds=None)
    try:
        return lag, partition.read(offset, 1, True)
    except LogError:
        return lag, None


def read_times(batches: Iterable[LogSlice]) -> list[int | None]:
    """The largest timestamp of each batch, in ms since 1970; None where there is none. In a thread."""
    times: list[int | None] = []
    for batch in batches:
        try:
            header = batch.file.read_at(batch.position, HEADER_SIZE)
        except OSError:
            times.append(None)
            continue
        time_ms = read_header(header).max_timestamp_ms if len(header) == HEADER_SIZE else -1
        times.append(time_ms if time_ms >= 0 else None)
    return times
