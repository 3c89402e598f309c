"""librdkafka's transactions with three brokers and an etcd, whose coordinators are killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cluster_processes import running
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from processes_kit import Brokers

from penstock.client import Admin
from penstock.client import Producer as AsyncProducer
from penstock.client import TopicPartition as ClientPartition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PARTITIONS = 3
CLIENT_S = 40
"""Timeout of a client's call."""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with running(Brokers(tmp_path)) as made:
        yield made


def read(brokers: Brokers, topic: str) -> list[int]:
    """Return all committed numbers, in order per partition."""
    settings = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "auto.offset.reset": "earliest", **settings})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
    left = set(found)
    try:
        while left:
            message = consumer.poll(CLIENT_S)
            assert message is not None, f"{topic} could not be read to its end"
            if not message.error():
                found[message.partition()].append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    finally:
        consumer.close()
    for numbers in found.values():
        assert numbers == sorted(numbers), f"{topic} is out of order"
    return [number for numbers in found.values() for number in numbers]


class Work(threading.Thread):
    """A thread that runs `work`, again after each Kafka error; `done` counts the committed records."""

    def __init__(self, work: Callable[[Work], bool]) -> None:
        super().__init__(daemon=True)
        self.work, self.done = work, 0
        self.errors: list[str] = []

    def run(self) -> None:
        while True:
            try:
                if self.work(self):
                    return
            except KafkaException as e:
                self.errors.append(str(e))

    def reaches(self, done: int) -> None:
        deadline_s = time.monotonic() + 2 * CLIENT_S
        while self.done < done and self.is_alive():
            assert time.monotonic() < deadline_s, f"{self.done} of {done}; {self.errors[-5:]}"
            time.sleep(0.01)

    def ends(self) -> None:
        self.join(3 * CLIENT_S)
        assert not self.is_alive(), f"{self.done} so far; {self.errors[-5:]}"


def copy_with_librdkafka(brokers: Brokers, transactional_id: str, count: int) -> Callable[[Work], bool]:
    """Copy topic `in` to `out` in transactions that also commit the offsets."""

    def work(self: Work) -> bool:
        consumer = Consumer(
            {
                "bootstrap.servers": brokers.bootstrap,
                "group.id": "copy",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
            }
        )
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": 10_000}
        producer = Producer({"bootstrap.servers": brokers.bootstrap, **settings})
        try:
            producer.init_transactions(CLIENT_S)
            consumer.subscribe(["in"])
            while True:
                taken = [message for message in consumer.consume(10, 1.0) if not message.error()]
                if not taken:
                    places = [TopicPartition("in", index) for index in range(PARTITIONS)]
                    if sum(p.offset for p in consumer.committed(places, CLIENT_S)) == count:
                        return True
                    continue
                producer.begin_transaction()
                for message in taken:
                    producer.produce("out", message.value(), partition=message.partition())
                places = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), CLIENT_S)
                producer.commit_transaction(CLIENT_S)
                self.done += len(taken)
        finally:
            consumer.close()

    return work


def filled(brokers: Brokers, count: int) -> None:
    brokers.create("in", "out", partitions=PARTITIONS)
    source = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
    for number in range(count):
        source.produce("in", b"%d" % number, partition=number % PARTITIONS)
    assert source.flush(CLIENT_S) == 0


def kill_and_go_on(brokers: Brokers, work: Work, victim: int) -> None:
    brokers.brokers[victim].kill()
    work.reaches(work.done + 30)
    brokers.start(victim)


def test_a_loop_of_librdkafka_copies_exactly_once_while_the_coordinators_of_its_transactions_are_killed(
    brokers: Brokers,
) -> None:
    """The test does not kill the group's coordinator: librdkafka 2.16 hangs once that broker has left the metadata
    (issue 5511)."""
    filled(brokers, 600)
    spared = brokers.coordinator("copy")
    transactional_id = next(f"copier {n}" for n in range(100) if brokers.coordinator(f"copier {n}") != spared)
    copier = Work(copy_with_librdkafka(brokers, transactional_id, 600))
    copier.start()
    killed = 0
    for goal in (100, 250, 400):
        copier.reaches(goal)
        victim = brokers.coordinator(transactional_id)
        if victim != brokers.coordinator("copy"):
            kill_and_go_on(brokers, copier, victim)
            killed += 1
    copier.ends()
    assert killed
    assert Counter(read(brokers, "out")) == Counter(range(600))


