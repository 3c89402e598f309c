"""Produce to new partitions: requests wait in order for files that are created off the event loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_kit import batch_of, stored_headers, until
from wire_in_memory import RecordedConnection, RecordedExchange, Wire, opened_wire

from penstock.api import produce_backlog
from penstock.log import creation
from penstock.replica.leader import Leader
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

Batches = dict[tuple[str, int], memoryview]


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened
        assert (opened.produce.backlog.queues, opened.produce.backlog.held_bytes) == ({}, 0), "nothing is kept"


def send(wire: Wire, batches: Batches | None = None, acks: int = -1) -> RecordedExchange:
    exchange = wire.send(wire.produce_request(9, batches, acks=acks), 9)
    assert exchange is not None
    return exchange


def answers(wire: Wire, exchange: RecordedExchange, correlation_id: int) -> list[PartitionProduceResponse]:
    now, wire.correlation_id = wire.correlation_id, correlation_id
    try:
        response = wire.decoded(exchange, ProduceResponse, 9)
    finally:
        wire.correlation_id = now
    return [partition for topic in response.responses for partition in topic.partition_responses]


def led(wire: Wire, name: str, index: int = 0) -> Leader:
    found = wire.path.replicas.find(name, index)
    assert found is not None
    return found


def counts(partition: Leader) -> list[int]:
    return [header.record_count for header in stored_headers(partition.log)]


async def test_the_first_batch_waits_for_its_file_and_then_is_written(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    exchange = send(wire, acks=1)
    await asyncio.sleep(0.01)
    assert not exchange.completed
    assert led(wire, "t").log.end_offset == 0
    wire.path.files.let_go()
    await until(lambda: exchange.completed)
    (answer,) = answers(wire, exchange, 1)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert counts(led(wire, "t")) == [3]


async def test_a_partition_that_has_its_file_is_written_to_at_once(wire: Wire) -> None:
    await wire.path.create()
    await wire.produced(9)
    wire.path.files.hold_making()
    assert send(wire, acks=1).completed
    assert led(wire, "t").log.end_offset == 6


async def test_requests_of_one_connection_are_written_in_their_order_whatever_waits(wire: Wire) -> None:
    for name in ("old", "new"):
        await wire.path.create(name)
    await wire.produced(9, {("old", 0): batch_of(1)})
    wire.path.files.hold_making()
    requests: list[Batches] = [
        {("old", 0): batch_of(2)},
        {("old", 0): batch_of(3, producer=(7, 0, 0)), ("new", 0): batch_of(1, producer=(7, 0, 0))},
        {("old", 0): batch_of(4, producer=(7, 0, 3))},
        {("new", 0): batch_of(2, producer=(7, 0, 1))},
        {("new", 0): batch_of(5, producer=(7, 0, 3)), ("old", 0): batch_of(6, producer=(7, 0, 7))},
    ]
    exchanges = [send(wire, batches, acks=1) for batches in requests]
    await asyncio.sleep(0.01)
    assert [exchange.completed for exchange in exchanges] == [True, False, False, False, False]
    wire.path.files.let_go()
    await until(lambda: all(exchange.completed for exchange in exchanges))
    told = [answers(wire, exchange, 2 + number) for number, exchange in enumerate(exchanges)]
    assert [[(a.error_code, a.base_offset) for a in partitions] for partitions in told] == [
        [(0, 1)],
        [(0, 3), (0, 0)],
        [(0, 6)],
        [(0, 1)],
        [(0, 3), (0, 10)],
    ]
    assert counts(led(wire, "old")) == [1, 2, 3, 4, 6]
    assert counts(led(wire, "new")) == [1, 2, 5]


async def test_a_request_whose_files_are_there_before_those_of_the_one_ahead_keeps_its_place(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "MAX_JOB_LOGS", 1)
    await wire.path.create("old")
    await wire.path.create("new", partitions=2)
    await wire.produced(9, {("old", 0): batch_of(1)})
    wire.path.files.hold_making(lambda path: path.endswith("-1"))
    first = send(wire, {("new", 0): batch_of(1)}, acks=1)
    wire.connection = RecordedConnection()
    exchanges = [send(wire, {("new", n): batch_of(1), ("old", 0): batch_of(2 + n)}, acks=1) for n in (1, 0)]
    await until(lambda: first.completed)
    await asyncio.sleep(0.01)
    assert not any(exchange.completed for exchange in exchanges)
    wire.path.files.let_go()
    await until(lambda: all(exchange.completed for exchange in exchanges))
    assert counts(led(wire, "old")) == [1, 3, 2]


async def test_what_waits_of_many_requests_is_made_together(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await wire.path.create(partitions=40)
    creations = wire.path.log_dir.creations
    jobs = []
    run_job = creations.run_job

    async def noted() -> None:
        jobs.append(len(creations.requests))
        await run_job()

    monkeypatch.setattr(creations, "run_job", noted)
    exchanges = [send(wire, {("t", n): batch_of(1)}, acks=1) for n in range(40)]
    await until(lambda: all(exchange.completed for exchange in exchanges))
    assert jobs == [40]


async def test_other_connections_do_not_wait(wire: Wire) -> None:
    for name in ("old", "new"):
        await wire.path.create(name)
    await wire.produced(9, {("old", 0): batch_of(1)})
    wire.path.files.hold_making()
    waiting = send(wire, {("new", 0): batch_of()}, acks=1)
    wire.connection = RecordedConnection()
    assert send(wire, {("old", 0): batch_of()}, acks=1).completed
    assert not waiting.completed
    wire.path.files.let_go()
    await until(lambda: waiting.completed)


async def test_two_connections_may_wait_for_one_partition(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    exchanges = [send(wire, {("t", 0): batch_of(1)}, acks=1)]
    wire.connection = RecordedConnection()
    exchanges.append(send(wire, {("t", 0): batch_of(2)}, acks=1))
    wire.path.files.let_go()
    await until(lambda: all(exchange.completed for exchange in exchanges))
    assert counts(led(wire, "t")) == [1, 2]


async def test_acks_0_waits_too_and_keeps_its_place(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    exchanges = [send(wire, {("t", 0): batch_of(n)}, acks=0) for n in (1, 2, 3)]
    assert not any(exchange.completed for exchange in exchanges)
    wire.path.files.let_go()
    await until(lambda: all(exchange.completed for exchange in exchanges))
    assert all(exchange.dropped for exchange in exchanges)
    assert counts(led(wire, "t")) == [1, 2, 3]


async def test_a_refused_batch_with_acks_0_ends_the_connection_and_nothing_behind_it_is_written(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    exchanges = [
        send(wire, {("t", 0): batch_of(1)}, acks=0),
        send(wire, {("t", 0): memoryview(bytearray(b"junk"))}, acks=0),
        send(wire, {("t", 0): batch_of(2)}, acks=0),
    ]
    wire.path.files.let_go()
    await until(lambda: all(exchange.completed for exchange in exchanges))
    assert "acks=0" in (exchanges[1].aborted or "")
    assert exchanges[2].dropped
    assert counts(led(wire, "t")) == [1]


async def test_a_request_refused_as_a_whole_does_not_wait_and_makes_nothing(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    exchange = send(wire, acks=7)
    (answer,) = answers(wire, exchange, 1)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert not Path(led(wire, "t").log.directory).exists()


async def test_a_request_without_partitions_here_keeps_its_place_behind_one_that_waits(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    first, second = send(wire, acks=1), send(wire, {("nowhere", 0): batch_of()}, acks=1)
    assert not second.completed
    wire.path.files.let_go()
    await until(lambda: first.completed and second.completed)
    assert answers(wire, second, 2)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_several_batches_for_a_new_partition_in_one_request_are_written_in_order(wire: Wire) -> None:
    await wire.path.create()
    data = [PartitionProduceData(index=0, records=batch_of(n)) for n in (1, 2, 3)]
    request = ProduceRequest(acks=1, timeout_ms=5000, topic_data=[TopicProduceData(name="t", partition_data=data)])
    response = await wire.ask(request, ProduceResponse, 9)
    assert [p.base_offset for p in response.responses[0].partition_responses] == [0, 1, 3]


# Events while requests wait


async def test_of_a_connection_that_is_lost_only_what_wants_no_answer_is_written(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    exchanges = [send(wire, {("t", 0): batch_of(n)}, acks=acks) for n, acks in ((1, -1), (2, 0), (3, 1), (4, 0))]
    for exchange in exchanges:
        exchange.lose()
    wire.path.files.let_go()
    await until(lambda: all(exchange.completed for exchange in exchanges))
    assert all(exchange.dropped for exchange in exchanges)
    assert counts(led(wire, "t")) == [2, 4]


async def test_a_topic_that_is_deleted_meanwhile_is_unknown_and_leaves_nothing(wire: Wire) -> None:
    await wire.path.create()
    await wire.path.create("other")
    wire.path.files.hold_making()
    exchange = send(wire, {("t", 0): batch_of(), ("other", 0): batch_of()}, acks=1)
    directory = led(wire, "t").log.directory
    deletion = asyncio.ensure_future(wire.path.delete("t"))
    await until(lambda: "t" not in wire.path.view.topics)
    wire.path.files.let_go()
    await deletion
    await until(lambda: exchange.completed)
    errors = [answer.error_code for answer in answers(wire, exchange, 1)]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    await until(lambda: not Path(directory).exists())


async def test_a_leader_that_is_replaced_meanwhile_takes_nothing_in(wire: Wire) -> None:
    topic_id = await wire.path.create()
    wire.path.files.hold_making()
    exchange = send(wire, acks=1)
    log = led(wire, "t").log
    record = PartitionRecord(replicas=[5, 0], leader=5, leader_epoch=8, isr=[5])
    result = await wire.path.watcher.store.txn([], [PutOp(keys.partition(topic_id, 0), encode(record))])
    await wire.path.watcher.applied(result.revision)
    wire.path.files.let_go()
    await until(lambda: exchange.completed)
    assert answers(wire, exchange, 1)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.end_offset == 0


async def test_a_broker_that_loses_its_lease_meanwhile_takes_nothing_in_with_acks_1(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.path.create()
    wire.path.files.hold_making()
    one, every = send(wire, acks=1), send(wire, acks=-1)
    monkeypatch.setattr(wire.path.replicas, "may_serve", lambda: False)
    wire.path.files.let_go()
    await until(lambda: one.completed and every.completed)
    assert answers(wire, one, 1)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answers(wire, every, 2)[0].error_code, led(wire, "t").log.end_offset) == (0, 3)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
async def test_without_space_or_descriptors_the_batch_is_refused_and_the_next_is_taken(wire: Wire, number: int) -> None:
    await wire.path.create(partitions=2)
    full = led(wire, "t", 0).log
    wire.path.files.fail("create", number, lambda path: full.directory in path)
    exchange = send(wire, {("t", 0): batch_of(), ("t", 1): batch_of()})
    await until(lambda: exchange.completed)
    assert [a.error_code for a in answers(wire, exchange, 1)] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert full.end_offset == 0
    wire.path.files.heal()
    response = await wire.produced(9, {("t", 0): batch_of()})
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def test_a_broken_disk_fails_all_who_wait(wire: Wire) -> None:
    await wire.path.create(partitions=2)
    wire.path.files.fail("make_dir", errno.EIO)
    exchanges = [send(wire, {("t", n): batch_of()}) for n in (0, 1)]
    await until(lambda: all(exchange.completed for exchange in exchanges))
    for number, exchange in enumerate(exchanges):
        assert answers(wire, exchange, 1 + number)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    wire.path.files.heal()


async def test_a_broker_that_stops_answers_who_waits_and_writes_nothing_of_lost_connections(wire: Wire) -> None:
    await wire.path.create(partitions=2)
    wire.path.files.hold_making()
    begun = send(wire, {("t", 0): batch_of()}, acks=0)
    await asyncio.sleep(0.01)
    begun.lose()
    wire.connection = RecordedConnection()
    late = send(wire, {("t", 1): batch_of()}, acks=1)
    closing = asyncio.ensure_future(wire.path.log_dir.close())
    await until(lambda: late.completed)
    assert answers(wire, late, 2)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    wire.path.files.let_go()
    await closing
    await until(lambda: begun.completed)
    assert [led(wire, "t", n).log.end_offset for n in (0, 1)] == [0, 0]


async def test_beyond_the_bound_of_copies_requests_do_not_wait_and_keep_their_order(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_backlog, "MAX_HELD_BYTES", 700)
    await wire.path.create()
    exchanges = [send(wire, {("t", 0): batch_of(n)}, acks=1) for n in range(1, 9)]
    assert wire.produce.backlog.held_bytes <= 700
    assert exchanges[0].completed, "the bound was passed"
    await until(lambda: all(exchange.completed for exchange in exchanges))
    assert counts(led(wire, "t")) == list(range(1, 9))


async def test_a_fault_in_one_request_ends_its_connection_alone(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await wire.path.create(partitions=2)
    wire.path.files.hold_making()
    bad, behind = (send(wire, {("t", 0): batch_of()}, acks=1) for _ in range(2))
    wire.connection = RecordedConnection()
    good = send(wire, {("t", 1): batch_of()}, acks=1)
    partition = led(wire, "t", 0)
    monkeypatch.setattr(type(partition), "append", failing(type(partition).append, partition))
    wire.path.files.let_go()
    await until(lambda: bad.completed and behind.completed and good.completed)
    assert "failed" in (bad.aborted or "")
    assert behind.dropped
    assert answers(wire, good, 3)[0].error_code == ErrorCode.NONE


def failing(append: object, of: Leader) -> object:
    def fail(self: Leader, *arguments: object, **named: object) -> object:
        if self is of:
            raise RuntimeError("planted")
        return append(self, *arguments, **named)  # type: ignore[operator]

    return fail
