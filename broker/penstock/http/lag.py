"""How far each group is behind: in records, and in the age of the first batch that it has not read.

The age is read from that batch's header, in a thread, as an index or an old batch may have to come from the disk. Costs
nothing between two questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from penstock.http.sources import CommittedSource, LogSource, PartitionSource, Sources


class Lag(NamedTuple):
    """A group's place in a partition; `seconds` is None where the age could not be read."""

    group: str
    topic: str
    partition: int
    committed_offset: int
    records: int
    seconds: float | None


class Unread(NamedTuple):
    """Where a group reads on, and where in the answer its lag stands."""

    log: LogSource
    offset: int
    place: int


async def measure_lags(sources: Sources) -> list[Lag]:
    """The lag of each group in each partition that it has committed an offset for."""
    lags: list[Lag] = []
    unread: list[Unread] = []
    for committed in sources.committed():
        partition = sources.partitions.find(committed.topic, committed.partition)
        lag = lag_of(committed, partition)
        if lag.records and partition is not None:
            unread.append(Unread(partition.log, partition.high_watermark - lag.records, len(lags)))
        lags.append(lag)
    if unread:
        times = await asyncio.get_running_loop().run_in_executor(None, read_times, unread)
        now_ms = sources.clock.wall_ms()
        for one, time_ms in zip(unread, times, strict=True):
            if time_ms is not None and time_ms >= 0:
                lags[one.place] = lags[one.place]._replace(seconds=max(now_ms - time_ms, 0) / 1000)
    return lags


def lag_of(committed: CommittedSource, partition: PartitionSource | None) -> Lag:
    """The lag in records; in seconds only where there is none."""
    lag = Lag(committed.group_id, committed.topic, committed.partition, committed.offset, 0, 0.0)
    if partition is None:
        return lag
    behind = partition.high_watermark - max(committed.offset, partition.log.start_offset)
    return lag._replace(records=behind, seconds=None) if behind > 0 else lag


def read_times(unread: Iterable[Unread]) -> list[int | None]:
    """The largest timestamp of each batch, in ms since 1970; None where there is none. In a thread."""
    return [one.log.batch_times([one.offset])[0] for one in unread]
