"""`penstock up --brokers 3` with real brokers and another client, as the README shows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from confluent_kafka import Consumer, Producer
from local_cluster_kit import DEADLINE_S, Running, until_gone

pytestmark = pytest.mark.integration

PARTITIONS = 6


def penstock(*arguments: str, bootstrap: str) -> str:
    command = [sys.executable, "-m", "penstock.cli", *arguments, "--bootstrap", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def up(directory: Path, *flags: str) -> Running:
    ports = ["--port", "0", "--http-port", "-1", "--set", "group.initial.rebalance.delay.ms=0"]
    command = [sys.executable, "-m", "penstock.cli", "up", "--brokers", "3", "--data", str(directory), *ports, *flags]
    return Running(command)


class Reader:
    """A consumer that reads on through broker failures and collects the messages."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
        self.consumer.subscribe(["flights"])
        self.places: set[tuple[int, int]] = set()
        self.values: list[bytes] = []

    def until(self, count: int) -> None:
        """Read until `count` different messages have arrived."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.places) < count:
            assert time.monotonic() < deadline, f"{len(self.places)} of {count} messages came"
            message = self.consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue  # a broker is down; the client reports it and reconnects
            place = message.partition(), message.offset()
            if place not in self.places:
                self.places.add(place)
                self.values.append(message.value())


def produce(producer: Producer, numbers: range) -> Callable[[], None]:
    """Send messages; return a function that waits until all are acknowledged."""
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in numbers:
        producer.produce("flights", key=f"{number % 16}", value=f"{number}", on_delivery=delivered)

    def wait() -> None:
        assert producer.flush(DEADLINE_S) == 0, "not everything was acknowledged"
        assert failed == []

    return wait


def test_a_consumer_reads_on_while_a_broker_is_killed_and_a_second_start_has_it_all(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        ready = cluster.ready()
        bootstrap = ready["bootstrap"]
        penstock("topic", "create", "flights", "-p", str(PARTITIONS), "--replication-factor", "3", bootstrap=bootstrap)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        produce(producer, range(1000))()
        reader = Reader(bootstrap, "tour")
        reader.until(500)
        pids = cluster.pids()
        acknowledged = produce(producer, range(1000, 2000))
        os.kill(pids["broker-2"], signal.SIGKILL)
        cluster.until_said("broker-2", "SIGKILL", "restart it with")
        acknowledged()
        reader.until(2000)
        produce(producer, range(2000, 3000))()
        reader.until(3000)
        reader.consumer.close()
        assert cluster.end() == 0
        until_gone(list(pids.values()))
    assert sorted(map(int, reader.values)) == list(range(3000))

    with up(tmp_path) as again:
        bootstrap = again.ready()["bootstrap"]
        reader = Reader(bootstrap, "another")
        reader.until(3000)
        assert sorted(map(int, reader.values)) == list(range(3000))
        reader.consumer.close()
        assert again.end() == 0
