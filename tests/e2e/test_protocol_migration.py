"""Groups with members of both protocols (KIP-848, online migration), which roll from one to the other and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from penstock_e2e.model import MakeTopic, eventually

PARTITIONS = 4
CLASSIC_ASSIGNORS = ("range", "cooperative-sticky")


class LibrdkafkaMember:
    """A consumer of librdkafka, with either protocol."""

    def __init__(self, bootstrap: str, topic: str, protocol: str, assignor: str) -> None:
        config: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if protocol == "classic":
            config |= {"partition.assignment.strategy": assignor, "heartbeat.interval.ms": 200}
        self.consumer = Consumer(config)
        self.consumer.subscribe([topic])
        self.read: list[tuple[int, int]] = []

    def poll(self) -> set[int]:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.read.append((message.partition(), message.offset()))
            self.consumer.commit(message, asynchronous=False)
        return {tp.partition for tp in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


class KafkaPythonMember:
    """A classic consumer of kafka-python."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )
        # As group leader, kafka-python 3.0.12 assigns nothing of a topic that it does not know.
        eventually("metadata of the topic", lambda: self.consumer.partitions_for_topic(topic))
        self.read: list[tuple[int, int]] = []

    def poll(self) -> set[int]:
        for records in self.consumer.poll(500, max_records=1).values():
            self.read += [(record.partition, record.offset) for record in records]
            self.consumer.commit()
        return {tp.partition for tp in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


Member = LibrdkafkaMember | KafkaPythonMember


@pytest.fixture
def members() -> Iterator[list[Member]]:
    found: list[Member] = []
    yield found
    for member in found:
        with suppress(RuntimeError):
            member.close()


def share(*members: Member) -> Callable[[], bool]:
    """Return a predicate: the members have all partitions, each of them once, and each has at least one."""

    def holds() -> bool:
        shares = [member.poll() for member in members]
        return all(shares) and sorted(p for each in shares for p in each) == list(range(PARTITIONS))

    return holds


def produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(40):
        producer.produce(topic, b"v", partition=number % PARTITIONS)
    producer.flush()


def type_of_group(bootstrap: str, group: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its results need it
    return admin.describe_consumer_groups([group])[group].result().type


@pytest.mark.parametrize("first", [*CLASSIC_ASSIGNORS, "kafka-python"])
def test_a_group_rolls_to_the_consumer_protocol_and_back(
    bootstrap: str, make_topic: MakeTopic, members: list[Member], first: str
) -> None:
    topic = make_topic(PARTITIONS)

    def classic() -> Member:
        is_python = first == "kafka-python"
        made: Member
        made = (
            KafkaPythonMember(bootstrap, topic) if is_python else LibrdkafkaMember(bootstrap, topic, "classic", first)
        )
        members.append(made)
        return made

    def modern() -> Member:
        members.append(LibrdkafkaMember(bootstrap, topic, "consumer", ""))
        return members[-1]

    def leave(member: Member) -> None:
        members.remove(member)
        member.close()

    one = classic()
    eventually("the classic member has all", share(one))
    two = modern()
    eventually("both share", share(one, two))
    assert type_of_group(bootstrap, topic) is ConsumerGroupType.CONSUMER
    produce(bootstrap, topic)
    eventually("both read", lambda: share(one, two)() and len(set(one.read + two.read)) == 40)
    leave(one)
    eventually("the modern member has all", share(two))
    three = classic()
    eventually("a classic member joins again", share(two, three))
    produce(bootstrap, topic)
    eventually("both read again", lambda: share(two, three)() and len(set(one.read + two.read + three.read)) == 80)
    leave(two)
    eventually("the classic member has all again", share(three))
    assert type_of_group(bootstrap, topic) is ConsumerGroupType.CLASSIC
    assert sorted(one.read + two.read + three.read) == [(p, n) for p in range(PARTITIONS) for n in range(20)]
