"""A producer whose broker fails: no loss, no duplicates, order kept, and errors raised for the affected records."""

from __future__ import annotations

import asyncio
import random

import pytest
from client_doubles.scripted import TOPIC, Fault, ScriptedBroker

from penstock.client import BufferFull, Closed, DeliveryFailed, Producer
from penstock.wire.errors import ErrorCode

pytestmark = pytest.mark.integration

RETRIED: list[Fault] = [
    "before",
    "after",
    "garbage",
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
]


def producer_of(broker: ScriptedBroker, **options: object) -> Producer:
    settings: dict[str, object] = {"batch_size": 1_000, "linger_ms": 0, **options}
    return Producer(broker.address, **settings)  # type: ignore[arg-type]


async def send_numbers(producer: Producer, count: int, partitions: int) -> None:
    for number in range(count):
        await producer.send(TOPIC, b"%d" % number, partition=number % partitions)
        if not number % 7:
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_fails_an_idempotent_producer_writes_everything_once_and_in_order(
    scripted: ScriptedBroker, seed: int
) -> None:
    rng = random.Random(seed)
    scripted.faults.extend(rng.choice([None, None, *RETRIED]) for _ in range(12))
    async with producer_of(scripted, max_in_flight=rng.choice([1, 3, 5])) as producer:
        await send_numbers(producer, 1_800, 3)
        await producer.flush()
    assert not scripted.faults
    for partition, values in scripted.log.items():
        assert [int(v) for v in values] == list(range(partition, 1_800, 3))
    assert scripted.given_ids == 1


async def test_a_request_without_an_answer_is_sent_again(scripted: ScriptedBroker) -> None:
    scripted.faults.append("silent")
    async with producer_of(scripted, request_timeout_ms=1_000) as producer:
        assert (await (await producer.send(TOPIC, b"v", partition=0))).offset == 0
    assert len(scripted.requests) == 2


async def test_a_retry_of_what_was_written_counts_as_delivered(scripted: ScriptedBroker) -> None:
    scripted.faults.append("after")
    async with producer_of(scripted) as producer:
        assert (await (await producer.send(TOPIC, b"v", partition=0))).offset == -1
    assert scripted.log[0] == [b"v"]


async def test_an_error_that_no_retry_cures_fails_the_record_and_flush_says_so(scripted: ScriptedBroker) -> None:
    scripted.faults.append(ErrorCode.MESSAGE_TOO_LARGE)
    async with producer_of(scripted) as producer:
        delivery = await producer.send(TOPIC, b"v", partition=0)
        with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE"):
            await producer.flush()
        with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE"):
            await delivery
        await producer.flush()


async def test_after_a_gap_in_the_sequences_the_producer_goes_on_with_a_new_id(scripted: ScriptedBroker) -> None:
    scripted.faults.extend([None, ErrorCode.MESSAGE_TOO_LARGE])
    async with producer_of(scripted) as producer:
        for value in (b"one", b"lost", b"two", b"three"):
            delivery = await producer.send(TOPIC, value, partition=0)
            if value == b"lost":
                with pytest.raises(DeliveryFailed):
                    await delivery
            else:
                await delivery
        with pytest.raises(DeliveryFailed):
            await producer.flush()
    assert scripted.log[0] == [b"one", b"two", b"three"]
    assert scripted.given_ids == 2


async def test_a_broker_that_forgot_the_producer_is_written_to_under_a_new_id(scripted: ScriptedBroker) -> None:
    scripted.faults.extend([None, ErrorCode.UNKNOWN_PRODUCER_ID])
    async with producer_of(scripted) as producer:
        for value in (b"one", b"two"):
            await (await producer.send(TOPIC, value, partition=0))
    assert scripted.log[0] == [b"one", b"two"]
    assert scripted.given_ids == 2


async def test_a_record_that_cannot_be_delivered_in_time_fails(scripted: ScriptedBroker) -> None:
    scripted.always = ErrorCode.NOT_LEADER_OR_FOLLOWER
    async with producer_of(scripted, delivery_timeout_ms=2_000) as producer:
        delivery = await producer.send(TOPIC, b"v", partition=0)
        with pytest.raises(DeliveryFailed, match="NOT_LEADER_OR_FOLLOWER"):
            await delivery
        scripted.always = None
        assert (await (await producer.send(TOPIC, b"w", partition=0))).offset == 0
        with pytest.raises(DeliveryFailed):
            await producer.flush()


async def test_a_record_fails_in_time_where_no_broker_is_left_to_send_it_to(scripted: ScriptedBroker) -> None:
    async with producer_of(scripted, delivery_timeout_ms=2_000) as producer:
        await (await producer.send(TOPIC, b"v", partition=0))
        await scripted.stop()
        for _ in range(2):
            delivery = await producer.send(TOPIC, b"w", partition=0)
            with pytest.raises(DeliveryFailed, match="were not"):
                await delivery
        await producer.send(TOPIC, b"x", partition=0)
        with pytest.raises(DeliveryFailed, match="3 batches"):
            await producer.flush()


@pytest.mark.parametrize("topic", ["unknown", TOPIC])
async def test_a_send_that_waits_while_the_producer_closes_hears_of_it(scripted: ScriptedBroker, topic: str) -> None:
    producer = producer_of(scripted, buffer_memory=3_000)
    await producer.start()
    scripted.always = "silent"
    if topic == TOPIC:
        await producer.send(TOPIC, b"x" * 2_500, partition=0)
    waiting = asyncio.create_task(producer.send(topic, b"x" * 1_000))
    await asyncio.sleep(0)
    await producer.close(flush=False)
    with pytest.raises(Closed):
        await waiting


async def test_no_more_requests_are_under_way_than_allowed(scripted: ScriptedBroker) -> None:
    scripted.faults.append(None)
    scripted.always = "silent"
    producer = producer_of(scripted, max_in_flight=3)
    await producer.start()
    await send_numbers(producer, 900, 1)
    while len(scripted.requests) < 4:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(scripted.requests) == 4, "one that was answered, three that are under way"
    await producer.close(flush=False)


async def test_a_full_buffer_makes_send_wait_and_then_fail(scripted: ScriptedBroker) -> None:
    scripted.always = "silent"
    producer = producer_of(scripted, buffer_memory=3_000, max_block_ms=500)
    await producer.start()
    with pytest.raises(BufferFull, match="3000 bytes"):
        await send_numbers(producer, 1_000, 1)
    await producer.close(flush=False)


async def test_closing_without_flushing_fails_what_was_not_acknowledged(scripted: ScriptedBroker) -> None:
    scripted.always = "silent"
    producer = producer_of(scripted)
    await producer.start()
    delivery = await producer.send(TOPIC, b"v", partition=0)
    await producer.close(flush=False)
    with pytest.raises(DeliveryFailed, match="closed before"):
        await delivery


async def test_without_acks_nothing_is_waited_for(scripted: ScriptedBroker) -> None:
    async with producer_of(scripted, acks=0) as producer:
        assert (await (await producer.send(TOPIC, b"v", partition=0))).offset == -1
        while not scripted.log[0]:
            await asyncio.sleep(0.01)
    assert scripted.requests[0].acks == 0
    assert scripted.given_ids == 0


async def test_partitions_with_one_leader_share_requests(scripted: ScriptedBroker) -> None:
    async with producer_of(scripted, linger_ms=20) as producer:
        await asyncio.gather(*(producer.send(TOPIC, b"v", partition=p) for p in range(3)))
    assert len(scripted.requests) == 1
    assert [d.index for d in scripted.requests[0].topic_data[0].partition_data] == [0, 1, 2]
