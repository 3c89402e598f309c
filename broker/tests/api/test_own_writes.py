"""A client finds a record once it is acknowledged, although acks=0 and acks=1 do not wait for the flush."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fetch_kit import answered, fetch, filled, only, read, request, waiting
from log_kit import START_MS
from replica_kit import accepted, batch_of
from wire_in_memory import RecordedExchange, Wire, opened_wire

from penstock.api import acknowledged_reads
from penstock.http.lag import local_lag
from penstock.replica.leader import Leader
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
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

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


async def acknowledged(wire: Wire, count: int = 2, acks: int = 1, name: str = "t") -> Leader:
    """Write three flushed records, then `count` acknowledged ones while no flush can complete."""
    leader = await filled(wire, 3, name=name)
    wire.path.files.hold()
    frame = wire.produce_request(9, {(name, 0): batch_of(count, timestamp_ms=START_MS + 1000)}, acks=acks)
    exchange = wire.send(frame, 9)
    assert acks == 0 or (exchange is not None and exchange.completed), "acks=1 does not wait for the flush"
    assert leader.high_watermark == 3
    return leader


def asked_for(timestamp: int, isolation_level: int = 0, name: str = "t") -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    topic = ListOffsetsTopic(name=name, partitions=[partition])
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[topic])


def sent(wire: Wire, message: Any, version: int) -> RecordedExchange:
    exchange = wire.send(message, version)
    assert exchange is not None
    return exchange


async def turns(count: int = 20) -> None:
    """Run `count` iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def after_flush(wire: Wire, message: Any, response: Any, version: int) -> Any:
    """Return the response to a request that must wait for the flush."""
    exchange = sent(wire, message, version)
    await turns()
    assert not exchange.completed, "the answer does not wait for the flush under way"
    wire.path.files.let_go()
    return await decoded(wire, exchange, response, version)


async def decoded(wire: Wire, exchange: RecordedExchange, response: Any, version: int) -> Any:
    async with asyncio.timeout(60):
        while not exchange.completed:
            await asyncio.sleep(0.001)
    return wire.decoded(exchange, response, version)


def listed(response: ListOffsetsResponse) -> ListOffsetsPartitionResponse:
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("acks", [1, 0])
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", [1, 5, 11])
async def test_the_latest_offset_is_behind_what_was_acknowledged(
    wire: Wire, version: int, isolation_level: int, acks: int
) -> None:
    await acknowledged(wire, acks=acks)
    found = listed(await after_flush(wire, asked_for(LATEST, isolation_level), ListOffsetsResponse, version))
    assert (found.error_code, found.offset) == (0, 5)


@pytest.mark.parametrize(("timestamp", "offset"), [(MAX_TIMESTAMP, 4), (START_MS + 1000, 3)])
async def test_searches_by_time_find_what_was_acknowledged(wire: Wire, timestamp: int, offset: int) -> None:
    await acknowledged(wire)
    found = listed(await after_flush(wire, asked_for(timestamp), ListOffsetsResponse, 11))
    assert (found.error_code, found.offset) == (0, offset)


async def test_a_repeated_batch_is_acknowledged_too(wire: Wire) -> None:
    leader = await filled(wire, 3)
    wire.path.files.hold()
    accepted(leader, batch_of(2, producer=(7, 0, 0)))
    again = accepted(leader, batch_of(2, producer=(7, 0, 0)), all_in_sync=False)
    assert again.base_offset == 3
    found = listed(await after_flush(wire, asked_for(LATEST), ListOffsetsResponse, 11))
    assert found.offset == 5


async def test_only_a_question_about_the_end_waits(wire: Wire) -> None:
    await acknowledged(wire)
    found = listed(wire.decoded(await completed(sent(wire, asked_for(EARLIEST), 11)), ListOffsetsResponse, 11))
    assert found.offset == 0
    assert wire.path.replicas.unflushed


async def completed(exchange: RecordedExchange) -> RecordedExchange:
    await turns()
    assert exchange.completed
    return exchange


async def test_nothing_waits_for_what_acks_all_has_not_acknowledged(wire: Wire) -> None:
    leader = await filled(wire, 3)
    wire.path.files.hold()
    accepted(leader, batch_of(2))
    found = listed(wire.decoded(await completed(sent(wire, asked_for(LATEST), 11)), ListOffsetsResponse, 11))
    assert found.offset == 3
    assert not wire.path.replicas.unflushed


async def test_a_topic_that_relaxes_the_flush_shows_what_is_written(wire: Wire) -> None:
    leader = await filled(wire, 3, **{"flush.messages": "1000"})
    wire.path.files.hold()
    accepted(leader, batch_of(2), all_in_sync=False)
    found = listed(wire.decoded(await completed(sent(wire, asked_for(LATEST), 11)), ListOffsetsResponse, 11))
    assert found.offset == 5
    assert not wire.path.replicas.unflushed