def pairs(brokers: Brokers, count: int, outcomes: dict[int, bool | None]) -> Callable[[Work], bool]:
    """Write each number to two topics in a transaction; abort every third. `outcomes` has the client's result, None if
    unknown."""

    def work(self: Work) -> bool:
        settings = {"transactional.id": "pairs", "transaction.timeout.ms": 10_000}
        producer = Producer({"bootstrap.servers": brokers.bootstrap, **settings})
        producer.init_transactions(CLIENT_S)
        while self.done < count:
            number = len(outcomes)
            producer.begin_transaction()
            outcomes[number] = None
            for topic in ("one", "two"):
                producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
            if number % 3 == 2:
                producer.flush(CLIENT_S)
                producer.abort_transaction(CLIENT_S)
            else:
                producer.commit_transaction(CLIENT_S)
            outcomes[number] = number % 3 != 2
            self.done += 1
        return True

    return work


def pairs_of_own_producer(brokers: Brokers, count: int, outcomes: dict[int, bool | None]) -> Callable[[Work], bool]:
    """As `pairs`, with the project's client; each transaction also commits an offset of the group "pairs"."""

    async def write(self: Work) -> None:
        async with AsyncProducer(
            brokers.bootstrap, transactional_id="pairs", transaction_timeout_ms=10_000, request_timeout_ms=5_000
        ) as producer:
            while self.done < count:
                number = len(outcomes)
                outcomes[number] = None
                with suppress(Aborted):
                    async with producer.transaction():
                        for topic in ("one", "two"):
                            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
                        await producer.send_offsets({ClientPartition("one", 0): number + 1}, "pairs")
                        if number % 3 == 2:
                            await producer.flush()
                            raise Aborted
                outcomes[number] = number % 3 != 2
                self.done += 1

    def work(self: Work) -> bool:
        asyncio.run(write(self))
        return True

    return work


class Aborted(Exception):
    """Raised in a transaction to abort it."""


def test_the_projects_own_producer_goes_on_in_whole_transactions_while_coordinators_are_killed(
    brokers: Brokers,
) -> None:
    brokers.create("one", "two", partitions=PARTITIONS)
    outcomes: dict[int, bool | None] = {}
    writer = Work(pairs_of_own_producer(brokers, 300, outcomes))
    writer.start()
    for goal in (60, 120, 180):
        writer.reaches(goal)
        kill_and_go_on(brokers, writer, brokers.coordinator("pairs"))
    writer.ends()
    assert None not in outcomes.values(), "a failed broker costs time, no transaction"
    one, two = read(brokers, "one"), read(brokers, "two")
    assert sorted(one) == sorted(two) == [number for number in range(len(outcomes)) if outcomes[number]]
    assert asyncio.run(committed_offset(brokers)) == one_after_the_last(outcomes)


async def committed_offset(brokers: Brokers) -> int:
    async with Admin(brokers.bootstrap) as admin:
        return (await admin.committed_many(["pairs"]))["pairs"][ClientPartition("one", 0)].offset  # type: ignore[index, union-attr]


def one_after_the_last(outcomes: dict[int, bool | None]) -> int:
    return max(number for number, committed in outcomes.items() if committed) + 1


def test_transactions_are_whole_while_coordinators_are_killed_in_the_middle_of_commits(brokers: Brokers) -> None:
    brokers.create("one", "two", partitions=PARTITIONS)
    outcomes: dict[int, bool | None] = {}
    writer = Work(pairs(brokers, 600, outcomes))
    writer.start()
    for goal in (100, 250, 400):
        writer.reaches(goal)
        kill_and_go_on(brokers, writer, brokers.coordinator("pairs"))
    writer.ends()
    one, two = read(brokers, "one"), read(brokers, "two")
    assert sorted(one) == sorted(two), "half of a transaction is visible"
    assert len(set(one)) == len(one), "something is there twice"
    told = {number for number, committed in outcomes.items() if committed}
    unknown = {number for number, committed in outcomes.items() if committed is None}
    assert told <= set(one) <= told | unknown
