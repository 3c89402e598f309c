"""A queue server of one node or three that does not speak Kafka's protocol: RabbitMQ and NATS."""

from __future__ import annotations

import shutil
import socket
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.peers.broker import START_LIMIT_S, Broker, Peer
from bench.peers.cluster import POLL_S, Cluster, ClusterContender
from bench.peers.service import BrokerFailed


class PeerUnavailable(Exception):
    """A queue server is not installed; the message says how to install it."""


def program(name: str, installed: Path, how: str) -> str:
    """Return the program in the benchmark's cache, or else on the PATH. Raises PeerUnavailable with `how`."""
    found = str(installed) if installed.exists() else shutil.which(name)
    if found is None:
        raise PeerUnavailable(f"{name} is neither in {installed.parent} nor on the PATH; {how}")
    return found


class QueueContender(ClusterContender):
    """How to start a queue server; `nodes` is 1 or 3, and `protocol` that of the `queue` load."""

    protocol: ClassVar[str]

    def __init__(self, nodes: int) -> None:
        self.nodes = self.replicas = nodes

    def service(self, cores: set[int], work_dir: Path) -> QueueCluster:
        return QueueCluster(self, cores, work_dir)

    @abstractmethod
    def is_whole(self, brokers: Sequence[Broker]) -> bool:
        """Return whether all nodes serve clients and form one cluster."""


class QueueCluster(Cluster):
    """The nodes of a queue server."""

    @property
    def contender(self) -> QueueContender:
        assert isinstance(self._contender, QueueContender), "a queue cluster is made by its contender"
        return self._contender

    def wait_until_whole(self) -> None:
        """Wait until the nodes form a cluster. Raises BrokerFailed."""
        deadline = time.monotonic() + START_LIMIT_S
        while not self.contender.is_whole(self.brokers):
            self.check()
            if time.monotonic() > deadline:
                raise BrokerFailed(self.failure("did not become whole"))
            time.sleep(POLL_S)


class QueueNode(Peer):
    """One node; it answers once its port accepts connections."""

    def wait_until_answering(self, address: str, deadline: float) -> None:
        host, port = address.rsplit(":", 1)
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=2.0).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the server at {address} does not accept connections") from None
                time.sleep(POLL_S)


def nodes_on(recipes: Sequence[QueueNode], cores: set[int], home: Path) -> list[Broker]:
    """Return a process for each recipe; none is started."""
    return [Broker(recipe, cores, home) for recipe in recipes]
