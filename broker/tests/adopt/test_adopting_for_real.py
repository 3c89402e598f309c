"""A real single broker with messages, settings, a group and an open transaction joins a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from etcd_process import EtcdCluster
from local_cluster_kit import DEADLINE_S, Running
from node_kit import port_of, reserved_port

pytestmark = pytest.mark.integration

COUNT = 500


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[str]:
    with EtcdCluster(tmp_path / "etcd") as running:
        yield running.endpoints[0]


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that the broker keeps after a restart, so that its clients can reconnect."""
    with reserved_port() as reserved:
        yield port_of(reserved)


def penstock(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *arguments], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def up(directory: Path, port: int, *flags: str) -> Running:
    ports = ["--port", str(port), "--http-port", "-1", "--set", "group.initial.rebalance.delay.ms=0"]
    return Running([sys.executable, "-m", "penstock.cli", "up", "--data", str(directory), *ports, *flags])


def transactional(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "pay",
            "transaction.timeout.ms": 600_000,
            "log.connection.close": False,
            "reconnect.backoff.max.ms": 1000,
        }
    )


def read(bootstrap: str, group: str, count: int) -> list[bytes]:
    """Read `count` messages from the group's committed offset, then commit."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["flights"])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} messages came"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def served(bootstrap: str) -> dict[str, Any]:
    """Return the output of `penstock status` once every partition has a leader."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        status: dict[str, Any] = json.loads(penstock("status", "-o", "json", "--bootstrap", bootstrap))
        if not status["partitions"]["offline"]:
            return status
        assert time.monotonic() < deadline, status


def send(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in numbers:
        producer.produce("flights", key=str(number % 7), value=str(number))
    assert producer.flush(DEADLINE_S) == 0


def test_a_broker_alone_becomes_one_of_a_cluster_with_all_it_has(tmp_path: Path, etcd: str, port: int) -> None:
    data = tmp_path / "data"
    with up(data, port) as alone:
        bootstrap = alone.ready()["kafka"]
        config = ["--config", "retention.ms=7200000"]
        penstock("topic", "create", "flights", "-p", "3", *config, "--bootstrap", bootstrap)
        send(bootstrap, range(COUNT))
        first = read(bootstrap, "app", 200)
        open_one = transactional(bootstrap)
        open_one.init_transactions(DEADLINE_S)
        open_one.begin_transaction()
        open_one.produce("flights", key="1", value="never committed")
        assert open_one.flush(DEADLINE_S) == 0
        in_use = penstock("cluster", "adopt", "--data", str(data), "--etcd", etcd, "--yes", code=4)
        assert "stop its broker first" in in_use
        assert alone.end() == 0

    plan = json.loads(penstock("cluster", "adopt", "--data", str(data), "--etcd", etcd, "--dry-run", "-o", "json"))
    assert (plan["counts"]["topics"], plan["counts"]["partitions"], plan["broker_id"]) == (1, 3, 0)
    assert "set --yes" in penstock("cluster", "adopt", "--data", str(data), "--etcd", etcd, code=4)
    said = penstock("cluster", "adopt", "--data", str(data), "--etcd", etcd, "--yes")
    assert f"penstock up --etcd {etcd} --id 0 --data {data}" in said
    assert "was already moved" in penstock("cluster", "adopt", "--data", str(data), "--etcd", etcd)
    assert "was moved into a cluster" in " ".join(penstock("up", "--data", str(data), code=2).split())

    with up(data, port, "--etcd", etcd, "--id", "0") as member:
        bootstrap = member.ready()["kafka"]
        topic = json.loads(penstock("topic", "describe", "flights", "-o", "json", "--bootstrap", bootstrap))
        assert "7200000" in json.dumps(topic)
        status = served(bootstrap)
        assert status["cluster_id"] == plan["cluster_id"]
        next_one = transactional(bootstrap)
        next_one.init_transactions(DEADLINE_S)  # fences the previous producer and aborts its transaction
        rest = read(bootstrap, "app", COUNT - 200)
        assert sorted(map(int, first + rest)) == list(range(COUNT))
        next_one.begin_transaction()
        next_one.produce("flights", key="1", value=str(COUNT))
        next_one.commit_transaction(DEADLINE_S)
        send(bootstrap, range(COUNT + 1, COUNT + 100))
        assert sorted(map(int, read(bootstrap, "app", 100))) == list(range(COUNT, COUNT + 100))
        with pytest.raises(KafkaException, match=r"(?i)fenced"):
            open_one.commit_transaction(DEADLINE_S)
        assert member.end() == 0
