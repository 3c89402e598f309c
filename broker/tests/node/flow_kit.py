"""Clients that produce to a topic and read it as a group while it gets fewer partitions: kafka-python, aiokafka, and
programs in other languages. `tests/java` and `tests/go` use it too."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer
from shrink_kit import (
    KEYS,
    LIMIT_S,
    Place,
    Writer,
    check_received,
    set_partitions,
    wait_for,
    wait_for_state,
    wait_until_received,
)

PARTITIONS, REMAINING = 8, 3
PAUSE_S = 0.004
STARTED = 100
"""Received records from which a client counts as running."""
METADATA_AGE_MS = 3_000
LINGER_MS = 100
"""Long enough for batches of several records: a sealed partition relays a limited number of batches a second."""
DELIVERY_TIMEOUT_MS, REQUEST_TIMEOUT_MS = 20_000, 10_000
END_LIMIT_S = 60
MAX_FAILED = 500
"""Failed records of a client: those of some batches that wait."""


class Flow(Writer, Protocol):
    """A producer and a consumer of one client on a topic. `found` are the received values; `failed` counts the errors
    that the producer reported for records, by name."""

    topic: str
    found: dict[Place, str]
    failed: Counter[str]

    def stop(self) -> None:
        """Stop to produce; return once each record is acknowledged or failed."""

    def end(self) -> None:
        """Stop to consume."""


class KafkaPythonFlow:
    """An idempotent producer and a group consumer of kafka-python, in two threads."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: list[str] = []
        self.found: dict[Place, str] = {}
        self.failed: Counter[str] = Counter()
        self.stopped, self.ended = threading.Event(), threading.Event()
        servers = bootstrap.split(",")
        self.producer = KafkaProducer(
            bootstrap_servers=servers,
            linger_ms=LINGER_MS,
            metadata_max_age_ms=METADATA_AGE_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=topic,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        self.threads = [threading.Thread(target=target) for target in (self.write, self.read)]
        for thread in self.threads:
            thread.start()

    def write(self) -> None:
        number = 0
        while not self.stopped.wait(PAUSE_S):
            key = str(number % KEYS)
            value = f"w/{key}/{number}"
            sent = self.producer.send(self.topic, value.encode(), key=key.encode())
            sent.add_callback(lambda _, value=value: self.acknowledged.append(value))
            sent.add_errback(lambda error: self.failed.update([type(error).__name__]))
            number += 1

    def read(self) -> None:
        while not self.ended.is_set():
            for records in self.consumer.poll(timeout_ms=100).values():
                for record in records:
                    self.found[record.partition, record.offset] = record.value.decode()
        self.consumer.close()

    def stop(self) -> None:
        self.stopped.set()
        self.threads[0].join()
        self.producer.flush(END_LIMIT_S)

    def end(self) -> None:
        self.stop()
        self.ended.set()
        self.threads[1].join()
        self.producer.close(END_LIMIT_S)


class AiokafkaFlow:
    """An idempotent producer and a group consumer of aiokafka, in a thread with a loop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.acknowledged: list[str] = []
        self.found: dict[Place, str] = {}
        self.failed: Counter[str] = Counter()
        self.stopped, self.flushed, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()))
        self.thread.start()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.write())
                tasks.create_task(self.read())
        finally:
            self.flushed.set()

    async def write(self) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            metadata_max_age_ms=METADATA_AGE_MS,
            request_timeout_ms=DELIVERY_TIMEOUT_MS,
        ) as producer:
            number = 0
            sent: list[asyncio.Task[None]] = []
            while not self.stopped.is_set():
                key = str(number % KEYS)
                value = f"w/{key}/{number}"
                delivery = await producer.send(self.topic, value.encode(), key=key.encode())
                sent.append(asyncio.create_task(self.confirm(value, delivery)))
                await asyncio.sleep(PAUSE_S)
                number += 1
            await asyncio.gather(*sent)
        self.flushed.set()

    async def confirm(self, value: str, delivery: asyncio.Future[object]) -> None:
        (outcome,) = await asyncio.gather(delivery, return_exceptions=True)
        if isinstance(outcome, BaseException):
            self.failed[type(outcome).__name__] += 1
        else:
            self.acknowledged.append(value)

    async def read(self) -> None:
        async with AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            metadata_max_age_ms=METADATA_AGE_MS,
        ) as consumer:
            while not self.ended.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        self.found[record.partition, record.offset] = record.value.decode()

    def stop(self) -> None:
        self.stopped.set()
        assert self.flushed.wait(LIMIT_S)

    def end(self) -> None:
        self.stop()
        self.ended.set()
        self.thread.join()


class ProgramFlow:
    """A program that gets BOOTSTRAP and TOPIC, and writes lines: `acknowledged VALUE`, `failed ERROR`,
    `record PARTITION OFFSET VALUE`, and `stopped`, after the line `stop` on its standard input. It ends with its
    input."""

    def __init__(self, command: Sequence[str], bootstrap: str, topic: str, errors: Path) -> None:
        self.topic, self.errors = topic, errors
        self.acknowledged: list[str] = []
        self.found: dict[Place, str] = {}
        self.failed: Counter[str] = Counter()
        self.stopped = threading.Event()
        with errors.open("w") as log:
            self.process = subprocess.Popen(
                [*command, bootstrap, topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind == "acknowledged":
                self.acknowledged.append(rest)
            elif kind == "record":
                partition, offset, value = rest.split(" ")
                self.found[int(partition), int(offset)] = value
            elif kind == "failed":
                self.failed[rest] += 1
            elif kind == "stopped":
                self.stopped.set()
        self.stopped.set()

    def stop(self) -> None:
        if not self.stopped.is_set():
            assert self.process.stdin is not None
            self.process.stdin.write("stop\n")
            self.process.stdin.flush()
            assert self.stopped.wait(LIMIT_S), f"the program does not stop: {self.errors.read_text()[-2000:]}"

    def end(self) -> None:
        assert self.process.stdin is not None
        try:
            if self.process.poll() is None:
                self.stop()
            self.process.stdin.close()
            code = self.process.wait(END_LIMIT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.thread.join()
        assert code == 0, f"the program ended with {code}: {self.errors.read_text()[-2000:]}"


def shrink_while_running(bootstrap: str, flows: Sequence[Flow], errors: frozenset[str] = frozenset()) -> None:
    """Reduce the topics of the flows from `PARTITIONS` to `REMAINING` partitions, and check that each acknowledged
    record is received once and in the order of its key, before, during and after.

    `errors` are those that the clients may report, for records that wait while their partition is hidden.
    """
    for flow in flows:
        wait_for(f"{flow.topic} is read", lambda flow=flow: len(flow.found) > STARTED)
    for flow in flows:
        set_partitions(bootstrap, flow.topic, REMAINING)
    for flow in flows:
        wait_for_state(bootstrap, flow.topic, "retired")
    counts = [len(flow.acknowledged) for flow in flows]
    for flow, count in zip(flows, counts, strict=True):
        wait_for(f"{flow.topic} goes on", lambda flow=flow, count=count: len(flow.acknowledged) > count + STARTED)
    for flow in flows:
        flow.stop()
    for flow in flows:
        check_received([flow], wait_until_received([flow], [flow]))
        assert flow.failed.keys() <= errors, flow.failed
        assert flow.failed.total() <= MAX_FAILED, flow.failed
