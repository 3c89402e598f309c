"""Produce at every version: responses, and when they are sent for each `acks`."""

from __future__ import annotations

import asyncio
import errno
import gc
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID
from weakref import finalize

import pytest
from replica_kit import batch_of, patched, stored_headers, until
from wire_in_memory import RecordedExchange, Wire, opened_wire

from penstock.api import produce_wait
from penstock.api.exchange import ProtocolViolation
from penstock.api.leaderships import Leaderships
from penstock.log.types import CorruptLog
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import PutOp
from penstock.wire.apis import ApiKey
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import request_head
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

VERSIONS = range(3, 14)
FLEXIBLE = range(9, 14)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


def only(response: ProduceResponse) -> PartitionProduceResponse:
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    return partition


async def held(wire: Wire, version: int = 9, **more: object) -> RecordedExchange:
    """Send a batch while no flush can complete; return once it is written."""
    wire.path.files.hold()
    exchange = wire.send(wire.produce_request(version, **more), version)  # type: ignore[arg-type]
    assert exchange is not None
    await until(lambda: not wire.produce.backlog.queues)
    return exchange


# All versions


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_batch_is_written_and_answered_with_its_offset(wire: Wire, version: int) -> None:
    topic_id = await wire.path.create()
    await wire.produced(version, {("t", 0): batch_of(4)})
    response = await wire.produced(version, {("t", 0): batch_of(2)})
    assert (response.responses[0].name, response.responses[0].topic_id) == (
        ("", topic_id) if version >= 13 else ("t", UUID(int=0))
    )
    answer = only(response)
    assert (answer.index, answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 0, 4, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    partition = wire.path.replicas.find("t", 0)
    assert partition is not None
    assert [h.record_count for h in stored_headers(partition.log)] == [4, 2]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_refused_batch_is_answered_with_the_error_and_why(wire: Wire, version: int) -> None:
    await wire.path.create()
    response = await wire.produced(version, {("t", 0): patched(batch_of(), ">B", 70, 255, sealed=False)})
    answer = only(response)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    if version >= 8:
        assert "CRC" in (answer.error_message or "")


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_unknown_topic_is_answered_as_such(wire: Wire, version: int) -> None:
    answer = only(await wire.produced(version, {("nowhere", 0): batch_of()}))
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.error_code == unknown


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_leader_elsewhere_is_named_where_the_version_can(wire: Wire, version: int) -> None:
    topic_id = await wire.path.create()
    record = PartitionRecord(replicas=[5, 0], leader=5, leader_epoch=8, isr=[5])
    result = await wire.path.watcher.store.txn([], [PutOp(keys.partition(topic_id, 0), encode(record))])
    await wire.path.watcher.applied(result.revision)
    answer = only(await wire.produced(version))
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    named = answer.current_leader.leader_id, answer.current_leader.leader_epoch
    assert named == ((5, 8) if version >= 10 else (-1, -1))


@pytest.mark.parametrize("version", [9, 13])
async def test_what_was_sent_behind_a_batch_for_a_topic_not_known_yet_waits_for_it(wire: Wire, version: int) -> None:
    """The leader may apply a topic's creation after the producer has sent several batches."""
    topic_id = await wire.path.create()
    view = wire.path.replicas.view
    by_id = version >= 13
    topic = view.topics_by_id.pop(topic_id) if by_id else view.topics.pop("t")
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def answered(sequence: int) -> tuple[int, int]:
        answer = only(await wire.produced(version, {("t", 0): batch_of(3, producer=(1, 0, sequence))}))
        return answer.error_code, answer.base_offset

    assert await answered(0) == (unknown, -1)
    view.topics["t"] = view.topics_by_id[topic_id] = topic
    assert await answered(3) == (unknown, -1)
    assert [await answered(n) for n in (0, 3, 6)] == [(0, 0), (0, 3), (0, 6)]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("acks", [1, -1])
async def test_versions_before_3_are_refused_in_their_own_format(wire: Wire, version: int, acks: int) -> None:
    await wire.path.create()
    body = struct.pack(">hiihciii", acks, 1000, 1, 1, b"t", 1, 0, 30) + bytes(30)
    frame = memoryview(bytearray(request_head(ApiKey.PRODUCE, version, 77, None)[4:] + body))
    wire.dispatcher(wire.connection, frame)
    error = ErrorCode.UNSUPPORTED_VERSION
    answer = struct.pack(">iihciihq", 77, 1, 1, b"t", 1, 0, error, -1)
    answer += struct.pack(">q", -1) if version >= 2 else b""
    answer += struct.pack(">i", 0) if version >= 1 else b""
    assert wire.connection.exchanges[-1].frame == struct.pack(">i", len(answer)) + answer
    partition = wire.path.replicas.find("t", 0)
    assert partition is not None
    assert partition.log.end_offset == 0


@pytest.mark.parametrize("version", [-1, 14, 32767])
async def test_versions_that_nobody_knows_break_the_protocol(wire: Wire, version: int) -> None:
    await wire.path.create()
    frame = wire.frame_of(wire.produce_request(13), 13)
    struct.pack_into(">h", frame, 2, version)
    with pytest.raises(ProtocolViolation, match="not supported; use 0 to 13"):
        wire.dispatcher(wire.connection, memoryview(frame))
    assert wire.connection.exchanges == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_request_cut_short_anywhere_breaks_the_protocol_and_writes_nothing(wire: Wire, version: int) -> None:
    await wire.path.create()
    frame = wire.frame_of(wire.produce_request(version), version)
    for size in range(20, len(frame), 7):
        with pytest.raises(ProtocolViolation):
            wire.dispatcher(wire.connection, memoryview(frame)[:size])
    assert list(wire.path.replicas) == []


# Acks


async def test_acks_all_is_answered_when_the_batch_is_on_disk(wire: Wire) -> None:
    await wire.path.create()
    exchange = await held(wire, acks=-1)
    await until(lambda: wire.path.log_dir.flusher.running)
    assert not exchange.completed
    wire.path.files.let_go()
    await wire.path.flushed()
    assert only(wire.decoded(exchange, ProduceResponse, 9)).base_offset == 0
    assert not wire.produce.waits.waiting
    assert any(name.endswith(".log") for name in wire.path.files.synced)


async def test_acks_1_is_answered_when_the_batch_is_written(wire: Wire) -> None:
    await wire.path.create()
    exchange = await held(wire, acks=1)
    assert only(wire.decoded(exchange, ProduceResponse, 9)).base_offset == 0


async def test_acks_0_gets_no_answer_at_all_and_the_batch_is_written(wire: Wire) -> None:
    partition = await wire.path.partition()
    exchange = wire.send(wire.produce_request(9, acks=0), 9)
    assert exchange is not None
    await until(lambda: exchange.completed)
    assert exchange.dropped
    assert partition.log.end_offset == 3


@pytest.mark.parametrize("batches", [{("nowhere", 0): batch_of()}, {("t", 9): batch_of()}, {("t", 0): b"junk"}])
async def test_acks_0_that_fails_ends_the_connection(wire: Wire, batches: dict[tuple[str, int], bytes]) -> None:
    await wire.path.create()
    exchange = wire.send(wire.produce_request(9, batches, acks=0), 9)
    assert exchange is not None
    await until(lambda: exchange.completed)
    assert "acks=0" in (exchange.aborted or "")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [7, 2, -2, 32767])
