"""A delayed topic in a cluster whose leaders are killed, and restart, while records wait."""

from __future__ import annotations

import asyncio
import time

import pytest
from cluster_processes import Cluster
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.client import Consumer as PenstockConsumer
from penstock.client import TopicPartition

pytestmark = pytest.mark.integration

TOPIC = "later"
DELAY_MS = 10_000
PARTITIONS = 3
RECORDS = 90
LIMIT_S = 180.0


def check_time(timestamp_ms: int) -> None:
    """Fail if the record is early: all brokers share the machine's clock."""
    assert time.time() * 1000 >= timestamp_ms + DELAY_MS, "a record was delivered early"


def read_with_librdkafka(bootstrap: str) -> dict[int, list[str]]:
    """Return the values by partition, read by a group from the beginning."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    found: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
    end_s = time.monotonic() + LIMIT_S
    try:
        while sum(map(len, found.values())) < RECORDS:
            assert time.monotonic() < end_s, f"read {found}"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                check_time(message.timestamp()[1])
                found[message.partition()].append(message.value().decode())
    finally:
        consumer.close()
    return found


async def read_with_penstock(bootstrap: str) -> dict[int, list[str]]:
    """Return the values by partition, read without a group."""
    found: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
    async with PenstockConsumer(bootstrap, offset_reset="earliest") as consumer, asyncio.timeout(LIMIT_S):
        consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])
        while sum(map(len, found.values())) < RECORDS:
            for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                for record in records:
                    check_time(record.timestamp_ms)
                    found[partition.partition].append((record.value or b"").decode())
    return found


def test_each_record_is_delivered_in_order_and_none_early_although_leaders_die(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {"delivery.delay.ms": str(DELAY_MS), "min.insync.replicas": "2"}
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=settings)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    expected: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
    for number in range(RECORDS):
        partition = number % PARTITIONS
        producer.produce(TOPIC, f"record-{number}", partition=partition)
        expected[partition].append(f"record-{number}")
        if number == RECORDS // 2:
            assert producer.flush(LIMIT_S) == 0
            leader = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader
            cluster.brokers[leader].kill()
    assert producer.flush(LIMIT_S) == 0
    cluster.start(leader)
    assert read_with_librdkafka(cluster.bootstrap) == expected
    assert asyncio.run(read_with_penstock(cluster.bootstrap)) == expected
