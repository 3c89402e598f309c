"""Topics for tests: managed with the admin client, filled with confluent-kafka, an independent client."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaError, Message, Producer

from penstock.client import Admin, BrokerError, NewTopic, TopicPartition, UnknownTopic

T = TypeVar("T")
MakeTopic = Callable[..., str]
"""Type of the fixture `topic`: `topic(partitions=1, config=None)` creates a topic and returns its name."""
DEADLINE_S = 180.0


class Rec(NamedTuple):
    """A record to write. Without a partition, murmur2 of the key decides; without a time, the clock."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def ask_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run a coroutine with an admin client: `ask_admin(address, lambda a: a.delete_topics(["x"]))`."""

    async def run() -> T:
        async with Admin(bootstrap, client_id="penstock-spark-tests") as admin:
            return await work(admin)

    return asyncio.run(run())


def eventually(what: str, holds: Callable[[], bool]) -> None:
    """Wait until the condition holds: the end of a transaction is visible a moment after it is acknowledged."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S:.0f} s: {what}"
        time.sleep(0.02)


def make_topic(
    bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replicas: int = -1
) -> None:
    """Create a topic and wait until each partition has a leader."""
    deadline_s = time.monotonic() + DEADLINE_S

    async def make(admin: Admin) -> None:
        new = NewTopic(name, partitions, replication_factor=replicas, configs=dict(config or {}))
        await admin.create_topics([new])
        while True:
            with contextlib.suppress(BrokerError, UnknownTopic):
                info = (await admin.describe_topics([name]))[name]
                leaders = [p.leader for p in info.partitions.values()]
                if len(leaders) == partitions and min(leaders) >= 0:
                    return
            assert time.monotonic() < deadline_s, f"topic {name} has no leaders"
            await asyncio.sleep(0.02)

    ask_admin(bootstrap, make)


def delete_topic(bootstrap: str, name: str) -> None:
    ask_admin(bootstrap, lambda admin: admin.delete_topics([name]))


def add_partitions(bootstrap: str, name: str, total: int) -> None:
    ask_admin(bootstrap, lambda admin: admin.create_partitions({name: total}))


def delete_records(bootstrap: str, topic: str, before: Mapping[int, int]) -> None:
    """Delete the records before an offset by partition, as retention would."""
    wanted = {TopicPartition(topic, partition): offset for partition, offset in before.items()}
    ask_admin(bootstrap, lambda admin: admin.delete_records(wanted))


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Rec | bytes],
    *,
    compression: str = "none",
    config: Mapping[str, str | int | float] | None = None,
    transactional_id: str | None = None,
    commit: bool = True,
) -> list[tuple[int, int]]:
    """Write records (bytes: values) in order. Return (partition, offset) of each once all are acknowledged.

    With a `transactional_id` they form one transaction, which is aborted unless `commit`. `config` are librdkafka's
    settings, such as `batch.num.messages`.
    """
    settings: dict[str, str | int | float] = {
        "bootstrap.servers": bootstrap,
        "compression.type": compression,
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "queue.buffering.max.messages": 2_000_000,
        **(config or {}),
    }
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    producer = Producer(settings)
    if transactional_id is not None:
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
    places: dict[int, tuple[int, int]] = {}
    failures: list[KafkaError] = []

    def delivered(number: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                places[number] = (message.partition() or 0, message.offset() or 0)

        return note

    count = 0
    for number, given in enumerate(records):
        record = given if isinstance(given, Rec) else Rec(given)
        more: dict[str, int] = {}
        if record.partition is not None:
            more["partition"] = record.partition
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        headers = list(record.headers) or None
        producer.produce(topic, record.value, record.key, on_delivery=delivered(number), headers=headers, **more)
        count = number + 1
        if count % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(DEADLINE_S)
    assert not left, f"{left} records were not acknowledged"
    assert not failures, failures[0]
    if transactional_id is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
    return [places[number] for number in range(count)]
