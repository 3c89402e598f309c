"""Produces keyed values and consumes them, with two clients at the same time, while a test changes the topic.

keyed.py SETTINGS TOPIC RATE    confluent-kafka and kafka-python each produce RATE values a second and consume those of
                                both in a group of their own, until standard input ends; print a JSON line when both
                                consumers have received values, and at the end one with `acknowledged`, `failures` and
                                `findings` by client

SETTINGS are librdkafka's, as JSON. A value is CLIENT/KEY/NUMBER. A finding is an acknowledged value that a consumer
has not received, one that it has received from two places, or one that is out of order in its key's partition. Requires
only the packages of the two clients, for client pods.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
import kafka
from kafka.errors import KafkaError
from load import Connection

KEYS = 40
TIMEOUT_S = 90.0
DELIVERY_TIMEOUT_MS = 60_000
METADATA_INTERVAL_MS = 2_000
MAX_PARTS = 2
"""Ordered sequences of a library and a key in a partition: while the number of partitions decreases, values that are
relayed there can come behind later ones that the producer sends there itself."""

Place = tuple[int, int]
"""Partition and offset."""


def settings_of_kafka_python(connection: Connection) -> dict[str, Any]:
    """Return the settings of kafka-python for those of librdkafka."""
    return {
        "bootstrap_servers": connection["bootstrap.servers"],
        "security_protocol": connection["security.protocol"],
        "sasl_mechanism": connection["sasl.mechanism"],
        "sasl_plain_username": connection["sasl.username"],
        "sasl_plain_password": connection["sasl.password"],
        "ssl_context": ssl.create_default_context(cadata=connection["ssl.ca.pem"]),
        "metadata_max_age_ms": METADATA_INTERVAL_MS,
    }


class KeyedProducer(threading.Thread, ABC):
    """Sends values until it is stopped."""

    def __init__(self, client: str, rate: float) -> None:
        super().__init__(daemon=True)
        self.client, self._rate = client, rate
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        sent, began = 0, time.monotonic()
        while not self.stopped.is_set():
            if sent < (time.monotonic() - began) * self._rate:
                key = str(sent % KEYS)
                self.send(key, f"{self.client}/{key}/{sent}")
                sent += 1
            else:
                self.poll()
        self.flush()

    @abstractmethod
    def send(self, key: str, value: str) -> None:
        """Send a value."""

    def poll(self) -> None:
        time.sleep(0.005)

    @abstractmethod
    def flush(self) -> None:
        """Wait until all values are acknowledged or have failed."""


class LibrdkafkaProducer(KeyedProducer):
    def __init__(self, connection: Connection, topic: str, rate: float) -> None:
        super().__init__("confluent-kafka", rate)
        self._topic = topic
        own = {
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "topic.metadata.refresh.interval.ms": METADATA_INTERVAL_MS,
        }
        self._producer = confluent_kafka.Producer({**connection, **own})

    def send(self, key: str, value: str) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self.on_delivery)
            except BufferError:  # the queue is full
                self._producer.poll(0.1)
            else:
                return

    def poll(self) -> None:
        self._producer.poll(0.005)

    def flush(self) -> None:
        self._producer.flush(TIMEOUT_S)

    def on_delivery(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged.append((message.value() or b"").decode())


class KafkaPythonProducer(KeyedProducer):
    def __init__(self, connection: Connection, topic: str, rate: float) -> None:
        super().__init__("kafka-python", rate)
        self._topic = topic
        self._producer = kafka.KafkaProducer(
            **settings_of_kafka_python(connection),
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=20_000,
        )

    def send(self, key: str, value: str) -> None:
        sent = self._producer.send(self._topic, value.encode(), key.encode())
        sent.add_callback(lambda _: self.acknowledged.append(value))
        sent.add_errback(lambda error: self.failures.append(str(error)))

    def flush(self) -> None:
        self._producer.flush(TIMEOUT_S)
        self._producer.close(10)


class KeyedConsumer(threading.Thread):
    """Reads values in a group until it is stopped."""

    def __init__(self, client: str) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.found: dict[Place, str] = {}
        self.stopped = threading.Event()


class LibrdkafkaConsumer(KeyedConsumer):
    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__("confluent-kafka")
        own = {
            "group.id": f"{topic}-confluent-kafka",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "topic.metadata.refresh.interval.ms": METADATA_INTERVAL_MS,
        }
        self._consumer = confluent_kafka.Consumer({**connection, **own})
        self._consumer.subscribe([topic])

    def run(self) -> None:
        while not self.stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.found[message.partition() or 0, message.offset() or 0] = (message.value() or b"").decode()
        self._consumer.close()


class KafkaPythonConsumer(KeyedConsumer):
    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__("kafka-python")
        self._consumer = kafka.KafkaConsumer(
            topic,
            **settings_of_kafka_python(connection),
            group_id=f"{topic}-kafka-python",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        )

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                polled = self._consumer.poll(100)
            except KafkaError:  # a broker restarts: the next call tries again
                continue
            for partition, records in polled.items():
                self.found |= {(partition.partition, record.offset): record.value.decode() for record in records}
        self._consumer.close()


def examine(acknowledged: Sequence[str], found: dict[Place, str]) -> list[str]:
    """Return what is wrong with the values that a consumer has received."""
    findings = []
    counts = Counter(found.values())
    if missing := [value for value in acknowledged if not counts[value]]:
        findings.append(f"{len(missing)} acknowledged values are lost: {missing[:5]}")
    if repeated := [value for value, count in counts.items() if count > 1]:
        findings.append(f"{len(repeated)} values are duplicates: {repeated[:5]}")
    ends: dict[tuple[int, str], list[int]] = defaultdict(list)
    for (partition, _), value in sorted(found.items()):
        stream, _, number = value.rpartition("/")
        parts = ends[partition, stream]
        if before := [end for end in parts if end < int(number)]:
            parts.remove(max(before))
        parts.append(int(number))
        if len(parts) > MAX_PARTS:
            findings.append(f"{value} is out of order in partition {partition}")
            break
    return findings


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return False after `TIMEOUT_S`."""
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def main(connection: Connection, topic: str, rate: float) -> int:
    consumers = [LibrdkafkaConsumer(connection, topic), KafkaPythonConsumer(connection, topic)]
    producers = [LibrdkafkaProducer(connection, topic, rate), KafkaPythonProducer(connection, topic, rate)]
    for thread in (*consumers, *producers):
        thread.start()
    wait_until(lambda: all(consumer.found for consumer in consumers))
    print(json.dumps({"begun": True}), flush=True)
    sys.stdin.read()
    for producer in producers:
        producer.stopped.set()
    for producer in producers:
        producer.join(TIMEOUT_S)
    acknowledged = [value for producer in producers for value in producer.acknowledged]
    wait_until(lambda: all(set(acknowledged) <= set(consumer.found.copy().values()) for consumer in consumers))
    for consumer in consumers:
        consumer.stopped.set()
    for consumer in consumers:
        consumer.join(30)
    summary = {
        "acknowledged": {producer.client: len(producer.acknowledged) for producer in producers},
        "failures": {producer.client: producer.failures[:20] for producer in producers},
        "findings": {consumer.client: examine(acknowledged, consumer.found) for consumer in consumers},
        "partitions": sorted({partition for consumer in consumers for partition, _ in consumer.found}),
    }
    print(json.dumps(summary), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
