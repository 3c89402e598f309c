"""Other projects' clients under quotas of a real broker: they honour the throttle times and lose nothing."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import confluent_kafka
import kafka
import pytest
from node_kit import Process

from penstock.client import Admin, Consumer, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COUNT, SIZE = 60, 10_000
RATE = 150_000
"""The quota in bytes per second: with two complete windows, half of the records are sent before the first pause."""
DEADLINE_S = 60.0


@dataclass
class LimitedBroker:
    process: Process

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.process.port}"

    def limit(self, client_id: str, **quotas: float) -> None:
        async def alter() -> None:
            async with Admin(self.address) as admin:
                await admin.alter_client_quotas([({"client-id": client_id}, quotas)])

        asyncio.run(alter())

    def fill(self) -> None:
        async def produce() -> None:
            async with Producer(self.address, batch_size=SIZE) as producer:
                for number in range(COUNT):
                    await producer.send("t", value(number))

        asyncio.run(produce())

    def values(self) -> list[bytes]:
        async def consume() -> list[bytes]:
            found: list[bytes] = []
            async with Consumer(self.address) as consumer:
                consumer.assign([TopicPartition("t", 0)])
                consumer.seek(TopicPartition("t", 0), 0)
                async with asyncio.timeout(DEADLINE_S):
                    while len(found) < COUNT:
                        found.append((await consumer.getone()).value or b"")
            return found

        return asyncio.run(consume())

    def metric(self, name: str, quota: str) -> float:
        url = f"http://127.0.0.1:{self.process.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
            lines = response.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith(f'{name}{{quota="{quota}"}}')]
        return float(line.rpartition(" ")[2])


def value(number: int) -> bytes:
    return b"%06d" % number + bytes(SIZE - 6)


def longest_throttle_ms(metrics: dict[str, dict[str, float]]) -> float:
    """Return kafka-python's measurement of the throttle times in responses."""
    return max(group["throttle-time-max"] for group in metrics.values() if "throttle-time-max" in group)


@pytest.fixture
def limited(up: Callable[..., Process]) -> LimitedBroker:
    listen = ("--port", "0", "--http-port", "0")
    broker = LimitedBroker(up("--set", "quota.window.num=3", "--set", "num.partitions=1", listen=listen))

    async def create() -> None:
        async with Admin(broker.address) as admin:
            await admin.create_topics([NewTopic("t", 1)])

    asyncio.run(create())
    return broker


def test_producers_of_librdkafka_and_kafka_python_are_held_to_their_rate(limited: LimitedBroker) -> None:
    limited.limit("noisy", producer_byte_rate=RATE)
    told: list[float] = []
    config = {
        "bootstrap.servers": limited.address,
        "client.id": "noisy",
        "batch.size": SIZE,
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    rdkafka = confluent_kafka.Producer(config)
    for number in range(COUNT):
        rdkafka.produce("t", value(number))
    assert rdkafka.flush(DEADLINE_S) == 0
    assert max(told) > 0
    assert limited.values() == [value(number) for number in range(COUNT)]
    throttles = limited.metric("penstock_quota_throttles_total", "producer_byte_rate")
    assert throttles >= 1
    python = kafka.KafkaProducer(bootstrap_servers=limited.address, client_id="noisy", batch_size=SIZE)
    for number in range(COUNT):
        python.send("t", value(number))
    python.flush(DEADLINE_S)
    assert longest_throttle_ms(python.metrics()) > 0
    python.close()
    assert limited.metric("penstock_quota_throttles_total", "producer_byte_rate") > throttles
    assert limited.metric("penstock_quota_throttle_seconds_total", "consumer_byte_rate") == 0


def test_consumers_of_librdkafka_and_kafka_python_are_held_to_their_rate(limited: LimitedBroker) -> None:
    limited.fill()
    limited.limit("noisy", consumer_byte_rate=RATE)
    told: list[float] = []
    config = {
        "bootstrap.servers": limited.address,
        "client.id": "noisy",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    rdkafka = confluent_kafka.Consumer(config)
    rdkafka.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    while len(found) < COUNT:
        message = rdkafka.poll(DEADLINE_S)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message.value())
    rdkafka.close()
    assert found == [value(number) for number in range(COUNT)]
    assert max(told) > 0
    python = kafka.KafkaConsumer(bootstrap_servers=limited.address, client_id="noisy", auto_offset_reset="earliest")
    python.assign([kafka.TopicPartition("t", 0)])
    assert [next(python).value for _ in range(COUNT)] == found
    assert longest_throttle_ms(python.metrics()) > 0
    python.close()
    assert limited.metric("penstock_quota_throttles_total", "consumer_byte_rate") >= 2


def test_the_own_client_under_all_quotas_loses_nothing(limited: LimitedBroker) -> None:
    limited.limit("penstock-producer", producer_byte_rate=RATE, request_percentage=50)
    limited.limit("penstock-consumer", consumer_byte_rate=RATE, request_percentage=50)
    limited.fill()
    assert limited.values() == [value(number) for number in range(COUNT)]
    assert limited.metric("penstock_quota_throttles_total", "producer_byte_rate") >= 1
    assert limited.metric("penstock_quota_throttles_total", "consumer_byte_rate") >= 1
