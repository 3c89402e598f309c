"""A broker with a full disk rejects new records, keeps acknowledged ones, and recovers when space is freed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from penstock_crash import reading
from penstock_crash.broker import DEADLINE_S, Broker
from penstock_crash.load import FAST_RECONNECT
from penstock_crash.small_disk import SmallDisk

DISK_BYTES = 24 << 20
ROOM_BYTES = 3 << 20
BURST = 20
RECORD_BYTES = 10_000
TOPIC = "full"

MakeBroker = Callable[..., Broker]


@pytest.fixture
def disk(home: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(home / "disk", DISK_BYTES)
    yield made
    made.clean_up()


@pytest.fixture
def broker(disk: SmallDisk, make_broker: MakeBroker) -> Broker:
    """A broker with little free space on its disk, and a topic."""
    made = make_broker(prefix=disk.prefix, data=disk.path / "data")
    made.start()
    reading.create_topic(made.bootstrap, TOPIC, 1)
    disk.fill(leave_bytes=ROOM_BYTES)
    return made


class Client:
    """A producer without retries that records its acknowledgements."""

    def __init__(self, broker: Broker) -> None:
        self.acknowledged: dict[int, str] = {}
        """Key by offset."""
        self.count = 0
        config: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "acks": "all", "retries": 0, "linger.ms": 0}
        self.producer = Producer(config | FAST_RECONNECT | {"batch.num.messages": 4})

    def send(self) -> list[int]:
        """Send a burst of records; return the error codes."""
        errors = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error.code())
                return
            offset, key = message.offset(), message.key()
            assert offset is not None
            assert offset not in self.acknowledged, f"offset {offset} was acknowledged twice"
            assert isinstance(key, bytes)
            self.acknowledged[offset] = key.decode()

        for _ in range(BURST):
            self.producer.produce(TOPIC, bytes(RECORD_BYTES), str(self.count), on_delivery=delivered)
            self.count += 1
        assert self.producer.flush(DEADLINE_S) == 0, "not all records were answered"
        return errors

    def send_until(self, condition: Callable[[list[int]], bool]) -> list[int]:
        deadline = time.monotonic() + DEADLINE_S
        while not condition(errors := self.send()):
            assert time.monotonic() < deadline, f"answered until the deadline: {errors}"
        return errors


def refused(errors: list[int]) -> bool:
    """Whether the whole burst was rejected."""
    return len(errors) == BURST


def accepted(errors: list[int]) -> bool:
    return not errors


def check_readable(broker: Broker, client: Client) -> None:
    """Assert that everything acknowledged is readable and that the offsets have no gaps."""
    content = reading.read_all(broker.bootstrap, TOPIC, 1)[0]
    assert [record.offset for record in content.records] == list(range(content.end))
    found = {record.offset: record.key for record in content.records}
    assert {offset: found.get(offset) for offset in client.acknowledged} == client.acknowledged


def test_a_full_disk_refuses_records_as_a_storage_error_and_keeps_what_was_acknowledged(broker: Broker) -> None:
    client = Client(broker)
    errors = client.send_until(refused)
    assert set(errors) == {KafkaError.KAFKA_STORAGE_ERROR}
    assert client.acknowledged, "there was room for some records"
    check_readable(broker, client)
    check_readable(broker, client)


def test_a_broker_takes_records_again_when_space_returns(broker: Broker, disk: SmallDisk) -> None:
    client = Client(broker)
    pid = broker.pid
    for _ in range(2):
        client.send_until(refused)
        disk.give_back()
        before = len(client.acknowledged)
        client.send_until(accepted)
        assert len(client.acknowledged) >= before + BURST
        check_readable(broker, client)
        disk.fill(leave_bytes=ROOM_BYTES // 2)
    broker.check_alive()
    assert broker.pid == pid


def test_another_partition_that_rolls_onto_a_full_disk_is_refused_and_recovers(broker: Broker, disk: SmallDisk) -> None:
    """A first record needs a directory and files; a failure must not leave a part of them."""
    reading.create_topic(broker.bootstrap, "untouched", 1)
    client = Client(broker)
    client.send_until(refused)
    disk.fill()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "retries": 0} | FAST_RECONNECT)
    answers: list[int] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        answers.append(0 if error is None else error.code())

    producer.produce("untouched", bytes(RECORD_BYTES), on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    assert answers == [KafkaError.KAFKA_STORAGE_ERROR]
    disk.give_back()
    producer.produce("untouched", b"later", on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    assert answers[1:] == [0]
    values = [record.value for record in reading.read_all(broker.bootstrap, "untouched", 1)[0].records]
    assert values == [b"later"]


def test_offsets_committed_before_stay_and_can_be_committed_again_when_space_returns(
    broker: Broker, disk: SmallDisk
) -> None:
    client = Client(broker)
    assert client.send() == []
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"} | FAST_RECONNECT)
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    client.send_until(refused)
    disk.fill()
    highest = 7
    for offset in range(8, 200):
        try:
            answer = consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
        except KafkaException:
            break
        if answer[0].error is not None:
            break
        highest = offset
    assert reading.committed(broker.bootstrap, "g", TOPIC, 1)[0] in (highest, highest + 1)
    disk.give_back()
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 500)], asynchronous=False)
    consumer.close()
    assert reading.committed(broker.bootstrap, "g", TOPIC, 1) == {0: 500}


def test_a_broker_killed_on_a_full_disk_has_everything_acknowledged_when_it_is_back(
    broker: Broker, disk: SmallDisk
) -> None:
    client = Client(broker)
    client.send_until(refused)
    disk.fill()
    broker.kill()
    disk.give_back()
    broker.start()
    check_readable(broker, client)
    client.send_until(accepted)
    check_readable(broker, client)
