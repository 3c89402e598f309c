"""Features of aiokafka only: concurrent coroutines on one client, and seeking to the committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from penstock_e2e.model import DEADLINE_S, MakeTopic


async def test_many_coroutines_produce_through_one_client_and_each_learns_its_own_offset(
    bootstrap: str, topic: str
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        values = [f"value-{index}".encode() for index in range(300)]
        answers = await asyncio.wait_for(
            asyncio.gather(*(producer.send_and_wait(topic, value, partition=0) for value in values)), DEADLINE_S
        )
    offsets = {answer.offset: value for answer, value in zip(answers, values, strict=True)}
    assert sorted(offsets) == list(range(300))
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        for offset in range(300):
            message = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
            assert (message.offset, message.value) == (offset, offsets[offset])


async def test_a_consumer_goes_back_to_what_it_committed(
    bootstrap: str, topic: str, fresh_name: Callable[[], str]
) -> None:
    partition = TopicPartition(topic, 0)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for index in range(10):
            await producer.send_and_wait(topic, f"{index}".encode(), partition=0)
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=fresh_name(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign([partition])
        assert [(await consumer.getone()).offset for _ in range(4)] == [0, 1, 2, 3]
        await consumer.commit({partition: (4, "after four")})
        assert [(await consumer.getone()).offset for _ in range(3)] == [4, 5, 6]
        await consumer.seek_to_committed(partition)
        assert (await consumer.getone()).offset == 4
        assert await consumer.committed(partition) == 4
        assert consumer.highwater(partition) == 10


async def test_several_partitions_are_read_by_iterating(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=10) as producer:
        await asyncio.gather(
            *[await producer.send(topic, f"{p}:{i}".encode(), partition=p) for i in range(30) for p in range(3)]
        )
    read: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    async def iterate(consumer: AIOKafkaConsumer) -> None:
        async for message in consumer:
            read[message.partition].append(message.value)
            if sum(map(len, read.values())) == 90:
                return

    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        await asyncio.wait_for(iterate(consumer), DEADLINE_S)
    assert read == {p: [f"{p}:{i}".encode() for i in range(30)] for p in range(3)}
