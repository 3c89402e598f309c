"""Penstock, started as a user starts it: `penstock up`, alone or as one of several brokers with an etcd."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from bench.peers.broker import Broker, Peer
from bench.peers.cluster import BROKERS, ResizableCluster
from bench.peers.etcd import Etcd

NEVER = str(2**63 - 1)
_UP = f"{shlex.quote(str(Path(sys.executable).parent / 'penstock'))} up --data {{data}} --port {{port}}"
DEFAULT_COMMAND = f"{_UP} --http-port 0"
CLUSTER_COMMAND = f"{_UP} --http-port -1 --etcd {{etcd}} --id {{id}}"


class Penstock(Peer):
    """One broker. `command` is a template with {data} and {port}, so that another build can be measured."""

    label = "penstock"
    durable_topic: ClassVar[dict[str, str]] = {}  # durable is the default
    unflushed_topic: ClassVar[dict[str, str]] = {"flush.messages": NEVER, "flush.ms": NEVER}

    def __init__(self, command: str = DEFAULT_COMMAND) -> None:
        self._template = command

    def version(self) -> str:
        return f"Penstock {version('penstock')}"

    def command(self, data_dir: Path, port: int) -> list[str]:
        return [part.format(data=data_dir, port=port) for part in shlex.split(self._template)]

    def with_settings(self, settings: Mapping[str, str]) -> Penstock:
        """Return the same build with broker settings."""
        return Penstock(" ".join([self._template, *(f"--set {name}={value}" for name, value in settings.items())]))


class _Node(Peer):
    """One broker of a cluster."""

    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self, label: str, template: str, etcd: Broker, broker_id: int) -> None:
        self.label = f"{label}-{broker_id}"
        self._template, self._etcd, self._id = template, etcd, broker_id

    def version(self) -> str:
        return f"Penstock {version('penstock')}"

    def command(self, data_dir: Path, port: int) -> list[str]:
        values = {"data": data_dir, "port": port, "etcd": f"http://{self._etcd.address}", "id": self._id}
        return [part.format(**values) for part in shlex.split(self._template)]


class PenstockCluster(ResizableCluster):
    """Brokers and an etcd of one member; `command` is a template with {data}, {port}, {etcd} and {id}."""

    label = "penstock"
    durable_topic: ClassVar[dict[str, str]] = {"min.insync.replicas": "2"}
    unflushed_topic: ClassVar[dict[str, str]] = {**Penstock.unflushed_topic, "min.insync.replicas": "2"}

    def __init__(self, command: str = CLUSTER_COMMAND, brokers: int = BROKERS) -> None:
        self._template, self.brokers = command, brokers

    def version(self) -> str:
        return f"Penstock {version('penstock')} ({self.brokers} brokers, {Etcd().version()})"

    def resized(self, brokers: int) -> PenstockCluster:
        return PenstockCluster(self._template, brokers)

    def parts(self, cores: set[int], home: Path) -> tuple[Broker, list[Broker]]:
        etcd = Broker(Etcd(), cores, home)
        nodes = [_Node(self.label, self._template, etcd, number) for number in range(1, self.brokers + 1)]
        return etcd, [Broker(node, cores, home) for node in nodes]
