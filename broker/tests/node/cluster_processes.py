"""A cluster of processes: etcd, and brokers started with `penstock up --etcd`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from confluent_kafka.admin import AdminClient
from etcd_process import EtcdCluster
from node_kit import DEADLINE_S, Process, port_of, reserved_port

from penstock.client import (
    Admin,
    Consumer,
    PartitionInfo,
    Producer,
    RequestTimedOut,
    Security,
    TopicPartition,
    UnknownTopic,
)

LEASE_MS = 6000
"""Session timeout of the brokers: shorter than the default, because tests wait until it expires."""


class Cluster:
    """Brokers by id, on one etcd."""

    def __init__(self, home: Path, settings: Sequence[str] = ()) -> None:
        self.home = home
        (home / "etcd").mkdir()
        self.etcd = EtcdCluster(home / "etcd")
        self.settings = [f"broker.session.timeout.ms={LEASE_MS}", "group.initial.rebalance.delay.ms=0", *settings]
        self.brokers: dict[int, Process] = {}
        self.ports: dict[int, socket.socket] = {}
        """Reserved port of each broker, kept while it is down so that clients can reconnect."""

    def begin(
        self, broker_id: int, *more: str, data: Path | None = None, environment: dict[str, str] | None = None
    ) -> Process:
        """Start a broker on its earlier port, without waiting until it is ready."""
        if broker_id not in self.ports:
            self.ports[broker_id] = reserved_port()
        port = port_of(self.ports[broker_id]) if data is None else 0
        listen = ("--port", str(port), "--http-port", "-1")
        sets = [part for setting in self.settings for part in ("--set", setting)]
        arguments = ("--etcd", self.etcd.endpoints[0], "--id", str(broker_id), *sets, *more)
        made = Process(
            self.home, *arguments, listen=listen, data=data or self.home / str(broker_id), environment=environment
        )
        self.brokers[broker_id] = made
        return made

    def start(self, *broker_ids: int) -> None:
        """Start brokers and wait until all are ready and know each other."""
        for broker_id in broker_ids:
            self.begin(broker_id)
        for broker_id in broker_ids:
            self.brokers[broker_id].ready()
        for broker_id in broker_ids:
            self._knows(broker_id, set(broker_ids))

    def _knows(self, broker_id: int, others: set[int]) -> None:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.brokers[broker_id].port}"})
        deadline_s = time.monotonic() + DEADLINE_S
        while not others <= client.list_topics(timeout=DEADLINE_S).brokers.keys():
            assert time.monotonic() < deadline_s, f"broker {broker_id} does not know all of {sorted(others)}"
            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.brokers[broker_id].port}"})
            time.sleep(0.05)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def end(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        for port in self.ports.values():
            port.close()
        self.etcd.end()


C = TypeVar("C", bound=Cluster)


@contextmanager
def running(cluster: C) -> Iterator[C]:
    """Run etcd and brokers 1 to 3 for the duration of the block, which starts once all are ready."""
    try:
        cluster.etcd.start()
        cluster.start(1, 2, 3)
        yield cluster
    finally:
        cluster.end()


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Poll until a condition holds; fail after `DEADLINE_S`."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not await condition():
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(0.05)


async def partitions(admin: Admin, topic: str) -> list[PartitionInfo]:
    """Return a topic's partitions, once the queried broker knows it; another broker may have created it."""
    found: list[PartitionInfo] = []

    async def is_known() -> bool:
        with suppress(UnknownTopic):
            found[:] = (await admin.describe_topics([topic]))[topic].partitions.values()
        return bool(found)

    await until(is_known, f"{topic} is known")
    return found


async def in_sync(admin: Admin, topic: str, *broker_ids: int) -> None:
    """Wait until the ISR of each partition is exactly these brokers."""

    async def holds() -> bool:
        try:
            found = await partitions(admin, topic)
        except RequestTimedOut:  # the queried broker is down; the next attempt uses another
            return False
        return bool(found) and all(sorted(p.isr) == sorted(broker_ids) for p in found)

    await until(holds, f"{topic} is in sync on {broker_ids}")


async def write(producer: Producer, topic: str, first: int, count: int) -> list[int]:
    """Produce `count` numbers with acks=all and return them."""
    numbers = list(range(first, first + count))
    deliveries = [await producer.send(topic, str(n).encode()) for n in numbers]
    await producer.flush()
    for delivery in deliveries:
        await delivery
    return numbers


async def read_all(bootstrap: str, topic: str, count: int, security: Security | None = None) -> list[int]:
    """Read `count` numbers from a topic's only partition and return them in order."""
    found: list[int] = []
    async with Consumer(bootstrap, security=security) as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [int(record.value or b"") for record in records]
    return found
