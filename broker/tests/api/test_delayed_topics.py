"""Consumers of a topic with `delivery.delay.ms`: the visible offset is their end of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fetch_kit import answered, fetch, only, read, request, waiting
from log_kit import HandClock
from replica_kit import accepted, batch_of, opened_data_path, until
from wire_in_memory import Wire, opened_transactions, opened_wire

from penstock.replica.delayed_delivery import MAX_READS
from penstock.replica.leader import Leader
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.control_batch import Marker
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
    ListOffsetsTopic,
)
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
DELAY_MS = 60_000
READ_COMMITTED = 1


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


def pass_time(wire: Wire, by_ms: int) -> None:
    """Move the clock, and let the timer fire."""
    wire.path.clock.advance(by_ms)
    wire.path.replicas.delayed.on_timer()


async def delayed(wire: Wire, *counts: int, name: str = "t") -> Leader:
    """Create a delayed topic with a batch per count, ten seconds apart; then as much time has passed again."""
    leader = await wire.path.partition(name, delivery_delay_ms=str(DELAY_MS))
    for count in counts:
        accepted(leader, batch_of(count))
        await wire.path.flushed()
        pass_time(wire, 10_000)
    return leader


async def listed(wire: Wire, timestamp: int, version: int = 11, **more: object) -> ListOffsetsPartitionResponse:
    fields = {"isolation_level": 0, **{k: v for k, v in more.items() if k == "isolation_level"}}
    own = {k: v for k, v in more.items() if k != "isolation_level"}
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **own)
    sent = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])], **fields)
    return (await wire.listed(sent, version)).topics[0].partitions[0]


async def deleted_before(wire: Wire, offset: int) -> DeleteRecordsPartitionResult:
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    answer = await wire.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=60_000), DeleteRecordsResponse, 2)
    return answer.topics[0].partitions[0]


# Fetch


@pytest.mark.parametrize("version", [4, 11, 12, 18])
async def test_a_consumer_gets_what_is_due_and_the_visible_offset_as_high_watermark(wire: Wire, version: int) -> None:
    await delayed(wire, 3, 2)
    data = only(await fetch(wire, version))
    assert (data.high_watermark, data.last_stable_offset, read(data)) == (0, 0, [])
    pass_time(wire, DELAY_MS - 20_000)
    data = only(await fetch(wire, version))
    assert (data.high_watermark, data.last_stable_offset, read(data)) == (3, 3, [(0, 2)])
    pass_time(wire, 10_000)
    data = only(await fetch(wire, version))
    assert (data.high_watermark, data.last_stable_offset, read(data)) == (5, 5, [(0, 2), (3, 4)])


async def test_a_waiting_fetch_is_answered_when_records_become_due_and_not_when_they_are_committed(wire: Wire) -> None:
    leader = await delayed(wire)
    exchange = waiting(wire)
    accepted(leader, batch_of(3))
    await wire.path.flushed()
    pass_time(wire, DELAY_MS - 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert leader.high_watermark == 3
    assert not exchange.completed
    pass_time(wire, 1)
    assert read(only(await answered(wire, exchange))) == [(0, 2)]


async def test_a_waiting_fetch_gets_its_minimum_of_bytes(wire: Wire) -> None:
    await delayed(wire, 3, 3)
    size = len(batch_of(3))
    exchange = waiting(wire, min_bytes=2 * size)
    pass_time(wire, DELAY_MS - 20_000)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not exchange.completed
    pass_time(wire, 10_000)
    assert read(only(await answered(wire, exchange))) == [(0, 2), (3, 5)]


async def test_an_idle_partition_of_a_session_is_read_again_when_records_become_due(wire: Wire) -> None:
    await delayed(wire, 3)
    first = await fetch(wire, 11, session_epoch=0)
    assert read(only(first)) == []
    session = {"session_id": first.session_id, "session_epoch": 1}
    exchange = wire.send(request(wire, 11, {}, max_wait_ms=60_000, **session), 11)
    assert exchange is not None
    assert not exchange.completed
    pass_time(wire, DELAY_MS)
    data = only(await answered(wire, exchange))
    assert (data.high_watermark, read(data)) == (3, [(0, 2)])


async def test_a_reader_past_the_visible_offset_waits_without_an_error(wire: Wire) -> None:
    await delayed(wire, 3)
    data = only(await fetch(wire, 11, {("t", 0): 3}))
    assert (data.error_code, data.high_watermark, read(data)) == (ErrorCode.NONE, 0, [])
    data = only(await fetch(wire, 11, {("t", 0): 4}))
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_new_leader_reports_no_end_until_it_has_read_what_is_due(tmp_path: Path) -> None:
    clock = HandClock()
    async with opened_data_path(tmp_path, clock=clock) as path, opened_transactions(path) as transactions:
        wire = Wire(path, transactions)
        await delayed(wire, 3, 2)
        await wire.dispatcher.close()
    async with opened_data_path(tmp_path, clock=clock) as path, opened_transactions(path) as transactions:
        wire = Wire(path, transactions)
        clock.advance(DELAY_MS - 20_000)
        exchange = wire.send(request(wire, 11, max_wait_ms=0), 11)
        assert exchange is not None
        assert exchange.completed, "the log has not been read yet"
        data = only(await answered(wire, exchange))
        assert (data.high_watermark, data.last_stable_offset, read(data)) == (-1, -1, [])
        assert not wire.path.replicas.find("t", 0).is_end_known
        exchange = wire.send(request(wire, 11, max_wait_ms=60_000), 11)
        assert exchange is not None
        data = only(await answered(wire, exchange))
        assert (data.high_watermark, read(data)) == (3, [(0, 2)])
        await wire.dispatcher.close()


async def test_offsets_are_not_available_until_a_new_leader_has_read_what_is_due(tmp_path: Path) -> None:
    clock = HandClock()
    async with opened_data_path(tmp_path, clock=clock) as path, opened_transactions(path) as transactions:
        wire = Wire(path, transactions)
        await delayed(wire, 3)
        await wire.dispatcher.close()
    async with opened_data_path(tmp_path, clock=clock) as path, opened_transactions(path) as transactions:
        wire = Wire(path, transactions)
        assert (await listed(wire, LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        leader = path.replicas.find("t", 0)
        assert leader is not None
        await until(lambda: leader.is_end_known)
        assert (await listed(wire, LATEST)).offset == 0
        await wire.dispatcher.close()


# Transactions


async def test_a_read_committed_consumer_gets_records_that_are_decided_and_due(wire: Wire) -> None:
    leader = await delayed(wire)
    for producer in (7, 8):
        assert not leader.append(
            batch_of(2, producer=(producer, 0, 0), attributes=TRANSACTIONAL), True, verified=True
        ).error
    await wire.path.flushed()
    pass_time(wire, DELAY_MS)
    assert leader.visible_offset == 4
    committed = only(await fetch(wire, 11, isolation_level=READ_COMMITTED))
    assert (committed.high_watermark, committed.last_stable_offset, read(committed)) == (4, 0, [])
    assert read(only(await fetch(wire, 11))) == [(0, 1), (2, 3)]
    assert (await listed(wire, LATEST, isolation_level=READ_COMMITTED)).offset == 0
    exchange = waiting(wire, isolation_level=READ_COMMITTED)
    assert not leader.write_marker(Marker(7, 0, True, 0)).error
    assert not leader.write_marker(Marker(8, 0, False, 0)).error
    await wire.path.flushed()
    committed = only(await answered(wire, exchange))
    assert (committed.last_stable_offset, read(committed)) == (4, [(0, 1), (2, 3)])
    assert [(a.producer_id, a.first_offset) for a in committed.aborted_transactions] == [(8, 2)]
    pass_time(wire, DELAY_MS)
    assert (await listed(wire, LATEST, isolation_level=READ_COMMITTED)).offset == 6


# Queries


async def test_the_latest_offset_is_the_visible_one(wire: Wire) -> None:
    leader = await delayed(wire, 3, 2)
    assert (await listed(wire, LATEST)).offset == 0
    pass_time(wire, DELAY_MS - 20_000)
    assert (await listed(wire, LATEST)).offset == 3
    assert (await listed(wire, LATEST, isolation_level=READ_COMMITTED)).offset == 3
    assert (await listed(wire, MAX_TIMESTAMP)).offset == 0
    assert leader.high_watermark == 5


async def test_a_search_by_time_finds_no_record_that_waits(wire: Wire) -> None:
    await delayed(wire, 3, 2)
    second_ms = wire.path.clock.now_ms - 10_000
    assert (await listed(wire, second_ms)).offset == -1
    pass_time(wire, DELAY_MS)
    found = await listed(wire, second_ms)
    assert (found.offset, found.timestamp) == (3, second_ms)


async def test_what_waits_is_told_to_who_requests_it(wire: Wire) -> None:
    await delayed(wire, 3, 2)
    answer = await listed(wire, LATEST, include_undelivered=True)
    assert (answer.offset, answer.undelivered) == (0, 5)
    assert answer.next_due_ms == wire.path.clock.now_ms - 20_000 + DELAY_MS
    pass_time(wire, DELAY_MS)
    answer = await listed(wire, LATEST, include_undelivered=True)
    assert (answer.offset, answer.undelivered, answer.next_due_ms) == (5, 0, -1)
    answer = await listed(wire, LATEST)
    assert answer.undelivered == -1


async def test_what_waits_is_not_told_before_the_scheduled_records_are_read(wire: Wire) -> None:
    loads = wire.path.replicas.delayed.loads
    for _ in range(MAX_READS):
        await loads.acquire()
    leader = await wire.path.partition(delivery_schedule_enable="true")
    assert (await listed(wire, LATEST, include_undelivered=True)).undelivered == -1
    for _ in range(MAX_READS):
        loads.release()
    assert leader.schedule is not None
    schedule = leader.schedule
    await until(lambda: schedule.is_loaded)
    assert (await listed(wire, LATEST, include_undelivered=True)).undelivered == 0


async def test_lag_counts_from_the_time_at_which_records_became_visible(wire: Wire) -> None:
    await delayed(wire, 3)
    assert (await listed(wire, LATEST, committed_offsets=[0])).unread_ages_ms == [0]
    pass_time(wire, DELAY_MS)
    assert (await listed(wire, LATEST, committed_offsets=[0])).unread_ages_ms == [10_000]


async def test_the_end_of_an_epoch_is_that_of_the_log(wire: Wire) -> None:
    """A consumer that is past the visible offset must not take it for a truncation (KIP-320)."""
    leader = await delayed(wire, 3)
    asked = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=leader.leader_epoch, leader_epoch=leader.leader_epoch
    )
    topic = OffsetForLeaderTopic(topic="t", partitions=[asked])
    answer = await wire.ask(OffsetForLeaderEpochRequest(topics=[topic]), OffsetForLeaderEpochResponse, 4)
    assert answer.topics[0].partitions[0].end_offset == 3


# Deletion


async def test_records_up_to_the_latest_are_deleted_without_those_that_wait(wire: Wire) -> None:
    leader = await delayed(wire, 3, 2)
    pass_time(wire, DELAY_MS - 20_000)
    result = await deleted_before(wire, -1)
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 3)
    pass_time(wire, 10_000)
    assert read(only(await fetch(wire, 11, {("t", 0): 3}))) == [(3, 4)]
    assert leader.visible_offset == 5


async def test_records_that_wait_are_deleted_by_their_offsets(wire: Wire) -> None:
    leader = await delayed(wire, 3, 2)
    result = await deleted_before(wire, 3)
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 3)
    assert leader.visible_offset == 3
    assert only(await fetch(wire, 11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    pass_time(wire, DELAY_MS)
    assert read(only(await fetch(wire, 11, {("t", 0): 3}))) == [(3, 4)]
    assert (await deleted_before(wire, 6)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_the_producer_gets_the_time_of_the_append(wire: Wire) -> None:
    await delayed(wire)
    answer = await wire.produced()
    assert answer.responses[0].partition_responses[0].log_append_time_ms == wire.path.clock.now_ms
