"""Transactions of a producer on a real broker, as read_committed consumers and other clients observe them."""

from __future__ import annotations

import aiokafka
import pytest

from penstock.client import (
    Admin,
    Consumer,
    DeliveryFailed,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerFenced,
    TopicPartition,
    TransactionAbortable,
)

pytestmark = pytest.mark.integration


async def values(
    bootstrap: str, topic: str, isolation: str = "read_committed", is_open: bool = False
) -> list[bytes | None]:
    """Return all values of a topic once every transaction has ended; `is_open` skips that wait."""
    found: list[bytes | None] = []
    async with (
        Consumer(bootstrap, isolation=isolation) as consumer,  # type: ignore[arg-type]
        Consumer(bootstrap, isolation="read_committed") as stable,
        Consumer(bootstrap) as everything,
    ):
        partitions = await consumer.partitions(topic)
        while not is_open and await stable.end_offsets(partitions) != await everything.end_offsets(partitions):
            pass
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for records in (await consumer.getmany()).values():
                found += [record.value for record in records]
    return found


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_committed_records_are_read_and_aborted_ones_are_not(
    bootstrap: str, topic: str, name: str, compression: str
) -> None:
    async with Producer(bootstrap, transactional_id=name, compression=compression, batch_size=500) as producer:
        for number in range(6):
            producer.begin()
            for part in range(50):
                await producer.send(topic, b"%d" % number, key=b"%d" % part)
            if number % 3 == 2:
                await producer.flush()  # so that aborted records are in the log
                await producer.abort()
            else:
                await producer.commit()
    found = await values(bootstrap, topic)
    assert {n: found.count(n) for n in set(found)} == {b"0": 50, b"1": 50, b"3": 50, b"4": 50}
    assert (await values(bootstrap, topic, "read_uncommitted")).count(b"2") == 50


async def test_records_of_an_open_transaction_are_not_read(bootstrap: str, topic: str, name: str) -> None:
    async with Producer(bootstrap, transactional_id=name) as producer:
        async with producer.transaction():
            await (await producer.send(topic, b"v", partition=0))
            assert await values(bootstrap, topic, is_open=True) == []
        assert await values(bootstrap, topic) == [b"v"]


async def test_a_newer_producer_fences_the_older_one_and_aborts_its_transaction(
    bootstrap: str, topic: str, name: str
) -> None:
    async with Producer(bootstrap, transactional_id=name) as older:
        older.begin()
        await (await older.send(topic, b"older", partition=0))
        async with Producer(bootstrap, transactional_id=name) as newer, newer.transaction():
            await newer.send(topic, b"newer", partition=0)
            with pytest.raises(DeliveryFailed):
                await (await older.send(topic, b"late", partition=0))
        with pytest.raises(ProducerFenced, match=name):
            await older.commit()
        with pytest.raises(ProducerFenced):
            older.begin()
    assert await values(bootstrap, topic) == [b"newer"]


