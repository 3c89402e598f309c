"""Starts and stops the two services that are compared, with equivalent settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.cluster import Cluster
from bench.peers.kafka import Kafka, KafkaCluster
from bench.peers.penstock import CLUSTER_COMMAND, DEFAULT_COMMAND, Penstock, PenstockCluster
from bench.peers.service import Contender, Service

COMMON = {
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "log.retention.check.interval.ms": "2147483647",
    "log.roll.ms": "9223372036854775807",
}
PENSTOCK_ALONE = {"node.id": "1"}
PENSTOCK_OF_SEVERAL = {"default.replication.factor": "3", "min.insync.replicas": "2"}
"""Settings that the recipe for three Kafka nodes contains as well."""
NOT_PENSTOCKS = frozenset(
    {"offsets.topic.num.partitions", "transaction.state.log.num.partitions",
     "share.coordinator.state.topic.num.partitions"}
)  # fmt: skip
"""Kafka settings of topics that Penstock does not have; fewer partitions make a coordinator's first request faster."""
EXPIRING = {
    "transactional.id.expiration.ms": "2000",
    "producer.id.expiration.ms": "2000",
}
KAFKA_ALONE = {"log.initial.task.delay.ms": "2147483647"}
"""Disables retention, as `log.roll.ms` disables rolling by time: cases write records with timestamps of 1970."""
EXPIRING_KAFKA = {
    "producer.id.expiration.check.interval.ms": "200",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
KAFKA_HEAP = ("-Xms256m", "-Xmx512m")


class GivenService(Service):
    """A running service, given by the addresses of its brokers. It is not started, stopped or checked."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)

    @property
    def contender(self) -> Contender:
        raise NotImplementedError("a service that runs already has no recipe")

    @property
    def addresses(self) -> list[str]:
        return self._addresses

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    def spawn(self) -> None: ...

    def start(self) -> None: ...

    def check(self) -> None: ...

    def failure(self, what: str) -> str:
        return f"the service at {self.address} {what}"

    def stop(self) -> None: ...

    def remove(self) -> None: ...


@dataclass
class ServicePair:
    """Both services, running."""

    penstock: Service
    kafka: Service

    def check(self) -> None:
        """Raise BrokerFailed if a process of either service has exited."""
        self.penstock.check()
        self.kafka.check()

    def broker_of(self, side: str, broker_id: int) -> str:
        """Return the address of one broker of `side`."""
        return self.service(side).addresses[broker_id - 1]

    def service(self, side: str) -> Service:
        """Return the service with the label "penstock" or "kafka"."""
        return self.penstock if side == "penstock" else self.kafka

    def cluster(self, side: str) -> Cluster:
        """Return the cluster with this label."""
        service = self.service(side)
        assert isinstance(service, Cluster), "this pair has one broker a side"
        return service


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _options(settings: Mapping[str, str]) -> str:
    return "".join(f" --set {name}={value}" for name, value in settings.items() if name not in NOT_PENSTOCKS)


@contextmanager
def started(work_dir: Path, *, brokers: int = 1, expiring: bool = False) -> Iterator[ServicePair]:
    """Run both services with one broker or three; remove all processes and data at the end."""
    settings = {**COMMON, **(EXPIRING if expiring else {})}
    for_kafka = {**settings, **KAFKA_ALONE, **(EXPIRING_KAFKA if expiring else {})}
    cores = os.sched_getaffinity(0)
    if brokers == 1:
        contenders = [
            Penstock(DEFAULT_COMMAND + _options({**settings, **PENSTOCK_ALONE})),
            Kafka(properties=_properties(for_kafka), jvm_flags=KAFKA_HEAP),
        ]
    else:
        contenders = [
            PenstockCluster(CLUSTER_COMMAND + _options({**settings, **PENSTOCK_OF_SEVERAL})),
            KafkaCluster(properties=_properties(for_kafka), jvm_flags=KAFKA_HEAP),
        ]
    made: list[Service] = []
    try:
        made += [contender.service(cores, work_dir) for contender in contenders]
        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(lambda service: service.start(), made))
        yield ServicePair(*made)
    finally:
        for service in made:
            service.remove()