async def test_any_other_acks_is_refused_and_nothing_written(wire: Wire, version: int, acks: int) -> None:
    partition = await wire.path.partition()
    answer = only(await wire.produced(version, acks=acks))
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert partition.log.end_offset == 0


@pytest.mark.parametrize("version", [3, 9, 13])
async def test_a_transaction_that_nobody_began_is_refused(wire: Wire, version: int) -> None:
    partition = await wire.path.partition()
    batch = batch_of(producer=(7, 0, 0), attributes=TRANSACTIONAL)
    answer = only(await wire.produced(version, {("t", 0): batch}, transactional_id="mine"))
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert partition.log.end_offset == 0


# Several partitions


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", [3, 8, 9, 13])
async def test_one_partition_that_fails_does_not_stop_the_others(wire: Wire, version: int, acks: int) -> None:
    await wire.path.create("a", partitions=2)
    await wire.path.create("b")
    batches: dict[tuple[str, int], memoryview | bytes | None] = {
        ("a", 0): batch_of(1),
        ("a", 7): batch_of(1),
        ("a", 1): None,
        ("b", 0): batch_of(2),
    }
    response = await wire.produced(version, batches, acks=acks)
    told = {
        (wire.path.view.topics_by_id[t.topic_id].name if version >= 13 else t.name, p.index): p
        for t in response.responses
        for p in t.partition_responses
    }
    assert {at: p.error_code for at, p in told.items()} == {
        ("a", 0): ErrorCode.NONE,
        ("a", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("a", 1): ErrorCode.INVALID_RECORD,
        ("b", 0): ErrorCode.NONE,
    }
    ends = [p.log.end_offset for p in (wire.path.replicas.find("a", 0), wire.path.replicas.find("b", 0)) if p]
    assert ends == [1, 2]


async def test_a_damaged_partition_is_a_storage_error_and_the_others_are_written(wire: Wire) -> None:
    await wire.path.create("good")
    bad = await wire.path.create("bad")
    wire.path.log_dir.corrupt[bad, 0] = CorruptLog("planted")
    response = await wire.produced(9, {("bad", 0): batch_of(), ("good", 0): batch_of()})
    errors = [topic.partition_responses[0].error_code for topic in response.responses]
    assert errors == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]


