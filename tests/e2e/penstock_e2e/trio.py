"""Three brokers on one etcd that tests kill and restart, and clients that read their topics."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from etcd_process import EtcdCluster
from kafka import KafkaAdminClient
from penstock_chaos.broker import ClusterBroker
from penstock_chaos.places import Loopback

from penstock_e2e.model import eventually

BROKER_IDS = (0, 1, 2)
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}
READ_LIMIT_S = 60


class Trio:
    """The brokers by id, and client operations on their topics."""

    def __init__(self, brokers: Mapping[int, ClusterBroker]) -> None:
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @functools.cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topics(self, *names: str, partitions: int = 3) -> None:
        """Create topics with three replicas each; return when every partition has a leader."""
        futures = self.admin.create_topics([NewTopic(name, partitions, 3) for name in names])
        for future in futures.values():
            future.result()
        for name in names:
            eventually(f"leaders of {name}", lambda name=name: self._has_leaders(name, partitions))

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())

    def produce(self, topic: str, records: Sequence[tuple[str | None, str, int]]) -> None:
        """Produce (key, value, timestamp in ms) with acks=all; raises if one is rejected. Timestamp 0: current time."""
        refused: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        for key, value, timestamp_ms in records:
            producer.produce(
                topic, value, key, timestamp=timestamp_ms, on_delivery=lambda e, _: refused.append(e) if e else None
            )
        assert producer.flush(READ_LIMIT_S) == 0, f"records to {topic} are still under way"
        assert not refused, f"records to {topic} were refused: {refused[0]}"

    def size(self, topic: str) -> int:
        """Return the sum of the high watermarks of all partitions; 0 if a leader is missing."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "size"})
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions]
        except KafkaException:
            return 0
        finally:
            consumer.close()
        return sum(ends)

    def read_committed(self, topic: str) -> list[tuple[str | None, str]]:
        """Return key and value of each committed record up to the current end offsets, by partition."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": f"read-{uuid.uuid4()}"}
        settings |= {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
        found: list[tuple[str | None, str]] = []
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            at_end: set[int] = set()
            while len(at_end) < len(partitions):
                message = consumer.poll(READ_LIMIT_S)
                assert message is not None, f"{topic}: nothing was read for {READ_LIMIT_S} s"
                if message.error() is None:
                    key, value = message.key(), message.value()
                    found.append((key.decode() if key is not None else None, (value or b"").decode()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
                else:
                    raise KafkaException(message.error())
        finally:
            consumer.close()
        return found

    def kill_leader(self, topic: str) -> int:
        """Kill the leader of partition 0 with SIGKILL and return its id."""
        leader = self.admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
        self.brokers[leader].kill()
        return leader

    def kill_transaction_coordinator(self, prefix: str) -> int:
        """Kill the coordinator of an open transaction whose id starts with `prefix`, and return its id."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        coordinators: list[int] = []

        def find() -> bool:
            for broker, transactions in admin.list_transactions(state_filters=["Ongoing"]).items():
                if any(transaction.transactional_id.startswith(prefix) for transaction in transactions):
                    coordinators.append(broker)
            return bool(coordinators)

        try:
            eventually(f"an open transaction of {prefix}", find)
        finally:
            admin.close()
        self.brokers[coordinators[0]].kill()
        return coordinators[0]


@contextlib.contextmanager
def trio(home: Path) -> Iterator[Trio]:
    """Three brokers, running and in sync; those still running at the end are killed."""
    place = Loopback().place("loopback")
    with EtcdCluster(home) as etcd:
        brokers = {n: ClusterBroker(n, place, etcd.endpoints[0], home / f"broker-{n}", SETTINGS) for n in BROKER_IDS}
        try:
            for broker in brokers.values():
                broker.spawn()
            for broker in brokers.values():
                broker.wait_ready()
            made = Trio(brokers)
            eventually("three brokers", lambda: len(made.admin.list_topics(timeout=10).brokers) == len(BROKER_IDS))
            yield made
        finally:
            for broker in brokers.values():
                broker.clean_up()
