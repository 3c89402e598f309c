"""Dead letters of a share group in a cluster: leaders of source partitions write to another broker, which is killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from cluster_processes import Cluster
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

pytestmark = pytest.mark.integration

SOURCE, LETTERS, GROUP = "jobs", "dlq.jobs", "workers"
RECORDS = 300
PARTITIONS = 3
REJECTED = 10
"""Records of each partition that are rejected; the second half after the leader of the dead letters was killed."""
LIMIT_S = 180.0

Original = tuple[str, int, int]
"""Topic, partition and offset of a record."""


def until(what: str, condition: Callable[[], bool]) -> None:
    """Repeat `condition`, which waits itself, until it is true."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_S} s: {what}"


def letters_of(bootstrap: str) -> Counter[Original]:
    """Return how many letters each record has."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "letters", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    found: Counter[Original] = Counter()
    try:
        partition = TopicPartition(LETTERS, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=60)
        consumer.assign([partition])
        while sum(found.values()) < end:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                texts = {name: value.decode() for name, value in message.headers()}
                place = (texts[f"__dlq.errors.{name}"] for name in ("topic", "partition", "offset"))
                topic, number, offset = place
                found[topic, int(number), int(offset)] += 1
                assert message.value().startswith(b"job-")
    finally:
        consumer.close()
    return found


def prepare(admin: AdminClient) -> None:
    """Create the topics, with replicas on all brokers, and configure the group."""
    flag = {"errors.deadletterqueue.group.enable": "true"}
    topics = [NewTopic(SOURCE, PARTITIONS, 3), NewTopic(LETTERS, 1, 3, config=flag)]
    for future in admin.create_topics(topics).values():
        future.result()
    settings = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": LETTERS}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    admin.incremental_alter_configs([group])[group].result()


def produce(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(SOURCE, value, partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


class Worker:
    """A member that rejects the first `limit` records of each partition, and accepts the others."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "share.acknowledgement.mode": "explicit"}
        self.consumer = ShareConsumer(settings)
        self.consumer.subscribe([SOURCE])
        self.limit = REJECTED // 2
        self.rejected: set[Original] = set()

    def work(self) -> None:
        for message in self.consumer.poll(1.0):
            key = (message.topic(), message.partition(), message.offset())
            if sum(partition == key[1] for _, partition, _ in self.rejected) < self.limit:
                self.rejected.add(key)
            is_rejected = key in self.rejected
            self.consumer.acknowledge(message, AcknowledgeType.REJECT if is_rejected else AcknowledgeType.ACCEPT)
        self.consumer.commit_sync()


def test_each_rejected_record_has_one_letter_although_the_leader_of_the_letters_dies(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    prepare(admin)
    produce(cluster.bootstrap, [f"job-{n}" for n in range(RECORDS)])
    worker = Worker(cluster.bootstrap)
    try:

        def has_letters() -> bool:
            worker.work()
            is_done = len(worker.rejected) == PARTITIONS * worker.limit
            return is_done and worker.rejected <= set(letters_of(cluster.bootstrap))

        until("the first letters", has_letters)
        leader = admin.list_topics(LETTERS, timeout=60).topics[LETTERS].partitions[0].leader
        cluster.brokers[leader].kill()
        worker.limit = REJECTED
        produce(cluster.bootstrap, [f"job-late-{n}" for n in range(RECORDS)])
        until("the letters after the leader's death", has_letters)
        assert letters_of(cluster.bootstrap) == Counter(worker.rejected)
    finally:
        worker.consumer.close()
