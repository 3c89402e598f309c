"""Producers and consumers that run while a topic gets fewer partitions, and the check of what was received."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer

from penstock.client import Admin, ClientError, TopicShrink
from penstock.client import Producer as PenstockProducer

KEYS = 40
LIMIT_S = 240.0
PAUSE_S = 0.002
MAX_PARTS = 2
"""Ordered sequences of a writer and a key in a partition: relayed values can come behind later ones that the writer
sends there."""

Place = tuple[int, int]
"""Partition and offset."""


class Writer(Protocol):
    """A producer in a thread; `acknowledged` are its values such as `name/key/number`."""

    acknowledged: list[str]

    def stop(self) -> None:
        """Stop, and return once all values are acknowledged."""


class Reader(Protocol):
    """A consumer that runs; `found` are the values that it has received."""

    found: dict[Place, str]


class LibrdkafkaWriter:
    """An idempotent librdkafka producer."""

    def __init__(self, name: str, bootstrap: str, topic: str, **settings: object) -> None:
        self.name, self.topic = name, topic
        self.acknowledged: list[str] = []
        self.errors: list[KafkaError] = []
        defaults = {"enable.idempotence": True, "linger.ms": 5, "topic.metadata.refresh.interval.ms": 3_000}
        self.producer = Producer({"bootstrap.servers": bootstrap} | defaults | settings)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            key = str(number % KEYS)
            self.producer.produce(self.topic, f"{self.name}/{key}/{number}", key, on_delivery=self.on_delivery)
            self.producer.poll(PAUSE_S)
            number += 1

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        self.acknowledged.append(message.value().decode())

    def wait_for_more(self) -> None:
        """Wait until 1,000 more values are acknowledged."""
        wanted = len(self.acknowledged) + 1_000
        wait_for("more is acknowledged", lambda: len(self.acknowledged) > wanted)

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()
        assert self.producer.flush(LIMIT_S) == 0
        assert not self.errors, self.errors[:3]


class PenstockWriter:
    """An idempotent producer of penstock.client."""

    def __init__(self, name: str, bootstrap: str, topic: str) -> None:
        self.name, self.bootstrap, self.topic = name, bootstrap, topic
        self.acknowledged: list[str] = []
        self.error: BaseException | None = None
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            asyncio.run(self.write())
        except ClientError as e:
            self.error = e

    async def write(self) -> None:
        async with PenstockProducer(self.bootstrap, metadata_max_age_ms=3_000) as producer:
            sent: list[tuple[str, Awaitable[object]]] = []
            number = 0
            while not self.stopped.is_set():
                key = str(number % KEYS)
                value = f"{self.name}/{key}/{number}"
                sent.append((value, await producer.send(self.topic, value.encode(), key=key.encode())))
                await asyncio.sleep(PAUSE_S)
                number += 1
            await producer.flush()
            for value, delivery in sent:
                await delivery
                self.acknowledged.append(value)

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()
        assert self.error is None, self.error


class GroupReader:
    """A librdkafka consumer of a group in a thread."""

    def __init__(self, group: str, bootstrap: str, topic: str, **settings: object) -> None:
        defaults = {
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "topic.metadata.refresh.interval.ms": 3_000,
        }
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group} | defaults | settings)
        self.consumer.subscribe([topic])
        self.found: dict[Place, str] = {}
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stopped.is_set():
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.found[message.partition(), message.offset()] = message.value().decode()
        self.consumer.close()

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.1)


def admin_call(bootstrap: str, call: Callable[[Admin], Awaitable[object]]) -> object:
    """Return the result of one call of an admin client."""

    async def run() -> object:
        async with Admin(bootstrap) as admin:
            return await call(admin)

    return asyncio.run(run())


def set_partitions(bootstrap: str, topic: str, count: int) -> None:
    admin_call(bootstrap, lambda admin: admin.create_partitions({topic: count}, may_shrink=True))


def shrink_of(bootstrap: str, topic: str) -> TopicShrink | None:
    found = admin_call(bootstrap, lambda admin: admin.shrinks([topic]))
    assert isinstance(found, dict)
    return found[topic]


def wait_for_state(bootstrap: str, topic: str, state: str) -> TopicShrink:
    """Wait until a topic's shrink is in a state."""
    found: list[TopicShrink] = []

    def has_state() -> bool:
        shrink = shrink_of(bootstrap, topic)
        if shrink is not None and shrink.state == state:
            found.append(shrink)
        return bool(found)

    wait_for(f"{topic} is {state}, not {shrink_of(bootstrap, topic)}", has_state)
    return found[0]


def check_received(writers: Iterable[Writer], found: dict[Place, str]) -> None:
    """Check that each acknowledged value was received exactly once, and those of a writer and a key in order within
    each part of a partition: relayed ones, and those that the writer has sent there."""
    counts = Counter(found.values())
    acknowledged = [value for writer in writers for value in writer.acknowledged]
    missing = [value for value in acknowledged if not counts[value]]
    repeated = [value for value, count in counts.items() if count > 1]
    assert not missing, f"{len(missing)} of {len(acknowledged)} values are lost: {missing[:5]}"
    assert not repeated, f"{len(repeated)} values came more than once: {repeated[:5]}"
    ends: dict[tuple[int, str], list[int]] = defaultdict(list)
    for (partition, _), value in sorted(found.items()):
        stream, _, number = value.rpartition("/")
        parts = ends[partition, stream]
        before = [end for end in parts if end < int(number)]
        if before:
            parts.remove(max(before))
        parts.append(int(number))
        assert len(parts) <= MAX_PARTS, f"{value} is out of order in partition {partition}"


def wait_until_received(writers: Iterable[Writer], readers: Iterable[Reader]) -> dict[Place, str]:
    """Wait until the readers, as one group, have received all acknowledged values; return what they received."""
    acknowledged = {value for writer in writers for value in writer.acknowledged}
    found: dict[Place, str] = {}

    def has_all() -> bool:
        for reader in readers:
            found.update(reader.found.copy())
        return acknowledged <= set(found.values())

    wait_for("all acknowledged values are received", has_all)
    return found
