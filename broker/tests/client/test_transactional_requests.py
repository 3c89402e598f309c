"""Requests of a transactional producer to its coordinator: their order, and retries after failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from client_doubles.coordinating import CoordinatingBroker
from client_doubles.scripted import TOPIC

from penstock.client import (
    BrokerError,
    DeliveryFailed,
    ErrorCode,
    IllegalState,
    Producer,
    ProducerFenced,
    TopicPartition,
    TransactionAbortable,
)
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.messages.end_txn import EndTxnRequest
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

pytestmark = pytest.mark.integration

OFFSETS = {TopicPartition(TOPIC, 0): 5}


@pytest.fixture
async def coordinating() -> AsyncIterator[CoordinatingBroker]:
    async with CoordinatingBroker() as broker:
        yield broker


def producer_of(broker: CoordinatingBroker, **options: object) -> Producer:
    settings: dict[str, object] = {"transactional_id": "id", "linger_ms": 0, **options}
    return Producer(broker.address, **settings)  # type: ignore[arg-type]


def coordinated(broker: CoordinatingBroker) -> list[tuple[str, int]]:
    """Return the broker's calls without FindCoordinator."""
    return [call for call in broker.calls if call[0] != "find"]


async def test_a_partition_is_added_before_its_first_batch_and_once(coordinating: CoordinatingBroker) -> None:
    async with producer_of(coordinating) as producer, producer.transaction():
        await (await producer.send(TOPIC, b"a", partition=0))
        await (await producer.send(TOPIC, b"b", partition=0))
        await producer.send_offsets(OFFSETS, "g")
    assert coordinated(coordinating) == [
        ("init", -1), ("add", 0), ("produce", 0), ("produce", 0), ("add offsets", 0), ("offsets", 0), ("commit", 0),
    ]  # fmt: skip
    assert [request.transactional_id for request in coordinating.requests] == ["id", "id"]


@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_an_empty_transaction_requests_nothing(coordinating: CoordinatingBroker, ends: str) -> None:
    async with producer_of(coordinating) as producer:
        producer.begin()
        await getattr(producer, ends)()
    assert coordinated(coordinating) == [("init", -1)]


