"""A cluster under test: an etcd, three brokers, and the console that inspects them. `world` adds the workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock_crash.small_disk import SmallDisk

from penstock_chaos.broker import ClusterBroker
from penstock_chaos.console import Console, Refused, Truth
from penstock_chaos.etcd import Etcd
from penstock_chaos.etcd_link import EtcdLink
from penstock_chaos.etcd_program import find_etcd
from penstock_chaos.places import Loopback, Namespaces
from penstock_chaos.secured import ADMIN, Secured

BROKER_IDS = (1, 2, 3)
CLIENTS = "clients"
DISK_BYTES = 192 << 20
POLL_S = 0.2
SETTINGS = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    # Faults last for seconds in these tests.
    "replica.lag.time.max.ms": "10000",
    "leader.imbalance.check.interval.seconds": "5",
}


def broker_name(broker_id: int) -> str:
    return f"broker-{broker_id}"


class Cluster:
    """The processes of a cluster. `small_disk` is the id of the broker whose data is on a small file system;
    `links` are the brokers' links to etcd by id, if the cluster has any."""

    def __init__(
        self,
        home: Path,
        with_network: bool,
        small_disk: int | None = None,
        secured: Secured | None = None,
        with_etcd_links: bool = False,
    ) -> None:
        names = [CLIENTS, "etcd", *map(broker_name, BROKER_IDS)]
        self.home, self.secured = home, secured
        self.network = Namespaces(names) if with_network else None
        where = self.network or Loopback()
        self.clients = where.place(CLIENTS)
        self.disk = SmallDisk(home / "disk", DISK_BYTES) if small_disk is not None else None
        self.etcd = Etcd(find_etcd(), where.place("etcd"), home)
        self.links = {i: EtcdLink(self.etcd.client_port) for i in BROKER_IDS} if with_etcd_links else {}
        self.console = Console(self.clients, self.etcd.url, home)
        self.brokers: dict[int, ClusterBroker] = {}
        for broker_id in BROKER_IDS:
            disk = self.disk if broker_id == small_disk else None
            name = broker_name(broker_id)
            self.brokers[broker_id] = ClusterBroker(
                broker_id,
                where.place(name),
                self.links[broker_id].url if self.links else self.etcd.url,
                home / name,
                SETTINGS | (secured.settings() if secured is not None else {}),
                tuple(disk.prefix) if disk is not None else (),
                disk.path / "data" if disk is not None else None,
                secured,
            )

    def data_of(self, broker_id: int) -> Path:
        """Return a broker's data directory as seen by this process."""
        broker = self.brokers[broker_id]
        if self.disk is not None and broker.data.is_relative_to(self.disk.path):
            return self.disk.outside / broker.data.relative_to(self.disk.path)
        return broker.data

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> None:
        self.etcd.start()
        self.start_brokers(BROKER_IDS)
        self.wait_truth("three registered brokers", lambda truth: set(truth.brokers) == set(BROKER_IDS))
        self.wait_truth("a controller", lambda truth: truth.controller is not None)

    def start_brokers(self, ids: Iterable[int]) -> None:
        """Start the brokers concurrently; return when all are ready."""
        started = [self.brokers[broker_id] for broker_id in ids]
        for broker in started:
            broker.spawn()
        for broker in started:
            broker.wait_ready()

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        self.console.ask(
            "create_topic", bootstrap=self.bootstrap, name=name, partitions=partitions, replication=3, config=config,
            security=self.secured.librdkafka(ADMIN) if self.secured is not None else {},
        )  # fmt: skip
        self.wait_truth(
            f"the topic {name}, in sync",
            lambda truth: name in truth.topics and len(truth.of(name)) == partitions and truth.is_whole,
        )

    def wait_truth(self, what: str, condition: Callable[[Truth], bool], limit_s: float = 60.0) -> Truth:
        """Return the agreed metadata once it fulfils a condition. Raises AssertionError with it on timeout."""
        deadline = time.monotonic() + limit_s
        seen: object = None
        while True:
            try:
                seen = truth = self.console.truth()
                if condition(truth):
                    return truth
            except Refused as refused:
                seen = refused
            assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}; there is {seen}"
            time.sleep(POLL_S)

    def clean_up(self) -> None:
        for broker in self.brokers.values():
            broker.clean_up()
        for link in self.links.values():
            link.close()
        self.etcd.clean_up()
        self.console.close()
        if self.disk is not None:
            self.disk.clean_up()
        if self.network is not None:
            self.network.close()