async def test_a_disk_that_does_not_flush_is_a_retriable_error(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledged_reads.FlushWait.wait, "__defaults__", (0.01,))
    await acknowledged(wire)
    for version, error in [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]:
        answer = await decoded(wire, sent(wire, asked_for(LATEST), version), ListOffsetsResponse, version)
        assert listed(answer).error_code == error


def deletion_to(offset: int, timeout_ms: int = 30_000) -> DeleteRecordsRequest:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[partition])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)


def deleted(response: DeleteRecordsResponse) -> DeleteRecordsPartitionResult:
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("offset", [5, -1])
async def test_what_was_acknowledged_can_be_deleted(wire: Wire, offset: int) -> None:
    await acknowledged(wire)
    result = deleted(await after_flush(wire, deletion_to(offset), DeleteRecordsResponse, 2))
    assert (result.error_code, result.low_watermark) == (0, 5)


async def test_a_deletion_that_cannot_wait_for_the_flush_times_out(wire: Wire) -> None:
    await acknowledged(wire)
    result = deleted(await decoded(wire, sent(wire, deletion_to(5, 10), 2), DeleteRecordsResponse, 2))
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_the_end_of_the_epoch_is_behind_what_was_acknowledged(wire: Wire) -> None:
    leader = await acknowledged(wire)
    partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=leader.leader_epoch)
    message = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[partition])])
    answer = wire.decoded(await completed(sent(wire, message, 4)), OffsetForLeaderEpochResponse, 4)
    assert answer.topics[0].partitions[0].end_offset == 5


# Fetch


async def test_a_fetch_at_the_end_that_may_not_wait_has_what_was_acknowledged(wire: Wire) -> None:
    await acknowledged(wire)
    exchange = sent(wire, request(wire, 11, {("t", 0): 3}, max_wait_ms=0), 11)
    await turns()
    assert not exchange.completed
    wire.path.files.let_go()
    found = only(await answered(wire, exchange))
    assert (read(found), found.high_watermark) == ([(3, 4)], 5)


async def test_a_fetch_that_reads_to_the_end_tells_the_end_of_what_was_acknowledged(wire: Wire) -> None:
    await acknowledged(wire)
    exchange = sent(wire, request(wire, 11, {("t", 0): 0}, max_wait_ms=0), 11)
    await turns()
    assert not exchange.completed
    wire.path.files.let_go()
    found = only(await answered(wire, exchange))
    assert (read(found), found.high_watermark) == ([(0, 2), (3, 4)], 5)


async def test_a_fetch_that_does_not_reach_the_end_does_not_wait_for_it(wire: Wire) -> None:
    leader = await filled(wire, 3, 3)
    wire.path.files.hold()
    accepted(leader, batch_of(2), all_in_sync=False)
    size = len(batch_of(3))
    exchange = await completed(sent(wire, request(wire, 11, {("t", 0): 0}, each={"partition_max_bytes": size}), 11))
    assert read(only(await answered(wire, exchange))) == [(0, 2)]


async def test_a_partition_that_rests_in_its_session_is_waited_for(wire: Wire) -> None:
    leader = await filled(wire, 3)
    session = await fetch(wire, 11, {("t", 0): 3}, session_epoch=0)
    wire.path.files.hold()
    again = {"session_id": session.session_id, "max_wait_ms": 0}
    first = await completed(sent(wire, request(wire, 11, {}, session_epoch=1, **again), 11))
    assert (await answered(wire, first)).responses == []
    accepted(leader, batch_of(2), all_in_sync=False)
    exchange = sent(wire, request(wire, 11, {}, session_epoch=2, **again), 11)
    await turns()
    assert not exchange.completed
    wire.path.files.let_go()
    found = only(await answered(wire, exchange))
    assert (read(found), found.high_watermark) == ([(3, 4)], 5)


async def test_a_waiting_fetch_is_answered_with_the_flush_and_waits_for_no_later_one(wire: Wire) -> None:
    leader = await acknowledged(wire)
    exchange = waiting(wire, 11, {("t", 0): 3})
    accepted(leader, batch_of(1), all_in_sync=False)
    wire.path.files.let_go()
    assert read(only(await answered(wire, exchange)))[0] == (3, 4)


async def test_a_reader_that_waits_is_told_when_the_topic_is_deleted(wire: Wire) -> None:
    await acknowledged(wire)
    exchange = sent(wire, request(wire, 11, {("t", 0): 3}, max_wait_ms=0), 11)
    await turns()
    assert not exchange.completed
    await wire.path.delete("t")
    found = only(await answered(wire, exchange))
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not wire.path.replicas.unflushed


async def test_the_lag_counts_what_was_acknowledged(wire: Wire) -> None:
    class Committed:
        group_id, topic, partition, offset = "g", "t", 0, 3

    leader = await acknowledged(wire)
    assert local_lag(Committed(), leader).records == 2
