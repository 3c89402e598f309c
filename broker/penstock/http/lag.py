"""Consumer group lag: in records, and as the age of the first unread batch.

A group's offsets are at its coordinator; only a partition's leader, often another broker, knows the partition's end. If
that broker does not answer, the lag is left out, because 0 would mean that the group is up to date. Ages are read from
batch headers in a thread, because an index or an old batch may come from disk. Records of a topic with delayed delivery
count from when they became visible. There is no cost between scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from penstock.http.sources import CommittedSource, LogSource, PartitionName, PartitionSource, RemoteOffsets, Sources
from penstock.log.batch_times import unread_age_ms

OFFSETS_PER_SLICE = 1_000
"""Offsets to process before yielding to the event loop."""


class Lag(NamedTuple):
    """A group's lag in a partition. `records` is None if the end is unknown, `seconds` if the age is unknown."""

    group: str
    topic: str
    partition: int
    committed_offset: int
    records: int | None
    seconds: float | None


class UnreadOffset(NamedTuple):
    """The first unread offset of a group, and the index of its lag in the result."""

    log: LogSource
    offset: int
    lag_index: int
    delay_ms: int


async def measure_lags(sources: Sources) -> list[Lag]:
    """Return the lag of each group in each partition with a committed offset."""
    lags: list[Lag] = []
    unread: list[UnreadOffset] = []
    remote: dict[PartitionName, list[int]] = {}
    for number, committed in enumerate(sources.committed()):
        if number % OFFSETS_PER_SLICE == OFFSETS_PER_SLICE - 1:
            await asyncio.sleep(0)
        partition = sources.partitions.find(committed.topic, committed.partition)
        if partition is None:
            remote.setdefault((committed.topic, committed.partition), []).append(len(lags))
            lags.append(unknown_lag(committed))
            continue
        lag = local_lag(committed, partition)
        if lag.records:
            delay_ms = 0 if partition.delivery is None else partition.delivery.delay_ms
            unread.append(UnreadOffset(partition.log, partition.acknowledged_end - lag.records, len(lags), delay_ms))
        lags.append(lag)
    if remote:
        offsets = {name: {lags[i].committed_offset for i in indexes} for name, indexes in remote.items()}
        for number, (name, remote_offsets) in enumerate((await sources.query_remote(offsets)).items()):
            if number % OFFSETS_PER_SLICE == OFFSETS_PER_SLICE - 1:
                await asyncio.sleep(0)
            for i in remote[name]:
                lags[i] = remote_lag(lags[i], remote_offsets)
    if unread:
        times = await asyncio.get_running_loop().run_in_executor(None, read_batch_times, unread)
        now_ms = sources.clock.wall_ms()
        for position, time_ms in zip(unread, times, strict=True):
            age_ms = unread_age_ms(time_ms, now_ms, position.delay_ms)
            if age_ms is not None:
                lags[position.lag_index] = lags[position.lag_index]._replace(seconds=age_ms / 1000)
    return lags


def unknown_lag(committed: CommittedSource) -> Lag:
    """Return a lag without records and seconds."""
    return Lag(committed.group_id, committed.topic, committed.partition, committed.offset, None, None)


def local_lag(committed: CommittedSource, partition: PartitionSource) -> Lag:
    """Return the lag in records; in seconds only if it is 0."""
    behind = max(partition.acknowledged_end - max(committed.offset, partition.log.start_offset), 0)
    return unknown_lag(committed)._replace(records=behind, seconds=None if behind else 0.0)


def remote_lag(lag: Lag, remote_offsets: RemoteOffsets) -> Lag:
    """Return the lag in a partition that another broker leads."""
    behind = max(remote_offsets.high_watermark - max(lag.committed_offset, remote_offsets.start_offset), 0)
    age_ms = remote_offsets.ages_ms.get(lag.committed_offset) if behind else 0
    return lag._replace(records=behind, seconds=None if age_ms is None else age_ms / 1000)


def read_batch_times(unread: Iterable[UnreadOffset]) -> list[int | None]:
    """Return the results of `batch_times`. Reads from disk: call it in a thread."""
    return [position.log.batch_times([position.offset])[0] for position in unread]
