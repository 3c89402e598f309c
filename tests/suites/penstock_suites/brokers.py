"""Clusters of Penstock or of Apache Kafka with the ids, advertised addresses and settings that a suite expects."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from penstock_e2e.model import eventually

from bench.peers.broker import Broker, Peer, free_port
from bench.peers.etcd import Etcd
from bench.peers.kafka import VERSION, Kafka
from penstock_suites.security import PLAIN, Security, make_certificates

KAFKA_HEAP = ("-Xms256m", "-Xmx512m")
CLUSTER_ID = "suiteOfClientsTestsAAA"
INTERNAL_TOPICS = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


@dataclass(frozen=True)
class Layout:
    """The cluster that a suite expects."""

    brokers: int = 1
    first_id: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    """Broker settings by Kafka's names, for Penstock and for Apache Kafka."""
    only_kafka: Mapping[str, str] = field(default_factory=dict)
    """Broker settings that Penstock does not have."""
    advertised: Mapping[int, str] = field(default_factory=dict)
    """Advertised `host:port`, by broker id; the address that the broker listens on, if missing."""
    ports: Mapping[int, int] = field(default_factory=dict)
    """Fixed ports by broker id; a free one, if missing."""
    racks: bool = False
    """Whether each broker is in a separate rack, named after its id."""
    security: Security | None = None
    kafka_version: str = VERSION

    @property
    def ids(self) -> range:
        """The brokers' ids in ascending order."""
        return range(self.first_id, self.first_id + self.brokers)


class _Listeners:
    """The listeners of one broker: CLIENTS, one for other brokers, and those of the layout's security."""

    def __init__(self, layout: Layout, broker_id: int, certificates: Path, internal: Sequence[str]) -> None:
        self._layout, self._id, self._certificates, self._internal = layout, broker_id, certificates, internal
        self.brokers_port = free_port()
        security = layout.security or Security()
        self.secured = {name: security.ports.get(name) or free_port() for name in security.listeners}

    def clients(self, port: int) -> tuple[dict[str, str], dict[str, str]]:
        """Return the addresses to listen on and those to advertise, by name, if clients connect to `port`."""
        port = self._layout.ports.get(self._id, port)
        advertised = self._layout.advertised.get(self._id, f"127.0.0.1:{port}")
        host = advertised.rpartition(":")[0]
        own = {"CLIENTS": f"127.0.0.1:{port}", **{name: f"127.0.0.1:{its}" for name, its in self.secured.items()}}
        return own, {"CLIENTS": advertised, **{name: f"{host}:{its}" for name, its in self.secured.items()}}

    def settings(self) -> dict[str, str]:
        """Return the settings that both kinds of broker accept."""
        layout = self._layout
        racks = {"broker.rack": str(self._id)} if layout.racks else {}
        security = layout.security
        protocols = dict.fromkeys([*self._internal, "CLIENTS"], "PLAINTEXT")
        secured: dict[str, str] = {}
        if security is not None:
            protocols |= {**dict.fromkeys(self._internal, "SASL_PLAINTEXT"), **security.listeners}
            secured = security.settings(self._certificates, self._internal)
            if self._internal:
                secured["sasl.mechanism.inter.broker.protocol"] = PLAIN
        mapped = ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
        return {"listener.security.protocol.map": mapped, **secured, **layout.settings, **racks}


class _PenstockNode(Peer):
    """One Penstock broker; without an etcd it is a single broker."""

    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self, layout: Layout, broker_id: int, etcd: Broker | None, certificates: Path) -> None:
        self.label = f"penstock-{broker_id}"
        self._layout, self._id, self._etcd = layout, broker_id, etcd
        self.listeners = _Listeners(layout, broker_id, certificates, ["BROKERS"] if etcd else [])

    def version(self) -> str:
        return "Penstock"

    def chosen_port(self, data_dir: Path) -> int | None:
        del data_dir
        return self._layout.ports.get(self._id)

    def command(self, data_dir: Path, port: int) -> list[str]:
        own, advertised = self.listeners.clients(port)
        command = [str(Path(sys.executable).with_name("penstock")), "up", "--data", str(data_dir)]
        if self._etcd is not None:
            command += ["--http-port", "-1", "--etcd", f"http://{self._etcd.address}", "--id", str(self._id)]
            # Brokers reach each other by the first listener: never through a suite's proxy.
            command += ["--listener", f"BROKERS://127.0.0.1:{self.listeners.brokers_port}"]
        else:
            command += ["--http-port", "0", f"--set=node.id={self._id}"]
        for name, address in own.items():
            command += ["--listener", f"{name}://{address}", "--advertise", f"{name}://{advertised[name]}"]
        return command + [f"--set={name}={value}" for name, value in self.listeners.settings().items()]


