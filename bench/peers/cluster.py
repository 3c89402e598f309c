"""A service of several brokers and, for some peers, the process of their metadata store.

The brokers of a cluster share the machine, its cores and its disk. Every process is a `Broker`, which ends it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import cluster_wire
from bench.connection import Connection
from bench.peers.broker import START_LIMIT_S, Broker
from bench.peers.service import BrokerFailed, Contender, Service

BROKERS = 3
POLL_S = 0.05


class ClusterContender(Contender):
    """How to make a cluster of brokers; `parts` returns its processes."""

    replicas = 3
    brokers: int = BROKERS

    def service(self, cores: set[int], work_dir: Path) -> Cluster:
        return Cluster(self, cores, work_dir)

    @abstractmethod
    def parts(self, cores: set[int], home: Path) -> tuple[Broker | None, list[Broker]]:
        """Return the store's process, if any, and the brokers by ascending id from 1; none is started."""


class ResizableCluster(ClusterContender):
    """A cluster that can have any number of brokers."""

    @abstractmethod
    def resized(self, brokers: int) -> ResizableCluster:
        """Return the same build with another number of brokers."""


class Cluster(Service):
    """A cluster. The store's process starts before the brokers and ends after them; a broker can be killed and
    restarted."""

    def __init__(self, contender: ClusterContender, cores: set[int], work_dir: Path) -> None:
        self._contender = contender
        self.home = Path(tempfile.mkdtemp(prefix=f"bench-{contender.label}-cluster-", dir=work_dir))
        self.store, self.brokers = contender.parts(cores, self.home)

    @property
    def contender(self) -> ClusterContender:
        return self._contender

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    @property
    def pids(self) -> tuple[int, ...]:
        return (*self.broker_pids, *((self.store.pid,) if self.store and self.store.process else ()))

    @property
    def broker_pids(self) -> tuple[int, ...]:
        """Return the process ids of the running brokers, without the store's."""
        return tuple(broker.pid for broker in self.brokers if broker.process is not None)

    def broker(self, broker_id: int) -> Broker:
        return self.brokers[broker_id - 1]

    def spawn(self) -> None:
        """Start the brokers together, after the store's process."""
        if self.store is not None and self.store.process is None:
            self.store.start()
        for broker in self.brokers:
            broker.spawn()

    def start(self) -> None:
        self.spawn()
        for broker in self.brokers:
            broker.wait_until_answering()
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Wait until each broker knows all of them and a controller exists. Raises BrokerFailed."""
        deadline = time.monotonic() + START_LIMIT_S
        brokers = self.contender.brokers
        while not (all(_knows(address, brokers) for address in self.addresses) and self.controller() is not None):
            self.check()
            if time.monotonic() > deadline:
                raise BrokerFailed(self.failure("did not become whole"))
            time.sleep(POLL_S)

    def controller(self) -> int | None:
        """Return the id of the controller, as any broker reports it; None if none does."""
        for broker in self.brokers:
            if broker.process is not None and (found := _controller_of(broker.address)) is not None:
                return found
        return None

    def check(self) -> None:
        for process in self._processes():
            if process.process is not None:
                process.check()

    def failure(self, what: str) -> str:
        """Return a message with the end of each log."""
        logs = [process.failure("is one of its processes") for process in self._processes()]
        return "\n".join([f"the cluster of {self.contender.label} {what}", *logs])

    def stop(self) -> None:
        """Stop all brokers at once; the store's process keeps running."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(Broker.stop, self.brokers))

    def remove(self) -> None:
        for process in [*self.brokers, *([self.store] if self.store else [])]:
            process.remove()
        shutil.rmtree(self.home, ignore_errors=True)

    def _processes(self) -> Sequence[Broker]:
        return [*self.brokers, self.store] if self.store is not None else self.brokers


def _asked(address: str, request: bytes) -> bytes | None:
    try:
        connection = Connection(address, timeout_s=5.0)
        try:
            return connection.ask(request)
        finally:
            connection.close()
    except OSError:
        return None


def _knows(address: str, brokers: int) -> bool:
    answer = _asked(address, cluster_wire.members_request())
    return answer is not None and len(cluster_wire.members_response(answer)) == brokers


def _controller_of(address: str) -> int | None:
    answer = _asked(address, cluster_wire.quorum_request())
    controller = -1 if answer is None else cluster_wire.quorum_response(answer)
    return controller if controller > 0 else None