@pytest.mark.parametrize("request_class", [InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest])
@pytest.mark.parametrize(
    "code",
    [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
)
async def test_requests_wait_for_the_previous_transaction_and_for_a_coordinator_that_moves(
    coordinating: CoordinatingBroker, request_class: type, code: ErrorCode
) -> None:
    coordinating.codes[request_class].extend([code, code])
    async with producer_of(coordinating) as producer, producer.transaction():
        await producer.send(TOPIC, b"v", partition=0)
    assert coordinating.log[0] == [b"v"]
    names = [name for name, _ in coordinated(coordinating)]
    assert names[-1] == "commit"
    assert "add" not in names[names.index("produce") :], "no batch is sent before its partition is added"
    lookups = coordinating.calls.count(("find", 1))
    assert lookups == (3 if code == ErrorCode.NOT_COORDINATOR else 1)


async def test_a_failed_batch_fails_the_transaction_and_the_next_one_has_a_new_epoch(
    coordinating: CoordinatingBroker,
) -> None:
    coordinating.faults.extend([None, ErrorCode.MESSAGE_TOO_LARGE])
    async with producer_of(coordinating) as producer:
        producer.begin()
        await (await producer.send(TOPIC, b"a", partition=0))
        failed = await producer.send(TOPIC, b"b", partition=0)
        with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE"):
            await failed
        with pytest.raises(TransactionAbortable, match=r"must be aborted.*MESSAGE_TOO_LARGE"):
            await producer.send(TOPIC, b"c", partition=0)
        with pytest.raises(TransactionAbortable):
            await producer.send_offsets(OFFSETS, "g")
        with pytest.raises(TransactionAbortable) as caught:
            await producer.commit()
        assert isinstance(caught.value.cause, BrokerError)
        await producer.abort()
        async with producer.transaction():
            await producer.send(TOPIC, b"d", partition=0)
    assert coordinated(coordinating)[-6:] == [
        ("produce", 0), ("abort", 0), ("init", 0), ("add", 1), ("produce", 1), ("commit", 1),
    ]  # fmt: skip
    assert coordinating.log[0] == [b"a", b"d"]


async def test_a_batch_that_fails_while_the_commit_waits_for_it_stops_the_commit(
    coordinating: CoordinatingBroker,
) -> None:
    coordinating.always = ErrorCode.MESSAGE_TOO_LARGE
    async with producer_of(coordinating, linger_ms=60_000) as producer:
        producer.begin()
        await producer.send(TOPIC, b"v", partition=0)
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            await producer.commit()
        await producer.abort()
    assert ("commit", 0) not in coordinating.calls


async def test_an_abort_after_acknowledged_batches_keeps_the_epoch(coordinating: CoordinatingBroker) -> None:
    async with producer_of(coordinating) as producer:
        producer.begin()
        await (await producer.send(TOPIC, b"a", partition=0))
        await producer.abort()
        async with producer.transaction():
            await producer.send(TOPIC, b"b", partition=0)
    assert [call for call in coordinated(coordinating) if call[0] in ("init", "abort", "commit")] == [
        ("init", -1), ("abort", 0), ("commit", 0),
    ]  # fmt: skip
    assert coordinating.log[0] == [b"a", b"b"]


async def test_an_abort_drops_what_was_not_sent_and_waits_for_what_was(coordinating: CoordinatingBroker) -> None:
    coordinating.always = "before"
    async with producer_of(coordinating, linger_ms=60_000) as producer:
        producer.begin()
        kept = await producer.send(TOPIC, b"never sent", partition=1)
        await producer.abort()
        with pytest.raises(DeliveryFailed, match="aborted"):
            await kept
        assert not coordinating.requests
        producer.begin()
        lost = await producer.send(TOPIC, b"outcome unknown", partition=0)
        flushing = asyncio.create_task(producer.flush())
        while not coordinating.requests:
            await asyncio.sleep(0.01)
        await producer.abort()
        with pytest.raises(DeliveryFailed):
            await lost
        await asyncio.gather(flushing, return_exceptions=True)
        coordinating.always = None
        async with producer.transaction():
            await producer.send(TOPIC, b"v", partition=0)
    assert coordinating.log[0] == [b"v"]
    assert ("init", 0) in coordinating.calls, "a batch that may still arrive belongs to an old epoch"


async def test_an_abort_does_not_send_again_what_is_in_flight(coordinating: CoordinatingBroker) -> None:
    coordinating.always = "silent"
    async with producer_of(coordinating, request_timeout_ms=200) as producer:
        producer.begin()
        await producer.send(TOPIC, b"v", partition=0)
        while not coordinating.requests:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            await producer.abort()
    assert len(coordinating.requests) == 1


async def test_an_exception_aborts_and_is_raised(coordinating: CoordinatingBroker) -> None:
    async with producer_of(coordinating) as producer:

        async def fail() -> None:
            async with producer.transaction():
                await (await producer.send(TOPIC, b"v", partition=0))
                raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            await fail()
        assert coordinated(coordinating)[-1] == ("abort", 0)
        producer.begin()


async def test_a_cancelled_transaction_is_aborted(coordinating: CoordinatingBroker) -> None:
    async with producer_of(coordinating) as producer:

        async def wait() -> None:
            async with producer.transaction():
                await (await producer.send(TOPIC, b"v", partition=0))
                started.set()
                await asyncio.Event().wait()

        started = asyncio.Event()
        task = asyncio.create_task(wait())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert coordinated(coordinating)[-1] == ("abort", 0)


async def test_a_commit_without_an_answer_is_repeated_and_cannot_be_aborted(coordinating: CoordinatingBroker) -> None:
    coordinating.codes[EndTxnRequest].extend([ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000)
    async with producer_of(coordinating, delivery_timeout_ms=1_000) as producer:
        producer.begin()
        await producer.send(TOPIC, b"v", partition=0)
        with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE") as caught:
            await producer.commit()
        assert caught.value.retriable
        with pytest.raises(IllegalState, match="call commit again"):
            await producer.abort()
        with pytest.raises(IllegalState, match="committing"):
            await producer.send(TOPIC, b"w", partition=0)
        coordinating.codes[EndTxnRequest].clear()
        await producer.commit()
        producer.begin()


@pytest.mark.parametrize("fences", [AddPartitionsToTxnRequest, EndTxnRequest, TxnOffsetCommitRequest, None])
async def test_a_fenced_producer_says_so_whatever_it_does(
    coordinating: CoordinatingBroker, fences: type | None
) -> None:
    if fences is None:
        coordinating.faults.append(ErrorCode.INVALID_PRODUCER_EPOCH)
    else:
        coordinating.codes[fences].append(ErrorCode.PRODUCER_FENCED)
    async with producer_of(coordinating) as producer:

        async def write() -> None:
            async with producer.transaction():
                await producer.send(TOPIC, b"v", partition=0)
                await producer.send_offsets(OFFSETS, "g")

        with pytest.raises(ProducerFenced, match=r"newer producer|INVALID_PRODUCER_EPOCH"):
            await write()
        for call in (producer.commit, producer.abort):
            with pytest.raises(ProducerFenced):
                await call()
        with pytest.raises(ProducerFenced):
            producer.begin()
    assert ("abort", 0) not in coordinating.calls


async def test_a_member_that_its_group_has_replaced_must_abort(coordinating: CoordinatingBroker) -> None:
    coordinating.codes[TxnOffsetCommitRequest].append(ErrorCode.ILLEGAL_GENERATION)
    async with producer_of(coordinating) as producer:
        with pytest.raises(TransactionAbortable, match=r'group "g".*ILLEGAL_GENERATION'):
            async with producer.transaction():
                await producer.send_offsets(OFFSETS, "g")
        async with producer.transaction():
            await producer.send(TOPIC, b"v", partition=0)
    assert coordinating.calls[-1] == ("commit", 1)


async def test_a_first_request_that_was_not_executed_leaves_nothing_to_abort(coordinating: CoordinatingBroker) -> None:
    coordinating.codes[AddPartitionsToTxnRequest].append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    coordinating.codes[EndTxnRequest].append(ErrorCode.INVALID_TXN_STATE)
    async with producer_of(coordinating) as producer:
        producer.begin()
        with pytest.raises(DeliveryFailed, match="TOPIC_AUTHORIZATION_FAILED"):
            await (await producer.send(TOPIC, b"v", partition=0))
        await producer.abort()
        async with producer.transaction():
            await producer.send(TOPIC, b"v", partition=0)
    assert coordinating.calls[-1] == ("commit", 1)


@pytest.mark.parametrize(("flush", "last"), [(True, ("abort", 0)), (False, ("produce", 0))])
async def test_closing_aborts_the_transaction_unless_it_must_be_fast(
    coordinating: CoordinatingBroker, flush: bool, last: tuple[str, int]
) -> None:
    producer = producer_of(coordinating)
    await producer.start()
    producer.begin()
    await (await producer.send(TOPIC, b"v", partition=0))
    await producer.close(flush=flush)
    assert coordinated(coordinating)[-1] == last


async def test_outside_a_transaction_nothing_can_be_sent(coordinating: CoordinatingBroker) -> None:
    async with producer_of(coordinating) as producer:
        with pytest.raises(IllegalState, match="not in a transaction"):
            await producer.send(TOPIC, b"v", partition=0)
        with pytest.raises(IllegalState):
            await producer.commit()
    assert not coordinating.requests


async def test_without_a_transactional_id_there_are_no_transactions(coordinating: CoordinatingBroker) -> None:
    async with Producer(coordinating.address) as producer:
        with pytest.raises(IllegalState, match="set it"):
            producer.begin()
        await producer.send(TOPIC, b"v", partition=0)
    assert coordinating.requests[0].transactional_id is None


@pytest.mark.parametrize("options", [{"transactional_id": ""}, {"acks": 1}, {"idempotent": False}])
def test_settings_without_idempotence_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="transactional_id"):
        Producer(**{"transactional_id": "id", **options})  # type: ignore[arg-type]
