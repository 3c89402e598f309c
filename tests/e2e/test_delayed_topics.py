"""Topics with a delay of delivery: each client gets each record in order, and none before its delay has passed."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from penstock_e2e.drivers import clients
from penstock_e2e.model import Driver, MakeTopic, Partition, Record, eventually

DELAY_MS = 1_500
DELAYED = {"delivery.delay.ms": str(DELAY_MS)}
RECORDS = 10


@clients()
def test_records_arrive_in_order_and_none_is_early(client: Driver, make_topic: MakeTopic) -> None:
    topic = make_topic(1, DELAYED)
    begun_ms = time.time() * 1000
    client.produce(topic, [Record(f"{i}".encode(), partition=0) for i in range(RECORDS)])
    end = client.watermarks(Partition(topic, 0))[1]
    assert not end or time.time() * 1000 >= begun_ms + DELAY_MS, "the end is that of the visible records"
    messages = client.read(Partition(topic, 0), "beginning", RECORDS)
    assert time.time() * 1000 >= max(message.timestamp_ms for message in messages) + DELAY_MS
    assert [m.value for m in messages] == [f"{i}".encode() for i in range(RECORDS)]
    assert messages[0].timestamp_ms >= begun_ms - 1
    assert client.watermarks(Partition(topic, 0)) == (0, RECORDS)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_transaction_is_visible_when_it_is_committed_and_due(
    bootstrap: str, make_topic: MakeTopic, isolation: str
) -> None:
    topic = make_topic(1, DELAYED)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions()
    begun_ms = time.time() * 1000
    for number in range(2):
        producer.begin_transaction()
        for i in range(3):
            producer.produce(topic, f"{number}-{i}", partition=0)
        producer.flush()
        if number:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": isolation})
    consumer.assign([TopicPartition(topic, 0, 0)])
    expected = [f"0-{i}" for i in range(3)]
    if isolation == "read_uncommitted":
        expected += [f"1-{i}" for i in range(3)]
    found: list[str] = []

    def read_all() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            now_ms = time.time() * 1000
            assert now_ms >= message.timestamp()[1] + DELAY_MS
            assert now_ms >= begun_ms + DELAY_MS
            found.append(message.value().decode())
        return len(found) >= len(expected)

    try:
        eventually("all records to arrive", read_all)
    finally:
        consumer.close()
    assert found == expected
