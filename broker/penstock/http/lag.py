"""How far each group is behind: in records, and in the age of the first batch that it has not read.

A group's offsets are with its coordinator, and where a partition ends only its leader knows: in a cluster that is
mostly another broker, which is asked. What it does not tell is left out, as a lag of 0 would say that all is well. Ages
are read from batches' headers, in a thread, as an index or an old batch may have to come from the disk. Costs nothing
between two questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from penstock.http.sources import CommittedSource, Ends, LogSource, PartitionSource, Place, Sources

SLICE = 1_000
"""Offsets that are looked at before others have their turn on the loop."""


class Lag(NamedTuple):
    """A group's place in a partition. `records` is None where the end is not known, `seconds` where the age is not."""

    group: str
    topic: str
    partition: int
    committed_offset: int
    records: int | None
    seconds: float | None


class UnreadAge(NamedTuple):
    """Where a group reads on, and where in the answer its lag stands."""

    log: LogSource
    offset: int
    place: int


async def measure_lags(sources: Sources) -> list[Lag]:
    """The lag of each group in each partition that it has committed an offset for."""
    lags: list[Lag] = []
    unread: list[UnreadAge] = []
    elsewhere: dict[Place, list[int]] = {}
    for number, committed in enumerate(sources.committed()):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        partition = sources.partitions.find(committed.topic, committed.partition)
        if partition is None:
            elsewhere.setdefault((committed.topic, committed.partition), []).append(len(lags))
            lags.append(unknown(committed))
            continue
        lag = lag_of(committed, partition)
        if lag.records:
            unread.append(UnreadAge(partition.log, partition.acknowledged_end - lag.records, len(lags)))
        lags.append(lag)
    if elsewhere and sources.elsewhere is not None:
        offsets = {place: {lags[i].committed_offset for i in at} for place, at in elsewhere.items()}
        for number, (place, ends) in enumerate((await sources.elsewhere(offsets)).items()):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            for i in elsewhere[place]:
                lags[i] = lag_elsewhere(lags[i], ends)
    if unread:
        times = await asyncio.get_running_loop().run_in_executor(None, read_times, unread)
        now_ms = sources.clock.wall_ms()
        for one, time_ms in zip(unread, times, strict=True):
            if time_ms is not None and time_ms >= 0:
                lags[one.place] = lags[one.place]._replace(seconds=max(now_ms - time_ms, 0) / 1000)
    return lags


def unknown(committed: CommittedSource) -> Lag:
    return Lag(committed.group_id, committed.topic, committed.partition, committed.offset, None, None)


def lag_of(committed: CommittedSource, partition: PartitionSource) -> Lag:
    """The lag in records; in seconds only where there is none."""
    behind = max(partition.acknowledged_end - max(committed.offset, partition.log.start_offset), 0)
    return unknown(committed)._replace(records=behind, seconds=None if behind else 0.0)


def lag_elsewhere(lag: Lag, ends: Ends) -> Lag:
    """The same of a partition that another broker leads."""
    behind = max(ends.high_watermark - max(lag.committed_offset, ends.start_offset), 0)
    age_ms = ends.ages_ms.get(lag.committed_offset) if behind else 0
    return lag._replace(records=behind, seconds=None if age_ms is None else age_ms / 1000)


def read_times(unread: Iterable[UnreadAge]) -> list[int | None]:
    """The largest timestamp of each batch, in ms since 1970; None where there is none. In a thread."""
    return [one.log.batch_times([one.offset])[0] for one in unread]