async def test_the_answer_waits_for_the_last_partition(wire: Wire) -> None:
    await wire.path.create("strict")
    await wire.path.create("relaxed", flush_messages="1000")
    exchange = await held(wire, batches={("relaxed", 0): batch_of(), ("strict", 0): batch_of()})
    assert not exchange.completed
    wire.path.files.let_go()
    await until(lambda: exchange.completed)


async def test_a_request_without_topics_is_answered(wire: Wire) -> None:
    response = await wire.ask(ProduceRequest(acks=-1, timeout_ms=5), ProduceResponse, 9)
    assert response.responses == []


async def test_several_batches_for_one_partition_in_a_request_are_written_in_order(wire: Wire) -> None:
    partition = await wire.path.partition()
    data = [PartitionProduceData(index=0, records=batch_of(n)) for n in (1, 2, 3)]
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name="t", partition_data=data)])
    response = await wire.ask(request, ProduceResponse, 9)
    assert [p.base_offset for p in response.responses[0].partition_responses] == [0, 1, 3]
    assert partition.log.end_offset == 6


# Duplicates, timeouts, failures


async def test_a_repeat_is_answered_when_the_original_counts_and_with_its_offset(wire: Wire) -> None:
    await wire.path.create()
    await wire.produced(9)
    repeated = {("t", 0): batch_of(producer=(1, 0, 0))}
    first, again = await held(wire, batches=repeated), await held(wire, batches=repeated)
    assert not again.completed
    wire.path.files.let_go()
    await until(lambda: first.completed and again.completed)
    assert only(wire.decoded(again, ProduceResponse, 9)).base_offset == 3


