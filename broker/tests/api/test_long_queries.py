"""Requests for many partitions and searches by timestamp do not block the event loop for other clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from log_kit import START_MS
from replica_kit import accepted, batch_of, until
from wire_in_memory import Wire, opened_wire

from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogTimestamp
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.schema import Payload

LATEST = -1
MANY = 2_000


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


def many_of(api: str, count: int = MANY) -> tuple[Payload, type[Payload], int]:
    """Return a request for `count` partitions of topic t, the response type and the version."""
    numbers = range(count)
    if api == "ListOffsets":
        listed = [ListOffsetsPartition(partition_index=i, timestamp=LATEST) for i in numbers]
        offsets = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=listed)])
        return offsets, ListOffsetsResponse, 11
    if api == "OffsetForLeaderEpoch":
        ends = [OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in numbers]
        epochs = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=ends)])
        return epochs, OffsetForLeaderEpochResponse, 4
    if api == "DeleteRecords":
        deleted = [DeleteRecordsPartition(partition_index=i, offset=0) for i in numbers]
        deletion = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=deleted)], timeout_ms=1000)
        return deletion, DeleteRecordsResponse, 2
    described = [TopicRequest(name="t", partition_indexes=list(numbers))]
    return DescribeProducersRequest(topics=described), DescribeProducersResponse, 0


@pytest.mark.slow
@pytest.mark.parametrize("api", ["ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords", "DescribeProducers"])
async def test_a_request_about_many_partitions_lets_others_have_their_turn(wire: Wire, api: str) -> None:
    await wire.path.create(partitions=MANY)
    request, response, version = many_of(api)
    exchange = wire.send(request, version)
    assert exchange is not None
    turns = 0
    while not exchange.completed:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= MANY // 100
    (topic,) = wire.decoded(exchange, response, version).topics  # type: ignore[attr-defined]
    assert [p.error_code for p in topic.partitions] == [0] * MANY


@pytest.mark.slow
@pytest.mark.parametrize("api", ["ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords", "DescribeProducers"])
async def test_a_long_request_is_given_up_when_its_client_has_gone(wire: Wire, api: str) -> None:
    await wire.path.create(partitions=MANY)
    request, _, version = many_of(api)
    exchange = wire.send(request, version)
    assert exchange is not None
    exchange.lose()
    await until(lambda: not wire.dispatcher.tasks)
    assert len(list(wire.path.replicas)) < MANY // 10
    assert not exchange.completed


async def test_producers_are_described_up_to_a_bound_and_the_rest_is_to_be_asked_for_again(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.api.log_queries.MAX_DESCRIBED_PRODUCERS", 2)
    partition = await wire.path.partition()
    for producer_id in (1, 2):
        accepted(partition, batch_of(producer=(producer_id, 0, 0)))
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 0, 0])])
    response = await wire.ask(request, DescribeProducersResponse, 0)
    first, *others = response.topics[0].partitions
    assert (first.error_code, len(first.active_producers)) == (0, 2)
    for other in others:
        assert (other.error_code, other.active_producers) == (ErrorCode.INVALID_REQUEST, [])
        assert "in another request" in (other.error_message or "")


class HeldSearches:
    """Blocks searches by timestamp until `gate` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.begun = 0
        search = PartitionLog.offset_for_timestamp

        def held(log: PartitionLog, timestamp_ms: int, limit_offset: int) -> LogTimestamp | None:
            self.begun += 1
            assert self.gate.wait(30)
            return search(log, timestamp_ms, limit_offset)

        monkeypatch.setattr(PartitionLog, "offset_for_timestamp", held)


def search_request() -> ListOffsetsRequest:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=START_MS)]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)])


async def test_however_many_search_by_time_threads_are_left_for_other_work(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(4))
    accepted(await wire.path.partition())
    await wire.path.flushed()
    searches = HeldSearches(monkeypatch)
    exchanges = [wire.send(search_request(), 11) for _ in range(20)]
    try:
        await until(lambda: searches.begun == 2)
        async with asyncio.timeout(60):
            await loop.run_in_executor(None, lambda: None)
        assert searches.begun == 2
    finally:
        searches.gate.set()
    await until(lambda: all(exchange is not None and exchange.completed for exchange in exchanges))
    assert searches.begun == 20


async def test_nothing_is_searched_for_a_client_that_has_gone(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(await wire.path.partition())
    await wire.path.flushed()
    searches = HeldSearches(monkeypatch)
    exchanges = [wire.send(search_request(), 11) for _ in range(10)]
    await until(lambda: searches.begun == 2)
    for exchange in exchanges:
        assert exchange is not None
        exchange.lose()
    searches.gate.set()
    await until(lambda: not wire.dispatcher.tasks)
    assert searches.begun == 2
