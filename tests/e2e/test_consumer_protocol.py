"""Groups of KIP-848 (`group.protocol=consumer`) with librdkafka: two members share, and offsets stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from penstock_e2e.model import MakeTopic, eventually

RECORDS, PARTITIONS = 80, 8
MakeConsumer = Callable[..., Consumer]


@pytest.fixture
def make_consumer(bootstrap: str) -> Iterator[MakeConsumer]:
    made: list[Consumer] = []

    def make(group: str, *topics: str, **options: object) -> Consumer:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(config | {name.replace("_", "."): value for name, value in options.items()})
        consumer.subscribe(list(topics))
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def assigned(*consumers: Consumer) -> list[int]:
    """Poll, and return the numbers of partitions."""
    for consumer in consumers:
        consumer.poll(0.05)
    return sorted(len(consumer.assignment()) for consumer in consumers)


def test_members_share_the_partitions_and_the_last_one_gets_all(
    bootstrap: str, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    producer.flush()
    first = make_consumer(topic, topic)
    values: set[bytes] = set()

    def read() -> bool:
        message = first.poll(0.1)
        if message is not None and message.error() is None:
            values.add(message.value())
        return len(values) == RECORDS

    eventually("all records", read)
    first.commit(asynchronous=False)
    second = make_consumer(topic, f"^{topic}$", group_instance_id="two")
    eventually("a half each", lambda: assigned(first, second) == [PARTITIONS // 2] * 2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_consumer_groups([topic])[topic].result()
    assert (described.type, described.partition_assignor) == (ConsumerGroupType.CONSUMER, "uniform")
    assert {member.group_instance_id for member in described.members} == {None, "two"}
    first.close()
    eventually("all partitions", lambda: assigned(second) == [PARTITIONS])
    committed = second.committed([TopicPartition(topic, index) for index in range(PARTITIONS)])
    assert [each.offset for each in committed] == [RECORDS // PARTITIONS] * PARTITIONS
    described = admin.describe_consumer_groups([topic])[topic].result()
    assert described.state is ConsumerGroupState.STABLE
