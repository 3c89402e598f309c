"""The work queues of docs/guide/queues.md, with the commands and the clients that the guide uses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from node_kit import Client

pytestmark = pytest.mark.integration

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "queues.md"
DEADLINE_S = 60
Delivered = list[tuple[str, int]]


def examples(heading: str, language: str) -> list[str]:
    """Return the examples of a section, without those of its subsections."""
    section = re.split(r"\n##+ ", GUIDE.read_text().partition(f"\n## {heading}\n")[2])[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def run(port: int, *headings: str, **replaced: str) -> str:
    """Run the commands of sections, with other values of settings, and return their output."""
    commands = "".join(command for heading in headings for command in examples(heading, "sh"))
    for name, value in replaced.items():
        commands, count = re.subn(rf"({name.replace('_', '[.]')})=\d+", rf"\1={value}", commands)
        assert count == 1, name
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "PENSTOCK_BOOTSTRAP": f"127.0.0.1:{port}"}
    done = subprocess.run(
        ["bash", "-ec", commands], env=environment, check=True, timeout=DEADLINE_S, capture_output=True, text=True
    )
    return done.stdout


class Worker:
    """A member of the guide's group that acknowledges each record explicitly."""

    def __init__(self, port: int) -> None:
        config = {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "workers"}
        self.consumer = ShareConsumer(config | {"share.acknowledgement.mode": "explicit"})
        self.consumer.subscribe(["jobs"])
        self.held: dict[str, Message] = {}

    def receive(self, count: int) -> Delivered:
        """Return (value, delivery count) of the next records."""
        found: Delivered = []
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < deadline_s:
            for message in self.consumer.poll(0.5):
                assert message.error() is None, message.error()
                value = message.value().decode()
                self.held[value] = message
                found.append((value, message.delivery_count()))
        return sorted(found)

    def acknowledge(self, **types: AcknowledgeType) -> None:
        """Acknowledge records by their values, and wait until that is durable."""
        for value, ack_type in types.items():
            self.consumer.acknowledge(self.held.pop(value), ack_type)
        self.consumer.commit_sync()


def produce(port: int, **keys: str) -> None:
    """Produce a record with each value and its key to the first partition."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
    for value, key in keys.items():
        producer.produce("jobs", value.encode(), key.encode(), partition=0)
    assert producer.flush(DEADLINE_S) == 0


@pytest.mark.parametrize("example", [0, 1], ids=["confluent-kafka", "penstock"])
def test_the_guides_work_queue_delivers_each_job_once(up, example):
    broker = up()
    worker = examples("A work queue", "python")[example].replace("127.0.0.1:9092", f"127.0.0.1:{broker.port}")
    with Client(broker.port) as client:
        client.metadata("jobs")
        client.produce("jobs", b"a", b"b", b"c")
    run(broker.port, "A work queue", "Dead letters")
    process = subprocess.Popen([sys.executable, "-u", "-c", worker], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        with Client(broker.port) as client:
            client.produce("jobs", b"d")
        lines.append(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    assert lines == [f"done: {job} delivery 1\n" for job in "abcd"]


def test_the_guides_retries_deliver_a_released_job_again(up):
    broker = up()
    run(broker.port, "A work queue", "Retries")
    produce(broker.port, first="a")
    worker = Worker(broker.port)
    try:
        assert worker.receive(1) == [("first", 1)]
        worker.acknowledge(first=AcknowledgeType.RELEASE)
        assert worker.receive(1) == [("first", 2)]
        worker.acknowledge(first=AcknowledgeType.ACCEPT)
    finally:
        worker.consumer.close()


def test_a_job_in_back_off_delays_no_other(up):
    broker = up()
    an_hour = "3600000"
    run(broker.port, "A work queue", "Retries", backoff_ms=an_hour, backoff_max_ms=an_hour)
    produce(broker.port, first="a", second="b")
    worker = Worker(broker.port)
    try:
        assert worker.receive(2) == [("first", 1), ("second", 1)]
        worker.acknowledge(first=AcknowledgeType.RELEASE, second=AcknowledgeType.ACCEPT)
        produce(broker.port, third="c")
        assert worker.receive(1) == [("third", 1)]
        worker.acknowledge(third=AcknowledgeType.ACCEPT)
    finally:
        worker.consumer.close()


def test_the_guides_order_by_key_delivers_a_released_job_before_the_next_of_its_key(up):
    broker = up()
    run(broker.port, "A work queue", "Order by key")
    produce(broker.port, first="a", second="a", other="b")
    worker = Worker(broker.port)
    try:
        assert worker.receive(2) == [("first", 1), ("other", 1)]
        worker.acknowledge(first=AcknowledgeType.RELEASE, other=AcknowledgeType.ACCEPT)
        assert worker.receive(1) == [("first", 2)]
        worker.acknowledge(first=AcknowledgeType.ACCEPT)
        assert worker.receive(1) == [("second", 1)]
        worker.acknowledge(second=AcknowledgeType.ACCEPT)
    finally:
        worker.consumer.close()


def test_the_guides_filter_delivers_only_what_passes(up):
    broker = up()
    described = run(broker.port, "A work queue", "Filters")
    assert "type = 'order' and region in ('eu', 'us') and priority >= 5" in described
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    for value, kind, region, priority in (
        ("refund", "refund", "eu", "9"), ("first", "order", "eu", "5"), ("low", "order", "us", "4"),
        ("far", "order", "cn", "7"), ("second", "order", "us", "10"),
    ):  # fmt: skip
        headers = {"type": kind, "region": region, "priority": priority}
        producer.produce("jobs", value.encode(), headers=headers, partition=0)
    assert producer.flush(DEADLINE_S) == 0
    worker = Worker(broker.port)
    try:
        assert worker.receive(2) == [("first", 1), ("second", 1)]
        worker.acknowledge(first=AcknowledgeType.ACCEPT, second=AcknowledgeType.ACCEPT)
    finally:
        worker.consumer.close()
