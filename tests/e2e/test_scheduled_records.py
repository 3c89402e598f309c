"""Scheduled records: each client gets each record at its time, once, and notices nothing of the records that wait."""

from __future__ import annotations

import time

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from penstock_e2e.drivers import DRIVERS, clients
from penstock_e2e.model import Driver, ErrorCode, MakeTopic, Partition, Record, Refused, eventually

from penstock.client import Consumer as PenstockConsumer
from penstock.client.consumer import Isolation

SCHEDULED = {"delivery.schedule.enable": "true"}
DELAY_MS = 1_500
EXPECTED = ["plain", "end", "1", "2", "3", "4"]


def after(value: str, ms: int = DELAY_MS, key: bytes = b"k") -> Record:
    return Record(value.encode(), key, 0, (("penstock-deliver-after-ms", b"%d" % ms),))


RECORDS = [
    after("1"),
    after("2"),
    Record(b"plain", b"p", 0),
    after("3"),
    after("cancelled", key=b"c"),
    Record(b"", b"c", 0, (("penstock-cancel-scheduled", b""),)),
    after("4", DELAY_MS + 1),
    Record(b"end", b"p", 0),
]


@clients()
def test_records_are_delivered_at_their_time_and_the_others_at_once(client: Driver, make_topic: MakeTopic) -> None:
    topic = make_topic(1, SCHEDULED)
    begun_ms = time.time() * 1000
    client.produce(topic, RECORDS)
    now = client.read(Partition(topic, 0), "beginning", 2)
    assert [m.value for m in now] == [b"plain", b"end"]
    messages = client.read(Partition(topic, 0), "beginning", len(EXPECTED))
    assert time.time() * 1000 >= begun_ms + DELAY_MS
    assert [(m.value or b"").decode() for m in messages] == EXPECTED
    scheduled = [m for m in messages if m.key == b"k"]
    assert all(dict(m.headers)["penstock-scheduled-offset"].isdigit() for m in scheduled)


@clients("error-names")
def test_a_time_too_far_ahead_is_refused(client: Driver, make_topic: MakeTopic) -> None:
    topic = make_topic(1, SCHEDULED)
    with pytest.raises(Refused) as refused:
        client.produce(topic, [after("never", 31 * 86_400_000)])
    assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.fixture
def topic(bootstrap: str, make_topic: MakeTopic) -> str:
    """A topic with all records, some of which wait."""
    name = make_topic(1, SCHEDULED)
    DRIVERS["confluent"](bootstrap).produce(name, RECORDS)
    return name


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_librdkafka_in_a_group(bootstrap: str, topic: str, isolation: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": isolation, "check.crcs": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []

    def read_all() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            found.append(message.value().decode())
        return len(found) >= len(EXPECTED)

    try:
        eventually("all records to arrive", read_all)
        assert consumer.poll(0.5) is None
    finally:
        consumer.close()
    assert found == EXPECTED


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_kafka_python(bootstrap: str, topic: str, isolation: str) -> None:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, check_crcs=True)
    consumer.assign([KafkaPartition(topic, 0)])
    consumer.seek(KafkaPartition(topic, 0), 0)
    found: list[str] = []

    def read_all() -> bool:
        for batch in consumer.poll(timeout_ms=200).values():
            found.extend(message.value.decode() for message in batch)
        return len(found) >= len(EXPECTED)

    try:
        eventually("all records to arrive", read_all)
    finally:
        consumer.close()
    assert found == EXPECTED


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
async def test_aiokafka(bootstrap: str, topic: str, isolation: str) -> None:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest", check_crcs=True
    )
    await consumer.start()
    try:
        assert [(await consumer.getone()).value.decode() for _ in EXPECTED] == EXPECTED
    finally:
        await consumer.stop()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
async def test_penstock_client(bootstrap: str, topic: str, isolation: Isolation) -> None:
    async with PenstockConsumer(bootstrap, isolation=isolation, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found = []
        async for record in consumer:
            found.append((record.value or b"").decode())
            if len(found) == len(EXPECTED):
                break
    assert found == EXPECTED


def test_share_groups_get_each_record_at_its_time(bootstrap: str, topic: str) -> None:
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, topic, incremental_configs=[earliest])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([group])[group].result()
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    found: list[str] = []

    def read_all() -> bool:
        for message in consumer.poll(0.2):
            assert message.error() is None
            assert message.delivery_count() == 1
            found.append(message.value().decode())
        return len(found) >= len(EXPECTED)

    try:
        eventually("all records to arrive", read_all)
    finally:
        consumer.close()
    assert found == EXPECTED
