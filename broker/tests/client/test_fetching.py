"""Which data a consumer fetches, when, and from which broker, with scripted responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from client_doubles.replicas import FOLLOWER, LEADER, TP, Replicas, prefers, refuses

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import ConnectionFailed
from penstock.client.fetcher import FetchOptions
from penstock.client.polling import Polling
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import PartitionData

SMALL = FetchOptions(partition_max_bytes=1024, partition_buffer_bytes=1024)
"""Buffer sizes that one batch of `Replicas(..., 2_000)` fills."""


class FetchedFrom(Replicas):
    """Replicas with the listeners that `Polling` registers at a cluster."""

    def __init__(self, count: int, size_bytes: int = 10) -> None:
        super().__init__(count, size_bytes)
        self.on_metadata: list[object] = []


@asynccontextmanager
async def polling_of(replicas: FetchedFrom, options: FetchOptions) -> AsyncIterator[Polling]:
    """Yield a `Polling` that reads the partition from its beginning."""
    polling = Polling(cast(ClusterConnections, replicas), options, None, "error", None)
    polling.assign([TP])
    polling.seek(TP, 0)
    yield polling
    await polling.close(leave=False, commit=False)


async def iterate(polling: Polling, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        got = polling.next_record()
        if got is None:
            await polling.wait_for_records()
        else:
            found.append(got[1].offset)
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_iteration_goes_on_where_each_batch_fills_the_buffer() -> None:
    async with polling_of(FetchedFrom(12, 2_000), SMALL) as polling:
        assert await iterate(polling, 12) == list(range(12))


async def test_getmany_returns_as_soon_as_there_is_a_batch_that_fills_the_buffer() -> None:
    async with polling_of(FetchedFrom(12, 2_000), SMALL) as polling:
        found: list[int] = []
        while len(found) < 12:
            found += [r.offset for rs in (await polling.getmany(3_600, 10)).values() for r in rs]
        assert found == list(range(12))


async def test_iteration_fetches_ahead_before_the_buffer_is_empty() -> None:
    replicas = FetchedFrom(100, 200)
    async with polling_of(replicas, SMALL) as polling:
        await iterate(polling, 1)
        state = polling.positions.state(TP)
        await until(lambda: state.buffered_bytes >= 1024)
        for _ in range(20):
            fetched = state.fetch_offset
            while state.buffered_bytes >= 1024:
                await iterate(polling, 1)
            assert state.has_records
            while state.fetch_offset == fetched:
                await asyncio.sleep(0)


async def test_a_consumer_reads_from_the_replica_that_the_leader_names() -> None:
    replicas = FetchedFrom(100, 200)
    replicas.scripts[LEADER] = prefers(FOLLOWER)
    async with polling_of(replicas, SMALL) as polling:
        assert await iterate(polling, 100) == list(range(100))
    assert replicas.asked[0] == LEADER
    assert set(replicas.asked[1:]) == {FOLLOWER}


async def test_the_leader_is_asked_again_once_its_advice_is_old() -> None:
    replicas = FetchedFrom(100, 200)
    replicas.scripts[LEADER] = prefers(FOLLOWER)
    replicas.metadata_max_age_ms = 0
    async with polling_of(replicas, SMALL) as polling:
        assert await iterate(polling, 100) == list(range(100))
    assert replicas.asked[:6] == [LEADER, FOLLOWER] * 3


def lost(data: PartitionData) -> None:
    raise ConnectionFailed("the follower is gone")


@pytest.mark.parametrize(
    "fault", [lost, refuses(ErrorCode.OFFSET_OUT_OF_RANGE), refuses(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
async def test_a_replica_that_fails_sends_the_consumer_back_to_the_leader(
    fault: Callable[[PartitionData], None],
) -> None:
    replicas = FetchedFrom(10)
    replicas.scripts = {LEADER: prefers(FOLLOWER), FOLLOWER: fault}
    async with polling_of(replicas, SMALL) as polling:
        reading = asyncio.create_task(iterate(polling, 10))
        await until(lambda: replicas.asked[:4] == [LEADER, FOLLOWER] * 2)
        del replicas.scripts[LEADER]
        assert await reading == list(range(10))
    assert replicas.asked[-1] == LEADER
