"""A producer against a real broker."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import (
    Admin,
    BufferFull,
    Closed,
    Consumer,
    DeliveryFailed,
    NewTopic,
    Producer,
    RecordTooLarge,
    TopicPartition,
    UnknownTopic,
)
from penstock.client.partitioner import partition_for_key
from penstock.wire.record import Record

pytestmark = pytest.mark.integration


async def read_all(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """Return all records of a topic by partition."""
    found: dict[int, list[Record]] = {}
    async with Consumer(bootstrap, isolation="read_committed") as consumer:
        partitions = await consumer.partitions(topic)
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for tp, records in (await consumer.getmany()).items():
                found.setdefault(tp.partition, []).extend(records)
    return found


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_is_sent_is_read_whatever_the_compression(bootstrap: str, topic: str, compression: str) -> None:
    async with Producer(bootstrap, compression=compression) as producer:
        for number in range(500):
            headers = [("n", b"%d" % number), ("null", None)]
            await producer.send(topic, f"value {number}", key=f"key {number % 7}", headers=headers, timestamp_ms=1000)
    found = await read_all(bootstrap, topic)
    assert sorted(int(r.value.split()[1]) for rs in found.values() for r in rs if r.value) == list(range(500))
    for partition, records in found.items():
        for record in records:
            assert record.key is not None
            assert partition == partition_for_key(record.key, 4)
            assert record.timestamp_ms == 1000
            assert record.headers == (("n", b"%d" % int((record.value or b"").split()[1])), ("null", None))


@pytest.mark.parametrize("options", [{}, {"idempotent": False}, {"acks": 1, "compression": "lz4"}])
async def test_records_that_the_broker_names_fail_and_the_others_are_sent_again(
    bootstrap: str, admin: Admin, name: str, options: dict[str, object]
) -> None:
    await admin.create_topics([NewTopic(name, 1, configs={"cleanup.policy": "compact"})])
    async with Producer(bootstrap, linger_ms=50, **options) as producer:  # type: ignore[arg-type]
        deliveries = [
            await producer.send(name, b"%d" % number, key=None if number % 10 == 3 else b"%d" % number)
            for number in range(100)
        ]
        later = [await producer.send(name, b"later", key=b"later %d" % number) for number in range(5)]
        with pytest.raises(DeliveryFailed, match="INVALID_RECORD: the record has no key"):
            await producer.flush()
        for number, delivery in enumerate(deliveries):
            if number % 10 == 3:
                assert isinstance(delivery.exception(), DeliveryFailed)
                with pytest.raises(DeliveryFailed, match="a record was rejected"):
                    await delivery
            else:
                assert delivery.exception() is None
                assert (await delivery).offset == number - (number + 6) // 10
        assert [(await delivery).offset for delivery in later] == [90, 91, 92, 93, 94]
        await producer.flush()
        only_bad = await producer.send(name, b"x")
        with pytest.raises(DeliveryFailed, match="the record has no key"):
            await only_bad
        with pytest.raises(DeliveryFailed):
            await producer.flush()
    found = await read_all(bootstrap, name)
    values = [record.value for record in found[0]]
    assert values == [*(b"%d" % number for number in range(100) if number % 10 != 3), *[b"later"] * 5]
    await admin.delete_topics([name])


@pytest.mark.parametrize("acks", ["all", 1, 0])
async def test_records_of_a_key_are_read_in_the_order_of_sending(bootstrap: str, topic: str, acks: int) -> None:
    async with Producer(bootstrap, acks=acks, batch_size=2048, linger_ms=0) as producer:  # type: ignore[arg-type]
        for number in range(2_000):
            await producer.send(topic, b"%d" % number, key=b"one")
    found: list[int] = []
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign(await consumer.partitions(topic))
        while len(found) < 2_000:
            found += [int(r.value or b"") for rs in (await consumer.getmany()).values() for r in rs]
    assert found == list(range(2_000))


async def test_a_delivery_says_where_the_record_is(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap) as producer:
        deliveries = [await producer.send(topic, b"v", partition=2, timestamp_ms=5) for _ in range(10)]
        found = [await delivery for delivery in deliveries]
    assert [(m.topic, m.partition, m.offset, m.timestamp_ms) for m in found] == [(topic, 2, n, 5) for n in range(10)]


async def test_a_callback_hears_of_the_delivery(bootstrap: str, topic: str) -> None:
    heard: list[int] = []
    async with Producer(bootstrap) as producer:
        delivery = await producer.send(topic, b"v", partition=1)
        delivery.add_done_callback(lambda d: heard.append(d.result().offset))
    assert heard == [0]


async def test_null_values_and_empty_ones_are_different_things(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap) as producer:
        for key, value in ((b"", None), (None, b"")):
            await producer.send(topic, value, key=key, partition=0)
    assert [(r.key, r.value) for r in (await read_all(bootstrap, topic))[0]] == [(b"", None), (None, b"")]


async def test_a_function_may_choose_the_partition(bootstrap: str, topic: str) -> None:
    async with Producer(
        bootstrap, partitioner=lambda _topic, _key, value, count: len(value or b"") % count
    ) as producer:
        for size in range(8):
            await producer.send(topic, b"x" * size)
    found = await read_all(bootstrap, topic)
    assert {p: {len(r.value or b"") % 4 for r in records} for p, records in found.items()} == {p: {p} for p in range(4)}


async def test_a_small_buffer_slows_the_sender_down_and_loses_nothing(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap, buffer_memory=20_000, batch_size=4_000) as producer:
        await asyncio.gather(*(producer.send(topic, b"x" * 900, key=b"%d" % n) for n in range(300)))
    assert sum(map(len, (await read_all(bootstrap, topic)).values())) == 300


async def test_a_record_that_can_never_fit_is_refused_at_once(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap, max_request_size=10_000) as producer:
        with pytest.raises(RecordTooLarge, match="max_request_size"):
            await producer.send(topic, b"x" * 20_000)


async def test_a_topic_that_is_not_there_is_an_error_unless_it_may_be_created(
    bootstrap: str, admin: Admin, name: str
) -> None:
    async with Producer(bootstrap, auto_create_topics=False) as producer:
        with pytest.raises(UnknownTopic, match=name):
            await producer.send(name, b"v")
    async with Producer(bootstrap) as producer:
        await (await producer.send(name, b"v"))
    await admin.delete_topics([name])


async def test_a_topic_that_a_consumer_names_is_created_unless_it_must_not_be(
    bootstrap: str, admin: Admin, name: str
) -> None:
    async with Consumer(bootstrap, offset_reset="earliest", auto_create_topics=False) as consumer:
        with pytest.raises(UnknownTopic, match=name):
            await consumer.partitions(name)
    async with Consumer(bootstrap, offset_reset="earliest") as consumer:
        assert await consumer.partitions(name)
    await admin.delete_topics([name])


async def test_a_partition_that_is_not_there_is_an_error(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap) as producer:
        with pytest.raises(ValueError, match=r'partition "4" does not exist: topic ".*" has 4'):
            await producer.send(topic, b"v", partition=4)
        await (await producer.send(topic, b"v", partition=3))


async def test_new_partitions_are_taken_up_while_the_producer_runs(bootstrap: str, admin: Admin, topic: str) -> None:
    async with Producer(bootstrap, metadata_max_age_ms=50) as producer:
        assert await producer.partitions(topic) == 4
        await admin.create_partitions({topic: 6})
        while await producer.partitions(topic) < 6:
            await asyncio.sleep(0.02)
        assert (await (await producer.send(topic, b"v", partition=5))).offset == 0


async def test_after_closing_nothing_can_be_sent(bootstrap: str, topic: str) -> None:
    producer = Producer(bootstrap)
    with pytest.raises(Closed, match="not started"):
        await producer.send(topic, b"v")
    async with producer:
        pass
    with pytest.raises(Closed):
        await producer.send(topic, b"v")


async def test_cancelling_a_send_that_waits_for_room_takes_its_record_back(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap, buffer_memory=3_000, max_request_size=3_000, linger_ms=60_000) as producer:
        await producer.send(topic, b"x" * 2_000, partition=0)
        waiting = asyncio.create_task(producer.send(topic, b"n" * 2_000, partition=0))
        blocked = asyncio.create_task(producer.send(topic, b"y" * 2_000, partition=0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await blocked
    assert [r.value and r.value[:1] for r in (await read_all(bootstrap, topic))[0]] == [b"x", b"y"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks": 7}, 'invalid acks "7"'),
        ({"acks": 1, "idempotent": True}, 'needs acks="all"'),
        ({"max_in_flight": 6}, 'invalid max_in_flight "6"'),
        ({"compression": "brotli"}, 'unknown compression "brotli"'),
        ({"bootstrap": "nowhere:x"}, "host:port"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Producer(**options)  # type: ignore[arg-type]


def test_buffer_full_may_be_tried_again() -> None:
    assert BufferFull.retriable
    assert TopicPartition("t", 1) == ("t", 1)