async def test_offsets_are_the_groups_once_the_transaction_is_committed(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Producer(bootstrap, transactional_id=name) as producer:
        async with producer.transaction():
            await producer.send_offsets({first: 3, second: OffsetAndMetadata(4, "why")}, name)
        producer.begin()
        await producer.send_offsets({first: 100}, name)
        await producer.abort()
    found = (await admin.committed_many([name]))[name]
    assert found == {first: OffsetAndMetadata(3), second: OffsetAndMetadata(4, "why")}


async def test_a_loop_reads_processes_and_writes_exactly_once(bootstrap: str, admin: Admin, name: str) -> None:
    source, target = f"{name}-in", f"{name}-out"
    await admin.create_topics([NewTopic(source, 2), NewTopic(target, 2)])
    async with Producer(bootstrap) as producer:
        for number in range(100):
            await producer.send(source, b"%d" % number)
    done, attempts = 0, 0
    while done < 100:  # each run of the loop fails at a transaction, which the next run repeats
        attempts += 1
        async with (
            Consumer(bootstrap, group_id=name, offset_reset="earliest") as consumer,
            Producer(bootstrap, transactional_id=name) as producer,
        ):
            consumer.subscribe([source])
            while done < 100:
                batch = await consumer.getmany(max_records=30)
                producer.begin()
                for records in batch.values():
                    for record in records:
                        await producer.send(target, record.value)
                positions = {tp: records[-1].offset + 1 for tp, records in batch.items()}
                await producer.send_offsets(positions, consumer.group_metadata)
                if attempts < 3:
                    await producer.flush()
                    attempts += 1
                    break
                await producer.commit()
                done += sum(map(len, batch.values()))
    assert sorted(int(v or b"") for v in await values(bootstrap, target)) == list(range(100))
    await admin.delete_topics([source, target])


async def test_a_consumer_that_its_group_has_replaced_cannot_commit(bootstrap: str, topic: str, name: str) -> None:
    async with (
        Consumer(bootstrap, group_id=name, offset_reset="earliest") as consumer,
        Producer(bootstrap, transactional_id=name) as producer,
    ):
        consumer.subscribe([topic])
        await consumer.getmany(timeout_ms=0)
        while not consumer.assignment:
            await consumer.getmany(timeout_ms=100)
        stale = consumer.group_metadata._replace(generation=consumer.generation - 1)
        with pytest.raises(TransactionAbortable, match="ILLEGAL_GENERATION"):
            async with producer.transaction():
                await producer.send_offsets({TopicPartition(topic, 0): 1}, stale)
        async with producer.transaction():
            await producer.send_offsets({TopicPartition(topic, 0): 1}, consumer.group_metadata)


async def test_a_record_that_the_topic_rejects_must_be_aborted_and_costs_the_next_transaction_nothing(
    bootstrap: str, admin: Admin, name: str
) -> None:
    await admin.create_topics([NewTopic(name, 1, configs={"max.message.bytes": "1000"})])
    async with Producer(bootstrap, transactional_id=name) as producer:
        producer.begin()
        await (await producer.send(name, b"small"))
        await producer.send(name, b"x" * 2000)
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            await producer.commit()
        await producer.abort()
        for value in (b"one", b"two"):
            async with producer.transaction():
                await producer.send(name, value)
    assert await values(bootstrap, name) == [b"one", b"two"]
    await admin.delete_topics([name])


async def test_a_transaction_that_takes_too_long_is_aborted_by_the_coordinator(
    bootstrap: str, topic: str, name: str
) -> None:
    async with Producer(bootstrap, transactional_id=name, transaction_timeout_ms=2_000) as producer:
        producer.begin()
        await (await producer.send(topic, b"v", partition=0))
        async with Consumer(bootstrap, isolation="read_committed") as consumer:
            place = TopicPartition(topic, 0)
            while (await consumer.end_offsets([place]))[place] == 0:  # the last stable offset
                pass
        with pytest.raises(ProducerFenced, match="2000 ms"):
            await producer.commit()
    assert await values(bootstrap, topic) == []


async def test_aiokafka_and_this_client_hand_over_a_transactional_id(bootstrap: str, topic: str, name: str) -> None:
    async with Producer(bootstrap, transactional_id=name) as producer:
        async with producer.transaction():
            await producer.send(topic, b"ours", partition=0)
        other = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await other.start()
        async with other.transaction():
            await other.send_and_wait(topic, b"other", partition=0)
        await other.stop()
        producer.begin()
        with pytest.raises(DeliveryFailed, match="PRODUCER_FENCED"):
            await (await producer.send(topic, b"late", partition=0))
    async with Producer(bootstrap, transactional_id=name) as producer, producer.transaction():
        await producer.send(topic, b"ours again", partition=0)
    assert await values(bootstrap, topic) == [b"ours", b"other", b"ours again"]