class _KafkaNode(Kafka):
    """One Apache Kafka broker, which is a controller too."""

    def __init__(self, layout: Layout, broker_id: int, controller_ports: list[int], certificates: Path) -> None:
        super().__init__(f"kafka-{broker_id}", jvm_flags=KAFKA_HEAP, version=layout.kafka_version)
        self._layout, self._id, self._controller_ports = layout, broker_id, controller_ports
        self.listeners = _Listeners(layout, broker_id, certificates, ["BROKERS", "CONTROLLER"])

    def chosen_port(self, data_dir: Path) -> int | None:
        del data_dir
        return self._layout.ports.get(self._id)

    def prepare(self, data_dir: Path, port: int) -> None:
        own, advertised = self.listeners.clients(port)
        index = self._layout.ids.index(self._id)
        internal_listeners = {"BROKERS": f"127.0.0.1:{self.listeners.brokers_port}"}
        controller = {"CONTROLLER": f"127.0.0.1:{self._controller_ports[index]}"}
        voters = zip(self._layout.ids, self._controller_ports, strict=True)
        replicas = min(3, self._layout.brokers)
        internal = {f"{topic}.replication.factor": str(replicas) for topic in INTERNAL_TOPICS}
        internal |= {f"{topic}.min.isr": "1" for topic in INTERNAL_TOPICS if topic != "offsets.topic"}
        properties = {
            "node.id": str(self._id),
            "controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{its}" for number, its in voters),
            "listeners": _urls({**internal_listeners, **own, **controller}),
            "advertised.listeners": _urls({**internal_listeners, **advertised}),
            "inter.broker.listener.name": "BROKERS",
            **({"sasl.mechanism.controller.protocol": PLAIN} if self._layout.security else {}),
            **internal,
            **self.listeners.settings(),
            **self._layout.only_kafka,
        }
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        self._format(data_dir, port, index + 1, self._controller_ports, CLUSTER_ID, lines)


def _urls(addresses: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())


class Cluster:
    """The brokers by id. A suite may stop and restart one. `kafka` is True if they are Apache Kafka's.

    `certificates` is the directory of `make_certificates`.
    """

    def __init__(self, etcd: Broker | None, brokers: Mapping[int, Broker], certificates: Path, *, kafka: bool) -> None:
        self.etcd, self.brokers, self.certificates, self.kafka = etcd, brokers, certificates, kafka

    @property
    def bootstrap(self) -> str:
        """The brokers' own addresses, comma-separated."""
        return ",".join(broker.address for broker in self.brokers.values())

    def port(self, listener: str) -> int:
        """Return the port of the first broker's listener of that name, which the layout's security defines."""
        node = next(iter(self.brokers.values())).peer
        assert isinstance(node, (_PenstockNode, _KafkaNode))
        return node.listeners.secured[listener]

    def start(self) -> None:
        """Start the etcd and the brokers; return when each broker names all of them."""
        if self.etcd is not None:
            self.etcd.start()
        for broker in self.brokers.values():
            broker.spawn()
        for broker in self.brokers.values():
            broker.wait_until_answering()
        for broker in self.brokers.values():
            address = broker.address
            eventually(f"{address} to name every broker", lambda a=address: _named(a) == len(self.brokers))

    def remove(self) -> None:
        """Stop all processes and delete their data."""
        for process in [*self.brokers.values(), *([self.etcd] if self.etcd else [])]:
            process.remove()


def _named(address: str) -> int:
    try:
        return len(AdminClient({"bootstrap.servers": address}).list_topics(timeout=5).brokers)
    except KafkaException:
        return 0


@contextmanager
def running(layout: Layout, work: Path, *, kafka: bool) -> Iterator[Cluster]:
    """A cluster with that layout, of Apache Kafka or of Penstock."""
    cores, ids = os.sched_getaffinity(0), layout.ids
    home = Path(tempfile.mkdtemp(prefix="brokers-", dir=work))
    certificates = home / "certificates"
    if layout.security is not None:
        make_certificates(certificates)
    etcd: Broker | None = None
    if kafka:
        controller_ports = [free_port() for _ in ids]
        peers: list[Peer] = [_KafkaNode(layout, number, controller_ports, certificates) for number in ids]
    else:
        etcd = Broker(Etcd(), cores, home) if layout.brokers > 1 else None
        peers = [_PenstockNode(layout, number, etcd, certificates) for number in ids]
    with ThreadPoolExecutor(len(peers)) as pool:
        made = list(pool.map(lambda peer: Broker(peer, cores, home), peers))
    cluster = Cluster(etcd, dict(zip(ids, made, strict=True)), certificates, kafka=kafka)
    try:
        cluster.start()
        if layout.security is not None:
            layout.security.create_users(cluster.bootstrap)
        yield cluster
        for broker in made:
            broker.check()
    finally:
        cluster.remove()