async def test_a_gap_is_for_the_next_leader_to_judge_where_there_may_be_one(wire: Wire) -> None:
    """The producer may have written to a newer leader, and a sequence error would be fatal to it."""
    await wire.path.create()
    await wire.produced(9, {("t", 0): batch_of(1, producer=(7, 0, 0))})
    wire.produce.waits.leaderships = Leaderships(wire.path.topics.store, wire.path.replicas)
    gap = {("t", 0): batch_of(1, producer=(7, 0, 5))}
    assert only(await wire.produced(9, gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    wire.path.replicas.may_serve = lambda: False
    assert only(await wire.produced(9, gap)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    next_one = {("t", 0): batch_of(1, producer=(7, 0, 1))}
    assert only(await wire.produced(9, next_one)).error_code == 0, "what comes in order is taken"


async def test_what_does_not_count_in_time_is_answered_as_timed_out(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.01)
    await wire.path.create("strict")
    await wire.path.create("relaxed", flush_messages="1000")
    batches = {("relaxed", 0): batch_of(), ("strict", 0): batch_of(), ("strict", 5): batch_of()}
    exchange = await held(wire, batches=batches, timeout_ms=20)
    await until(lambda: exchange.completed)
    response = wire.decoded(exchange, ProduceResponse, 9)
    errors = {(t.name, p.index): p.error_code for t in response.responses for p in t.partition_responses}
    assert errors == {
        ("relaxed", 0): ErrorCode.NONE,
        ("strict", 0): ErrorCode.REQUEST_TIMED_OUT,
        ("strict", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert not wire.produce.waits.waiting
    wire.path.files.let_go()
    await wire.path.flushed()  # the response is sent, so a later commit changes nothing
    partition = wire.path.replicas.find("strict", 0)
    assert partition is not None
    assert partition.high_watermark == 3


async def test_what_came_to_count_before_the_time_was_up_is_not_timed_out(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.01)
    for name in ("one", "two"):
        await wire.path.create(name)
    exchange = await held(wire, batches={("one", 0): batch_of(), ("two", 0): batch_of()}, timeout_ms=60_000)
    await wire.path.alter("one", "flush.messages", "1000")  # its records are now committed when written
    loop = asyncio.get_running_loop()
    real_time = loop.time
    loop.time = lambda: real_time() + 61  # type: ignore[method-assign]
    await until(lambda: exchange.completed)
    response = wire.decoded(exchange, ProduceResponse, 9)
    told = {
        t.name: (t.partition_responses[0].error_code, t.partition_responses[0].base_offset) for t in response.responses
    }
    assert told == {"one": (ErrorCode.NONE, 0), "two": (ErrorCode.REQUEST_TIMED_OUT, -1)}


@pytest.mark.slow
@pytest.mark.parametrize("timeout_ms", [0, -1, -(1 << 31)])
async def test_no_time_at_all_is_time_for_one_sweep(
    wire: Wire, timeout_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.path.create()
    await wire.produced(9)
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.001)
    exchange = await held(wire, timeout_ms=timeout_ms)
    assert not exchange.completed
    await until(lambda: exchange.completed)
    assert only(wire.decoded(exchange, ProduceResponse, 9)).error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_nobody_waits_for_longer_than_five_minutes(wire: Wire) -> None:
    await wire.path.create()
    await held(wire, timeout_ms=(1 << 31) - 1)
    (wait,) = wire.produce.waits.waiting
    assert wait.deadline - wait.request.started == pytest.approx(300)


async def test_a_client_that_left_is_forgotten_before_its_time_is_up(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.001)
    await wire.path.create()
    exchange = await held(wire)
    assert wire.produce.waits.waiting
    exchange.lose()
    await until(lambda: not wire.produce.waits.waiting)


async def test_no_sweep_runs_while_nobody_waits(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.001)
    await wire.path.create()
    assert wire.produce.waits.expiry_timer is None
    await wire.produced(9)
    await until(lambda: wire.produce.waits.expiry_timer is None)


async def test_an_answer_that_fails_does_not_keep_others_from_timing_out(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.2)  # longer than the steps before `reply` is replaced
    await wire.path.create()
    failing, other = await held(wire, timeout_ms=0), await held(wire, timeout_ms=0)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(parts: object) -> None:
        raise RuntimeError("no answer")

    monkeypatch.setattr(failing, "reply", fail)
    await until(lambda: other.completed)
    assert [str(failure) for failure in failures] == ["no answer"]


async def test_a_failed_sync_is_answered_as_a_storage_error(wire: Wire) -> None:
    await wire.path.create()
    wire.path.files.fail("sync", errno.EIO)
    assert only(await wire.produced(9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    wire.path.files.heal()
    assert only(await wire.produced(9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_write_that_fails_behind_another_fails_both(wire: Wire) -> None:
    for name in ("one", "two"):
        await wire.path.create(name)
    two = wire.path.view.topics["two"].topic_id
    wire.path.files.fail("append", errno.EIO, lambda name: str(two) in name)
    response = await wire.produced(9, {("one", 0): batch_of(), ("two", 0): batch_of()})
    errors = [topic.partition_responses[0].error_code for topic in response.responses]
    assert errors == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


async def test_deletion_answers_who_waits(wire: Wire) -> None:
    await wire.path.create()
    exchange = await held(wire)
    await wire.path.delete()
    assert only(wire.decoded(exchange, ProduceResponse, 9)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_client_that_left_is_forgotten_when_its_batch_counts(wire: Wire) -> None:
    await wire.path.create()
    exchange = await held(wire)
    exchange.lose()
    wire.path.files.let_go()
    await until(lambda: exchange.completed)
    assert not wire.produce.waits.waiting


# Memory


async def test_a_request_is_freed_with_its_last_batch(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is in no reference cycle, even if the batch is committed after the timeout."""
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.01)
    await wire.path.create()
    freed = asyncio.Event()
    gc.disable()
    try:
        finalize(await held(wire, timeout_ms=0), freed.set)
        await until(lambda: wire.connection.exchanges[-1].completed)
        wire.connection.exchanges.clear()
        wire.path.files.let_go()
        await wire.path.flushed()
        assert freed.is_set()
    finally:
        gc.enable()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cleanup", ["delete", "compact"])
async def test_nothing_of_the_frame_is_referenced_after_the_call(wire: Wire, version: int, cleanup: str) -> None:
    """`Wire.send` clears the frame, which raises BufferError while a view of it exists."""
    await wire.path.create(cleanup_policy=cleanup)
    exchange = await held(wire, version=version, batches={("t", 0): batch_of(2, producer=(1, 0, 0))})
    assert not exchange.completed
    wire.path.files.let_go()
    await until(lambda: exchange.completed)
    partition = wire.path.replicas.find("t", 0)
    assert partition is not None
    assert stored_headers(partition.log)[0].record_count == 2


async def test_the_time_to_the_answer_is_counted_once_for_each_request(wire: Wire) -> None:
    await wire.path.create()
    for acks in (-1, 1):
        await wire.produced(9, acks=acks)
    assert wire.stats.by_api[ApiKey.PRODUCE].count == 2
